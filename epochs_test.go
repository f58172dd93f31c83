package bellwether_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests a store that loses its data, so its epochs fall. Store forbids this, but caches recover.

func (f *fleet) loseEpochs() {
	f.store = memstore.New()
	f.each(func(p *process) {
		p.store.mu.Lock()
		defer p.store.mu.Unlock()
		p.store.store = f.store
	})
}

// After the epochs fall, a key is loaded once when it is due, and an invalidation takes effect.
func TestFleet_EpochsFall(t *testing.T) {
	for name, o := range map[string]bellwether.Options{
		"fresh":   {TTL: time.Hour},
		"expired": {TTL: time.Second, StaleIfError: time.Hour}, // the expired value stays in the near tier
	} {
		for how, by := range map[string]way{"push": push, "poll": poll} { // the lost store's notices end, so notices is left out
			inBubble(t, name+", "+how, func(t *testing.T) {
				f := newFleet(t, 2, by, o)
				for i := range 10 {
					f.store.Claim(t.Context(), "test:"+fmt.Sprint(i)) // raises the store's epochs
				}
				f.get(1, "k")
				f.loseEpochs()
				for round := range 3 {
					time.Sleep(2 * time.Second)
					before, _ := f.origin.count()
					got := f.get(5, "k")
					loads, _ := f.origin.count()
					want := 1
					if name == "fresh" && round == 1 {
						want = 0
					}
					if loads-before != want || len(got.failed) > 0 || len(got.values) != 1 {
						t.Fatalf("round %d: %d loads, want %d; answers %v", round, loads-before, want, got.count)
					}
					calls := 0
					f.each(func(p *process) { calls -= p.store.count() })
					f.get(5, "k")
					f.each(func(p *process) { calls += p.store.count() })
					if name == "fresh" && calls > 0 {
						t.Errorf("round %d: %d calls of the store for an entry that was just read", round, calls)
					}
					if round == 1 {
						invalidate(t, f.processes[0], "k")
					}
				}
			})
		}
	}
}

// After the epochs fall, a value with a failed commit is replaced by the value in the store.
func TestFleet_EpochsFallAfterALostCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: time.Hour})
		a, b := f.processes[0], f.processes[1]
		for i := range 10 {
			f.store.Claim(t.Context(), "test:"+fmt.Sprint(i))
		}
		b.store.set(on(refuse, "commit"))
		b.Get(t.Context(), "k")
		b.store.set(nil)
		f.loseEpochs()
		wantValue(t, a, "k", "v2")
		time.Sleep(2 * time.Second)
		wantValue(t, b, "k", "v2")
	})
}

// A value that was loaded while the store failed is served until it expires, not the store's older value.
func TestFleet_AfterAnOutageNothingOlder(t *testing.T) {
	for name, fault := range map[string]fault{"away": refuse, "takes no commit": on(refuse, "commit")} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 1, push, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour})
			p := f.processes[0]
			p.Get(t.Context(), "k")
			time.Sleep(10 * time.Second)
			p.store.set(fault)
			p.Get(t.Context(), "k") // stale; v2 is loaded in the background, without the store
			time.Sleep(1500 * time.Millisecond)
			p.store.set(nil)
			for range 50 {
				if v, err := p.Get(t.Context(), "k"); err != nil || version(v) != 2 {
					t.Fatalf("Get = %q, %v after v2 was made, which is fresh", v, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
}
