package bellwether_test

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// These tests are about an engine that is store and locker at once.

// An uncontended miss is two requests, and a hit of the store one.
func TestElect_UncontendedMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, atOnce, bellwether.Options{TTL: time.Minute})
		f.origin.build = 10 * time.Millisecond
		for round := range 3 {
			for i, p := range f.processes {
				f.each(func(p *process) { p.store.reset(); p.locker.reset() })
				p.Get(t.Context(), "k")
				synctest.Wait()
				want := map[string]int{"elect": 1, "commit and release": 1 - i}
				for op, n := range want {
					if got := p.store.count(op); got != n {
						t.Errorf("round %d, process %d: %d calls of %s, want %d", round, i, got, op, n)
					}
				}
				if all := p.store.count() + p.locker.count(); all != 2-i {
					t.Errorf("round %d, process %d: %d calls, want %d", round, i, all, 2-i)
				}
			}
			time.Sleep(time.Minute)
		}
		f.wantLoads(t, 3)
	})
}

// A flight without a place among MaxRebuilds has no lease: it looks alone, and another process
// with a place loads the key.
func TestElect_NoLeaseWithoutAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, atOnce, bellwether.Options{TTL: time.Minute, MaxRebuilds: 1})
		f.origin.build = 10 * time.Second
		a, b := f.processes[0], f.processes[1]
		go a.Get(t.Context(), "long")
		synctest.Wait()
		a.store.reset()
		waits := make(chan string)
		go func() {
			v, _ := a.Get(t.Context(), "k")
			waits <- v
		}()
		synctest.Wait()
		if gets, elects := a.store.count("get"), a.store.count("elect"); gets != 1 || elects != 0 {
			t.Errorf("without a place: %d looks and %d elections, want a look", gets, elects)
		}
		start := time.Now()
		v, err := b.Get(t.Context(), "k")
		if took := time.Since(start); err != nil || took != 10*time.Second {
			t.Errorf("another process got %q, %v after %v, want its own load", v, err, took)
		}
		if got := <-waits; got != v {
			t.Errorf("the flight without a place got %q, want the other's %q", got, v)
		}
		f.wantLoads(t, 2)
	})
}

// A flight that is not elected gives its place back: another key loads beside its wait.
func TestElect_PlaceIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, atOnce, bellwether.Options{TTL: time.Minute, MaxRebuilds: 1})
		f.origin.build = 5 * time.Second
		a, b := f.processes[0], f.processes[1]
		go a.Get(t.Context(), "k")
		synctest.Wait()
		go b.Get(t.Context(), "k")
		synctest.Wait()
		start := time.Now()
		if _, err := b.Get(t.Context(), "other"); err != nil || time.Since(start) != 5*time.Second {
			t.Errorf("another key: %v after %v, want its load alone", err, time.Since(start))
		}
		f.wantLoads(t, 2)
	})
}

// A fresh entry that a process cannot decode is replaced by one load, which is elected past it.
func TestElect_PastWhatDoesNotDecode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, atOnce, bellwether.Options{TTL: time.Hour, NearTTL: time.Second, Codec: bellwether.Codec{
			Marshal: json.Marshal,
			Unmarshal: func(b []byte, v any) error {
				if string(b) == `"v1"` {
					return errors.New("an old version")
				}
				return json.Unmarshal(b, v)
			},
		}})
		f.processes[0].Get(t.Context(), "k")
		f.each(func(p *process) { p.store.reset() })
		if got := callAll(f.processes[1:], 10, "k"); got.values["v2"] != 20 {
			t.Errorf("answers %v, want those of a second load", got.count)
		}
		f.wantLoads(t, 2)
		for i, p := range f.processes[1:] {
			if n := p.store.count("elect"); n > 3 {
				t.Errorf("process %d stood for election %d times", i+1, n)
			}
		}
	})
}

// An election that has no answer leaves the lookup, and the load goes on without a lease.
func TestElect_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, atOnce, bellwether.Options{TTL: time.Minute})
		p := f.processes[0]
		p.store.set(on(refuse, "elect"))
		if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil {
			t.Fatalf("Get = %q, %v", v, err)
		}
		if n := p.store.count("commit"); n != 1 {
			t.Errorf("%d commits, want one, under the epoch of a claim", n)
		}
		time.Sleep(2 * time.Second)
		p.store.reset()
		if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil || p.store.count("get") != 1 {
			t.Errorf("Get = %q, %v with %d looks, want the value by a look alone", v, err, p.store.count("get"))
		}
	})
}

// A failure beside a stale value does not send the value again, and every process knows of it.
// Where the store has lost the value, it is sent.
func TestTouch_FailureBesideAStaleValue(t *testing.T) {
	for name, touch := range map[string]fault{"the store has the value": nil, "the store has lost it": on(answer(bellwether.ErrNotFound), "touch")} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2, push, bellwether.Options{})
			sent := 0
			for _, p := range f.processes {
				p.store.limit = func(e bellwether.Entry) error { sent += len(e.Value); return nil }
				p.Cache = cacheOf(t, f.origin.load, bellwether.Options{
					TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: time.Minute, MaxErrorTTL: time.Hour,
					Store: p.store.touching(), Locker: p.locker,
				})
			}
			f.get(1, "k")
			time.Sleep(2 * time.Second)
			sent = 0
			f.origin.set(func(o *source) { o.fail = func(int) error { return errOrigin } })
			f.each(func(p *process) { p.store.set(touch) })
			if got := f.get(3, "k"); got.values["v1"] != 6 {
				t.Errorf("answers %v, want the stale value", got.count)
			}
			touches := f.processes[0].store.count("touch") + f.processes[1].store.count("touch")
			want := 0
			if touch != nil {
				want = len("v1")
			}
			if touches != 1 || sent != want {
				t.Errorf("%d touches, and %d bytes of values were sent with the failure, want 1 and %d", touches, sent, want)
			}
			f.wantLoads(t, 2)
			e, err := f.store.Get(t.Context(), "test:k")
			if err != nil || e.Failures != 1 || string(e.Value) != "v1" {
				t.Errorf("the store has %+v, %v", e, err)
			}
		})
	}
}
