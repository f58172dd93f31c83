package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is a worker process: a cache over a real store and locker, callers that ask without
// end, and a journal of all events on its standard output.

const workerEnv = "BELLWETHER_CHAOS_WORKER"

type workerConfig struct {
	Seed          int64
	Worker, Life  int
	Locker, Store string // engines
	LockerAddr    string
	StoreAddr     string
	Origin        string
	Bug           string
	Times         times
}

// times are the cache's options in a run.
type times struct {
	Lease, TTL, Stale, StaleIfError, Near, Engine, Rebuild time.Duration
	Failure                                                time.Duration // ErrorTTL
	Hedge, Share                                           float64       // 0: no hedges
}

// maxWait is the cache's default for these times.
func (t times) maxWait() time.Duration { return t.Rebuild + t.Lease }

// namespace is the prefix of the workers' keys in the engines. The journal has the keys without it.
const namespace = "chaos"

// ownKey is the journal's key for an engine's key.
func ownKey(engineKey string) string {
	return strings.TrimPrefix(strings.TrimPrefix(engineKey, namespace), ":") // the cache's own keys have no colon
}

const (
	fleetKeys    = 3
	fleetCallers = 5 // in each worker
)

// An order is a line for a worker.
type order struct {
	Do      string // "invalidate", "get"
	Key     string
	Callers int // concurrent
}

// work is the program of a worker process, until the end of the input.
func work(config string) error {
	var c workerConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	j := &journal{out: os.Stdout}
	rec := &recorder{sink: j.write}
	w, err := newWorker(c, rec)
	if err != nil {
		return err
	}
	gaps := newGapMeter(func(s span) {
		rec.sink(event{ID: rec.id(), Kind: kindGap, Begin: s.begin, End: s.end}, false)
	})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond) // a real process reads the pipe
			j.flush()
		}
	})
	for i := range fleetCallers {
		running.Go(func() { w.ask(ctx, rand.New(rand.NewPCG(uint64(c.Seed), uint64(c.Worker*1000+c.Life*100+i)))) })
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return err
		}
		switch o.Do {
		case "invalidate":
			running.Go(func() { w.invalidate(o.Key) })
		case "get":
			for range o.Callers {
				running.Go(func() { w.get(context.Background(), o.Key) })
			}
		}
	}
	rec.begin(event{Kind: kindClose})
	stop()
	w.cache.Close()
	running.Wait()
	gaps.stop()
	j.flush()
	return in.Err()
}

type worker struct {
	workerConfig
	*recorder
	cache  *bellwether.Cache[string]
	served call
	origin *http.Client
}

func newWorker(c workerConfig, rec *recorder) (*worker, error) {
	w := &worker{workerConfig: c, recorder: rec, origin: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
	var b bug
	if c.Bug != "" {
		var err error
		if b, err = bugOf(c.Bug); err != nil {
			return nil, err
		}
	}
	elector, err := engineOf(c.Locker)
	if err != nil {
		return nil, err
	}
	// A store and a locker of one kind share a client.
	elected, err := elector.open(c.LockerAddr)
	if err != nil {
		return nil, err
	}
	kept := elected
	if c.Store != c.Locker {
		keeper, err := engineOf(c.Store)
		if err != nil {
			return nil, err
		}
		if kept, err = keeper.open(c.StoreAddr); err != nil {
			return nil, err
		}
	}
	store, locker := kept.store, elected.locker
	if b.keep != nil {
		store = b.keep(store)
	}
	if b.lock != nil {
		locker = b.lock(elected, locker)
	}
	o := bellwether.Options{
		TTL: c.Times.TTL, StaleWhileRevalidate: c.Times.Stale, StaleIfError: c.Times.StaleIfError,
		ErrorTTL: c.Times.Failure, RebuildTimeout: c.Times.Rebuild, Fleet: bellwether.Fleet{LeaseTTL: c.Times.Lease, NearTTL: c.Times.Near, EngineTimeout: c.Times.Engine, Store: recordStore(store, rec), Locker: recordLocker(locker, rec), Namespace: namespace},
		Hedge: c.Times.Hedge, HedgeShare: c.Times.Share,
		Observers: []observe.Observer{nearHits},
	}
	if eng, ok := store.(fleetEngine); ok && c.Store == c.Locker {
		o.Fleet.Store, o.Fleet.Locker, o.Fleet.Engine = nil, nil, recordEngine(eng, rec)
	}
	if os.Getenv("BELLWETHER_CHAOS_VERBOSE") != "" {
		o.OnError = func(key string, err error) {
			fmt.Fprintf(os.Stderr, "%d worker %d.%d: %s: %v\n", now()/1e6, c.Worker, c.Life, key, err)
		}
	}
	load := w.load
	if b.load != nil {
		load = b.load(load)
	}
	w.cache = bellwether.New(load, o)
	w.served = w.cache.Get
	if b.serve != nil {
		w.served = b.serve(w.served, w.load)
	}
	return w, nil
}

// ask is a caller, with one call after another. Some calls have little time.
func (w *worker) ask(ctx context.Context, dice *rand.Rand) {
	for ctx.Err() == nil {
		key := fmt.Sprint("k", dice.IntN(fleetKeys))
		calling, cancel := context.WithCancel(ctx)
		if dice.IntN(5) == 0 {
			cancel()
			calling, cancel = context.WithTimeout(ctx, time.Duration(1+dice.IntN(200))*time.Millisecond)
		}
		w.get(calling, key)
		cancel()
		time.Sleep(time.Duration(5+dice.IntN(25)) * time.Millisecond)
	}
}

// nearHits records in a call's context that the near tier has served the call at once.
var nearHits = observe.Observer{
	Hit: func(ctx context.Context, _ string) { noteNear(ctx) },
	Serve: func(ctx context.Context, s observe.Serve) {
		if s.Way <= observe.WayStale && s.Waited == 0 {
			noteNear(ctx)
		}
	},
}

// nearKey is the context key of a call's *bool.
type nearKey struct{}

func noteNear(ctx context.Context) {
	if near, ok := ctx.Value(nearKey{}).(*bool); ok {
		*near = true
	}
}

func (w *worker) get(ctx context.Context, key string) {
	e := event{ID: w.id(), Kind: kindGet, Key: key, Begin: now()}
	v, err := w.served(context.WithValue(ctx, nearKey{}, &e.Near), key)
	e.End, e.Version, e.Result = now(), versionOf(v), resultOf(err)
	switch {
	case e.Result == failed:
		e.Version = versionOf(err.Error())
	case err != nil && ctx.Err() != nil:
		e.Result = left
	case err != nil:
		e.Error = err.Error()
	}
	w.sink(e, false)
}

func (w *worker) invalidate(key string) {
	e := w.begin(event{Kind: kindDrop, Key: key})
	w.end(e, w.cache.Invalidate(context.Background(), key))
}

// load asks the origin, and records how long the load was surely wanted. One load in three ignores
// its context, and may return although it was given up.
func (w *worker) load(ctx context.Context, key string) (string, error) {
	e := event{ID: w.id(), Kind: kindLoad, Key: key, Begin: now()}
	e.End = e.Begin
	type reply struct {
		value string
		err   error
	}
	got, wanted := make(chan reply, 1), ctx
	if e.ID%3 == 0 {
		ctx = context.WithoutCancel(ctx)
	}
	go func() {
		v, err := w.fetch(ctx, key)
		got <- reply{v, err}
	}()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		// In this order: at the recorded time the load was still wanted.
		t := now()
		if wanted.Err() == nil {
			e.End = t
		}
		select {
		case r := <-got:
			e.Version, e.Result = versionOf(r.value), resultOf(r.err)
			if e.Result == silent {
				e.Error = r.err.Error()
			}
			w.sink(e, false)
			return r.value, r.err
		case <-look.C:
		}
	}
}

func (w *worker) fetch(ctx context.Context, key string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/%s?worker=%d&life=%d", w.Origin, key, w.Worker, w.Life), nil)
	if err != nil {
		return "", err
	}
	res, err := w.origin.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = &originError{string(b)}
	}
	return string(b), err
}
