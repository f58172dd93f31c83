package bellwether_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// This file tests the holder of a lease: its renewals, its end and its late commit.

func TestFleet_OneLoadForAll(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const n, m, build = 5, 400, 2 * time.Second
		f := newFleet(t, n, by, bellwether.Options{})
		f.origin.build = build
		got := f.get(m, "k")
		f.wantLoads(t, 1)
		if by == poll {
			if len(got.failed) > 0 || got.values["v1"] != n*m || got.slowest > build+pollLag(build) {
				t.Errorf("%v, slowest %v", got.count, got.slowest)
			}
		} else {
			got.want(t, n*m, "v1", nil, build)
		}
		calls := 0
		f.each(func(p *process) { calls += p.store.count() + p.locker.count() })
		if most := map[way]int{push: 40, poll: n * 180, notices: 40, atOnce: 30}[by]; calls > most {
			t.Errorf("%d calls of engines, want at most %d", calls, most)
		}
		f.get(m, "k").want(t, n*m, "v1", nil, 0)
	})
}

func TestFleet_SlowLoadIsRenewed(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{Fleet: bellwether.Fleet{LeaseTTL: time.Second}, RebuildTimeout: time.Minute})
		f.origin.build = 20 * time.Second
		got := f.get(10, "k")
		if got.values["v1"] != 30 || got.slowest > 21*time.Second {
			t.Errorf("%v, slowest %v", got.count, got.slowest)
		}
		f.wantLoads(t, 1)
		f.each(func(p *process) {
			if n := p.store.count() + p.locker.count(); n > 2500 {
				t.Errorf("%d calls of engines in 20 s", n)
			}
		})
	})
}

func TestFleet_HolderIsPausedPastItsLease(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 5, by, bellwether.Options{Fleet: bellwether.Fleet{LeaseTTL: 2 * time.Second}, RebuildTimeout: time.Minute, MaxWait: time.Minute})
		a, others := f.processes[0], f.processes[1:]
		f.origin.set(func(o *source) { o.build, o.deaf = 30*time.Second, true })
		first := make(chan string)
		go func() {
			v, err := a.Get(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			first <- v
		}()
		synctest.Wait() // a's load v1 runs
		resume := pause(a)
		f.origin.set(func(o *source) { o.build, o.deaf = time.Second, false })
		got := callAll(others, 100, "k")
		if got.values["v2"] != 400 || len(got.failed) != 0 {
			t.Fatalf("answers %v, want the takeover's", got.count)
		}
		if most := 2*time.Second + 2*time.Second/64 + time.Second + pollLag(3*time.Second); got.slowest > most {
			t.Errorf("slowest %v, want at most %v", got.slowest, most)
		}
		f.wantLoads(t, 2)
		time.Sleep(20 * time.Second)
		resume()
		if v := <-first; v != "v2" {
			t.Errorf("the paused holder's caller got %s, want the newer value", v)
		}
		time.Sleep(2 * time.Second)
		if got := f.get(10, "k"); got.values["v2"] != 50 {
			t.Errorf("afterwards %v, want v2", got.count)
		}
		f.wantLoads(t, 2)
		time.Sleep(10 * time.Second) // the first load does not heed the end of its cache
	})
}

func TestFleet_LateCommitIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{Fleet: bellwether.Fleet{LeaseTTL: 2 * time.Second}})
		a, b := f.processes[0], f.processes[1]
		a.locker.set(on(refuse, "renew"))
		f.origin.set(func(o *source) { o.build = 10 * time.Second })
		first := make(chan string)
		go func() {
			v, _ := a.Get(t.Context(), "k")
			first <- v
		}()
		synctest.Wait()
		f.origin.set(func(o *source) { o.build = time.Second })
		wantValue(t, b, "k", "v2")
		if v := <-first; v != "v2" || a.Stats().Fenced != 1 {
			t.Errorf("a's Get = %q with %d commits fenced; want v2 and 1", v, a.Stats().Fenced)
		}
		f.wantLoads(t, 2)
	})
}

// A load that exceeds RebuildTimeout fails for the whole fleet. The other processes do not load in turn.
func TestFleet_HangingOriginIsNotQueuedFor(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 5, by, bellwether.Options{RebuildTimeout: 3 * time.Second, ErrorTTL: 10 * time.Second, MaxWait: time.Minute})
		f.origin.set(func(o *source) { o.build = time.Hour })
		got := f.get(10, "k")
		if got.slowest > 3*time.Second+pollLag(3*time.Second) {
			t.Errorf("the slowest caller waited %v for a rebuild of 3s: %v", got.slowest, got.count)
		}
		f.wantLoads(t, 1)
	})
}

// Close answers waiting callers with ErrClosed, not with a possibly invalidated value.
func TestClose_NothingOldInTheEnd(t *testing.T) {
	for name, during := range map[string]fault{"a look": on(blackHole, "get"), "a load": nil} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2, poll, bellwether.Options{TTL: time.Hour, StaleIfError: time.Hour})
			p := f.processes[0]
			p.Get(t.Context(), "k")
			if f.origin.build = time.Hour; during == nil {
				time.Sleep(time.Hour)
			} else {
				f.processes[1].Invalidate(t.Context(), "k")
				time.Sleep(time.Minute)
			}
			p.store.set(during)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if v, err := p.Get(t.Context(), "k"); !errors.Is(err, bellwether.ErrClosed) {
					t.Errorf("Get = %q, %v, want ErrClosed", v, err)
				}
			}()
			synctest.Wait()
			p.Close()
			<-done
		})
	}
}

// When the holder closes, the other processes do not wait for its lease to expire.
func TestFleet_HolderCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, push, bellwether.Options{})
		go f.processes[0].Get(context.Background(), "k")
		synctest.Wait()
		time.AfterFunc(time.Second/2, func() { f.processes[0].Close() })
		callAll(f.processes[1:], 10, "k").want(t, 30, "v2", nil, 3*time.Second/2)
		f.wantLoads(t, 2)
	})
}
