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
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// This file is one of the herd's processes: orders in, reports out, until its
// input ends.

// An order is one line to a worker.
type order struct {
	Do string // open, burst, drive, close

	// Of open: the strategy, what it is told, and the origin's log.
	Strategy string
	Policy   policy
	Log      string

	// Of burst and drive.
	Behaviour behaviour
	Key       string        // what the keys begin with
	Keys      int           // how many there are
	At        time.Time     // when it begins: processes of one machine share a clock
	Patience  time.Duration // how long a caller waits

	// Of burst: all callers come at one time, one for each key in turn. If Leave
	// is not 0 the first comes First ahead of At and leaves after Leave.
	Callers      int
	First, Leave time.Duration

	// Of drive: callers come Rate times a second for For, at random moments that
	// depend on Seed alone, whatever became of those before them. Zipf is the
	// exponent by which they prefer some keys, 0 the same chance for all.
	Rate float64
	For  time.Duration
	Seed uint64
	Zipf float64

	// Trace has each call reported.
	Trace bool
}

// A report is the line back.
type report struct {
	Err      string
	Calls    int
	Failures int           // calls that got an error, or nothing within Patience
	Wrong    int           // calls that got another key's value
	Hung     int           // calls that had not returned a second after that
	Waiting  time.Duration // of all calls together
	Waits    []byte        // an encoded histogram of microseconds
	Samples  []sample
	Process  int
	Error    string // one of the failures
}

// A sample is one call: when it was due, and how long it took from then.
type sample struct {
	At   time.Time
	Wait time.Duration
	OK   bool
}

// newHistogram is of microseconds, up to ten minutes, to three digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 600_000_000, 3) }

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
}

func (w *workerSide) obey(o order) report {
	switch o.Do {
	case "open":
		if err := w.open(o); err != nil {
			return report{Err: err.Error()}
		}
		return report{}
	case "burst":
		return w.burst(o)
	case "drive":
		return w.drive(o)
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

// burst lets all callers go at one time. A wait counts from the moment at which
// the caller was due, not from when its goroutine ran.
func (w *workerSide) burst(o order) report {
	w.origin.now.Store(&o.Behaviour)
	t := newTally(o)
	gate := make(chan struct{})
	for i := range o.Callers {
		key := keyOf(o.Key, uint64(i%max(1, o.Keys)))
		if i == 0 && o.Leave > 0 {
			go func() { // its own failure is what it came for: it is not counted
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
	return t.report()
}

// drive is an open loop: callers come when they are due, also when those before
// them have not been answered.
func (w *workerSide) drive(o order) report {
	w.origin.now.Store(&o.Behaviour)
	t := newTally(o)
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
	return t.report()
}

// keyOf has no space in it, which memcached would refuse.
func keyOf(prefix string, n uint64) string { return prefix + "." + strconv.FormatUint(n, 10) }

// A tally is the calls of one order and what came of them.
type tally struct {
	order order
	wg    sync.WaitGroup
	calls int // by the goroutine that makes them

	mu sync.Mutex // guards what follows
	r  report
	h  *hdrhistogram.Histogram
	at map[int]time.Time // when the calls that have not returned were due
}

func newTally(o order) *tally {
	return &tally{order: o, h: newHistogram(), at: map[int]time.Time{}}
}

// goAt makes one call, which was due at a time, once wait has returned.
func (t *tally) goAt(due time.Time, wait func(), c cache, key string) {
	n := t.calls
	t.calls++
	t.mu.Lock()
	t.at[n] = due
	t.mu.Unlock()
	t.wg.Go(func() {
		if wait != nil {
			wait()
		}
		ctx, cancel := context.WithDeadline(context.Background(), due.Add(t.order.Patience))
		defer cancel()
		v, err := c.Get(ctx, key)
		took := time.Since(due)
		t.mu.Lock()
		defer t.mu.Unlock()
		if _, waits := t.at[n]; waits { // else it counts as hung
			delete(t.at, n)
			t.add(due, took, v, err, key)
		}
	})
}

// add counts one call. t.mu is held.
func (t *tally) add(due time.Time, took time.Duration, v string, err error, key string) {
	t.r.Calls++
	t.r.Waiting += took
	t.h.RecordValue(max(1, took.Microseconds()))
	switch {
	case err != nil:
		t.r.Failures++
		t.r.Error = err.Error()
	case v != valueOf(key):
		t.r.Wrong++
	}
	if t.order.Trace {
		t.r.Samples = append(t.r.Samples, sample{due, took, err == nil})
	}
}

// report returns when all calls have, or a second after the last one's patience.
func (t *tally) report() report {
	done := make(chan struct{})
	go func() { t.wg.Wait(); close(done) }()
	limit := time.NewTimer(time.Until(t.order.At.Add(t.order.For + t.order.Patience + time.Second)))
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, due := range t.at {
		delete(t.at, n)
		t.r.Hung++
		t.add(due, time.Since(due), "", context.DeadlineExceeded, "")
	}
	t.r.Process = os.Getpid()
	var err error
	if t.r.Waits, err = t.h.Encode(hdrhistogram.V2CompressedEncodingCookieBase); err != nil {
		return report{Err: err.Error()}
	}
	return t.r
}
