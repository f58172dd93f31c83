package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// This file is one of the herd's processes: it reads orders and writes reports.

// An order is a line to a worker.
type order struct {
	Do string // open, burst, drive, misses, report, close

	// Of open: the strategy, its policy, and the origin's log.
	Strategy string
	Policy   policy
	Log      string

	// Of burst, drive and misses.
	Behaviour behaviour
	Key       string        // prefix of the keys
	Keys      int           // number of keys
	At        time.Time     // when it begins: processes of one machine share a clock
	Patience  time.Duration // how long a caller waits

	// Of burst: all callers come at the same time, one for each key in turn. With Leave, the first
	// caller comes First before At and leaves after Leave.
	Callers      int
	First, Leave time.Duration

	// Of drive: callers come Rate times a second for For, at random moments of Seed, whether or not
	// earlier callers have answers. Zipf is the exponent of the keys' popularity; 0: equal.
	Rate float64
	For  time.Duration
	Seed uint64
	Zipf float64

	Trace bool // reports each call
}

// A report is the answer to an order. Except Err, it is about the calls of the last burst or drive, and
// answers the order report: an earlier report would take the processor from calls that are not done.
type report struct {
	Err      string
	Calls    int
	Failures int           // calls with an error, or without an answer within Patience
	Wrong    int           // calls that got another key's value
	Hung     int           // calls that had not returned a second later
	Waiting  time.Duration // of all calls together
	Waits    []byte        // an encoded histogram of microseconds
	Samples  []sample
	Process  int
	Error    string // a failure

	// Of misses.
	CPU  time.Duration // the processor time of the process
	Wire traffic
}

// A sample is a call: when it was due, and its duration from then.
type sample struct {
	At   time.Time
	Wait time.Duration
	OK   bool
}

// newHistogram is in microseconds, up to ten minutes, with four digits: 0.03 ms of 310.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 600_000_000, 4) }

// work is a worker process.
func work(config string) error {
	var a addresses
	if err := json.Unmarshal([]byte(config), &a); err != nil {
		return err
	}
	c, err := connect(a)
	if err != nil {
		return err
	}
	w := &workerSide{clients: c}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	in.Buffer(nil, 1<<20)
	if err := out.Encode(report{}); err != nil { // ready
		return err
	}
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return err
		}
		if err := out.Encode(w.obey(o)); err != nil {
			return err
		}
	}
	return in.Err()
}

type workerSide struct {
	clients *clients
	origin  *origin
	cache   cache
	tally   *tally // the latest
}

func (w *workerSide) obey(o order) report {
	switch o.Do {
	case "open":
		if err := w.open(o); err != nil {
			return report{Err: err.Error()}
		}
		return report{}
	case "burst":
		w.burst(o)
		return report{}
	case "drive":
		w.drive(o)
		return report{}
	case "misses":
		if err := w.misses(o); err != nil {
			return report{Err: err.Error()}
		}
		return report{}
	case "report":
		return w.tally.report()
	case "close":
		w.cache.Close()
		w.origin.log.Close()
		return report{}
	}
	return report{Err: "no such order: " + o.Do}
}

func (w *workerSide) open(o order) error {
	s, ok := strategyNamed(o.Strategy)
	if !ok {
		return fmt.Errorf("no strategy %q", o.Strategy)
	}
	log, err := os.OpenFile(o.Log, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	w.origin = &origin{log: log, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}}
	w.cache, err = s.open(w.clients, o.Policy, w.origin.load)
	return err
}

func (w *workerSide) begin(o order) *tally {
	w.origin.now.Store(&o.Behaviour)
	w.tally = &tally{order: o}
	return w.tally
}

// burst releases all callers at the same time. A wait counts from when the caller was due.
func (w *workerSide) burst(o order) {
	t := w.begin(o)
	gate := make(chan struct{})
	for i := range o.Callers {
		key := keyOf(o.Key, uint64(i%max(1, o.Keys)))
		if i == 0 && o.Leave > 0 {
			go func() { // its own failure is intended, and not counted
				time.Sleep(time.Until(o.At.Add(-o.First)))
				ctx, cancel := context.WithTimeout(context.Background(), o.Leave)
				defer cancel()
				w.cache.Get(ctx, key)
			}()
			continue
		}
		t.goAt(o.At, func() { <-gate }, w.cache, key)
	}
	time.Sleep(time.Until(o.At))
	close(gate)
	t.wait()
}

// drive is an open loop: callers come when they are due, with or without earlier answers.
func (w *workerSide) drive(o order) {
	t := w.begin(o)
	rng := rand.New(rand.NewPCG(o.Seed, 6))
	pick := func() uint64 { return rng.Uint64N(uint64(max(1, o.Keys))) }
	if o.Zipf > 0 {
		pick = rand.NewZipf(rng, o.Zipf, 1, uint64(o.Keys-1)).Uint64
	}
	for due := o.At; ; {
		due = due.Add(time.Duration(rng.ExpFloat64() / o.Rate * float64(time.Second)))
		if due.After(o.At.Add(o.For)) {
			break
		}
		key := keyOf(o.Key, pick())
		time.Sleep(time.Until(due))
		t.goAt(due, nil, w.cache, key)
	}
	t.wait()
}

// keyOf has no space, which memcached refuses.
func keyOf(prefix string, n uint64) string { return prefix + "." + strconv.FormatUint(n, 10) }

// A call is a Get with its result. Its goroutine does nothing else, because other goroutines wait
// for the processor. So the ctx, whose timer costs more than some caches, is made before and ended
// after all calls, and the report judges the answer.
type call struct {
	due      time.Time
	key      string
	ctx      context.Context
	cancel   context.CancelFunc
	took     time.Duration
	v        string
	err      error
	returned atomic.Bool // the fields above are final
}

// A tally is the calls of an order.
type tally struct {
	order order
	calls []*call
	wg    sync.WaitGroup // counts the running calls
	cpu   time.Duration  // see report
	wire  traffic
}

// goAt makes a call that was due at a time, after wait has returned.
func (t *tally) goAt(due time.Time, wait func(), c cache, key string) {
	call := &call{due: due, key: key}
	call.ctx, call.cancel = context.WithDeadline(context.Background(), due.Add(t.order.Patience))
	t.calls = append(t.calls, call)
	t.wg.Go(func() {
		if wait != nil {
			wait()
		}
		call.v, call.err = c.Get(call.ctx, key)
		call.took = time.Since(due)
		call.returned.Store(true)
	})
}

// wait waits until all calls have returned, or a second after the last call's patience.
func (t *tally) wait() {
	done := make(chan struct{})
	go func() { t.wg.Wait(); close(done) }()
	limit := time.NewTimer(time.Until(t.order.At.Add(t.order.For + t.order.Patience + time.Second)))
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}

func (t *tally) report() report {
	r := report{Calls: len(t.calls), Process: os.Getpid(), CPU: t.cpu, Wire: t.wire}
	h := newHistogram()
	for _, c := range t.calls {
		c.cancel()
		took, err := time.Since(c.due), context.DeadlineExceeded
		if c.returned.Load() {
			took, err = c.took, c.err
		} else {
			r.Hung++
		}
		switch {
		case err != nil:
			r.Failures++
			r.Error = err.Error()
		case c.v != valueOf(c.key):
			r.Wrong++
		}
		r.Waiting += took
		h.RecordValue(max(1, took.Microseconds()))
		if t.order.Trace {
			r.Samples = append(r.Samples, sample{c.due, took, err == nil})
		}
	}
	waits, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return report{Err: err.Error()}
	}
	r.Waits = waits
	return r
}
