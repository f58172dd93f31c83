package bellwether_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// If a slow engine has more calls than it answers within EngineTimeout, their queue is no outage.
func TestFleet_ManyKeysAtOnceAreNoOutage(t *testing.T) {
	for _, by := range []way{push, notices} {
		inBubble(t, map[way]string{push: "push", notices: "notices"}[by], func(t *testing.T) {
			const keys = 1000
			var mu sync.Mutex
			silences := map[string]int{}
			f := newFleet(t, 3, by, bellwether.Options{
				MaxWait: time.Hour,
				OnError: func(key string, err error) {
					mu.Lock()
					defer mu.Unlock()
					silences[err.Error()]++
				},
			})
			f.origin.build = 10 * time.Millisecond
			store, locker := oneByOne(5*time.Millisecond), oneByOne(5*time.Millisecond)
			f.each(func(p *process) {
				p.store.set(func(ctx context.Context, op string) error {
					if op == "notice" {
						return nil
					}
					return store(ctx, op)
				})
				p.locker.set(locker)
			})
			began := time.Now()
			var wg sync.WaitGroup
			for i := range keys {
				wg.Go(func() {
					for _, err := range f.get(1, fmt.Sprint("k", i)).failed {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			f.wantLoads(t, keys)
			if len(silences) > 0 {
				t.Errorf("working engines were taken for dead: %v", silences)
			}
			took := time.Since(began)
			time.Sleep(time.Minute) // leases are released in the background
			synctest.Wait()
			// At least three looks and two elections for each key, of 5 ms each.
			t.Logf("took %v; calls of the store and the locker by the processes:", took)
			f.each(func(p *process) {
				t.Log(p.store.calls, p.locker.calls)
				if s := p.Stats(); s.Degraded > 0 || !s.StoreUp || !s.LockerUp {
					t.Errorf("%d rebuilds without engines; store up: %t, locker up: %t", s.Degraded, s.StoreUp, s.LockerUp)
				}
			})
		})
	}
}

func TestGet_SilentEngineIsNotQueuedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 2000
		f := newFleet(t, 1, push, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: keys}})
		f.origin.build = 0
		p := f.processes[0]
		p.store.set(blackHole)
		p.locker.set(blackHole)
		began := time.Now()
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				if _, err := p.Get(t.Context(), strconv.Itoa(i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 600*time.Millisecond {
			t.Errorf("%d keys took %v beside engines that say nothing, want one EngineTimeout", keys, took)
		}
	})
}

func TestGet_TurnsOfThoseWhoLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{})
		f.origin.build = 0
		p := f.processes[0]
		hold := make(chan struct{})
		p.store.set(func(ctx context.Context, op string) error {
			if op != "invalidate" {
				return nil
			}
			<-hold
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() { p.Invalidate(ctx, strconv.Itoa(i)) })
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(hold)
		wg.Wait()
		if n := p.store.count("invalidate"); n > 100 {
			t.Errorf("%d of 1000 calls came to the engine at one time", n)
		}
		var gets sync.WaitGroup
		began := time.Now()
		for i := range 1000 {
			gets.Go(func() { p.Get(t.Context(), fmt.Sprint("k", i)) })
		}
		gets.Wait()
		if took := time.Since(began); took > 0 {
			t.Errorf("1000 calls after the abandoned calls took %v", took)
		}
	})
}

func TestGet_ShortEngineTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{time.Nanosecond, time.Microsecond, time.Microsecond + 3} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 1, push, bellwether.Options{Fleet: bellwether.Fleet{EngineTimeout: timeout}})
			f.origin.build = 0
			p := f.processes[0]
			p.store.set(blackHole)
			p.Get(t.Context(), "a")
			p.store.set(nil)
			start := time.Now()
			for i := range 10 {
				if _, err := p.Get(t.Context(), fmt.Sprint("k", i)); err != nil {
					t.Errorf("%v: %v", timeout, err)
				}
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("%v: took %v", timeout, took)
			}
		})
	}
}
