package bellwether_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// A release without an answer is retried, so no process waits for the lease to expire.
func TestLease_ReleaseIsMadeAgain(t *testing.T) {
	const build = 100 * time.Millisecond
	for name, f := range map[string]fault{"silent": blackHole, "refusing": refuse} {
		for _, outage := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the engine is down %t", name, outage), func(t *testing.T) {
				everyWay(t, func(t *testing.T, by way) {
					if by == atOnce && outage {
						return // this locker is also the store
					}
					fl := newFleet(t, 2, by, bellwether.Options{TTL: 200 * time.Millisecond})
					fl.origin.build = build
					a, b := fl.processes[0], fl.processes[1]
					a.locker.set(on(f, "release"))
					a.Get(t.Context(), "k") // without a known build time, so the lease takes 5 s
					most := time.Second     // until the retry
					if outage {
						a.locker.set(f)
						var others sync.WaitGroup
						for i := range 5 {
							others.Go(func() { a.Get(t.Context(), fmt.Sprint(i)) })
						}
						others.Wait()
						for a.Stats().LockerUp {
							time.Sleep(100 * time.Millisecond)
							a.Get(t.Context(), "another")
						}
						time.Sleep(time.Second)
						most = 0
					} else {
						synctest.Wait()
						time.Sleep(500 * time.Millisecond) // until a silent release is given up
					}
					a.locker.set(nil)
					if outage {
						a.Get(t.Context(), "finds out that it is up")
						synctest.Wait()
					}
					most += build + 10*time.Millisecond
					if by == poll && !outage {
						most += 500 * time.Millisecond
					}
					for _, p := range []*process{b, a} {
						time.Sleep(250 * time.Millisecond)
						if got := callAll([]*process{p}, 1, "k"); len(got.failed) > 0 || got.slowest > most {
							t.Errorf("answers %v, want them after %v at most", got.count, most)
						}
					}
				})
			})
		}
	}
}

// A release is not retried after the lease has expired, nor after Close.
func TestLease_ReleaseEnds(t *testing.T) {
	for _, closes := range []bool{false, true} {
		inBubble(t, fmt.Sprintf("closed %t", closes), func(t *testing.T) {
			f := newFleet(t, 1, push, bellwether.Options{TTL: time.Hour})
			p := f.processes[0]
			p.locker.set(on(refuse, "release"))
			p.Get(t.Context(), "k")
			most := 6
			if closes {
				synctest.Wait()
				p.Close()
				most = 1
			}
			time.Sleep(time.Minute)
			if n := p.locker.count("release"); n < 1 || n > most {
				t.Errorf("released %d times, want %d at most", n, most)
			}
		})
	}
}
