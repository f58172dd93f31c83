package bellwether_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// When a store goes silent, recently confirmed values are served at once. Others wait until three
// calls had no answer within EngineTimeout, which is an outage for all. Then only probes wait.
func TestGet_StaleWhenTheStoreGoesSilent(t *testing.T) {
	const (
		keys    = 400
		each    = 10 * time.Millisecond
		timeout = 500 * time.Millisecond
		step    = 10 * time.Millisecond   // a call under way hears of the outage by then
		outage  = timeout + 2*each + step // three calls
	)
	for _, c := range []struct {
		name    string
		windows bellwether.Options
		waits   time.Duration // after the store's last answer
		probes  int           // number of calls that may wait afterwards
	}{
		{"confirmed, while it is rebuilt", bellwether.Options{StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Hour}}, 0, 0},
		{"fresh", bellwether.Options{TTL: time.Hour}, outage, 0},
		{"while it is rebuilt", bellwether.Options{StaleWhileRevalidate: time.Hour}, outage, 0},
		{"if there is an error", bellwether.Options{StaleIfError: time.Hour}, outage, 3},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o := c.windows
			o.Fleet.EngineTimeout = timeout
			if o.TTL == 0 {
				o.TTL = time.Second
			}
			f := newFleet(t, 1, push, o)
			f.origin.build = 0
			p := f.processes[0]
			for i := range keys {
				if _, err := p.Get(t.Context(), fmt.Sprint(i)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * time.Second)
			f.origin.set(func(o *source) { o.fail = func(int) error { return errors.New("no origin") } })
			p.store.set(blackHole)
			p.locker.set(blackHole)

			died := time.Now()
			var mu sync.Mutex
			late := 0
			var wg sync.WaitGroup
			for i := range keys {
				wg.Go(func() {
					began := time.Now()
					if _, err := p.Get(t.Context(), fmt.Sprint(i)); err != nil {
						t.Error(err)
					}
					took := time.Since(began)
					if most := max(0, died.Add(c.waits).Sub(began)); took > most {
						mu.Lock()
						defer mu.Unlock()
						if late++; took > timeout || late > c.probes {
							t.Errorf("%v after the store's last word a call waited for %v, want %v at most", began.Sub(died), took, most)
						}
					}
				})
				time.Sleep(each)
			}
			wg.Wait()
		})
	}
}

// A flight finds another process's later value and offers it. Then the store falls silent, and the
// earlier value of the near tier does not come back.
func TestSilence_NearItemFromBeforeTheOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour})
		p, q := f.processes[0], f.processes[1]
		gets := func(want string) {
			t.Helper()
			if got, err := p.Get(t.Context(), "k"); got != want || err != nil {
				t.Errorf("Get = %q, %v; want %q", got, err, want)
			}
			if got, _, _ := p.Peek("k"); got != want {
				t.Errorf("Peek = %q, want %q", got, want)
			}
		}
		gets("v1")
		time.Sleep(2 * time.Second)
		if err := q.Set(t.Context(), "k", "set"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		f.origin.set(func(s *source) { s.build = time.Minute })
		gets("set") // the offer, while the load runs
		p.store.set(blackHole)
		time.Sleep(time.Minute)
		gets("set")
	})
}

// A request for a page with Vary looks up two keys, and waits for a silent store once.
func TestSilence_StoreIsWaitedForOnce(t *testing.T) {
	for name, age := range map[string]time.Duration{"cold": -1, "hit": 2 * time.Second, "stale": 62 * time.Second} {
		inBubble(t, name, func(t *testing.T) {
			store := wiredTo(memstore.New())
			o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locallock.New(), EngineTimeout: 500 * time.Millisecond}}
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=600")
				w.Header().Set("Vary", "Accept-Encoding")
				io.WriteString(w, "page")
			})
			if age >= 0 {
				s.get("http://a/p")
				time.Sleep(age)
			}
			store.set(blackHole)
			wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 page 500ms")
		})
	}
}

// OnError hears of the calls that open the breaker and of its probes, and of no call that the breaker refuses.
func TestOnError_SaysWhatOpenedTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var errs []error
		f := newFleet(t, 1, push, bellwether.Options{OnError: func(_ string, err error) { errs = append(errs, err) }})
		f.processes[0].store.set(refuse)
		for i := range 20 {
			f.get(1, fmt.Sprint(i))
		}
		for _, err := range errs {
			if !strings.HasSuffix(err.Error(), ": connection refused") || strings.Contains(err.Error(), "no call is made") {
				t.Errorf("%v, want the engine's error", err)
			}
		}
		if calls := f.processes[0].store.count(); len(errs) < 3 || len(errs) > calls {
			t.Errorf("%d errors, for %d calls of the store", len(errs), calls)
		}
	})
}

// A store is silent for 0.6 s during a long load. Calls later than NearTTL after another process's
// invalidation do not get the load's value.
func TestFleet_ShortSilenceDuringALongLoad(t *testing.T) {
	const build, silence = 20 * time.Second, 600 * time.Millisecond
	for name, from := range map[string]time.Duration{"at its begin": 0, "at its commit": build - silence/2} {
		for how, fault := range map[string]fault{"silent": blackHole, "refusing": refuse} {
			t.Run(name+", "+how, func(t *testing.T) {
				if from > 0 {
					fault = on(fault, "commit")
				}
				everyWay(t, func(t *testing.T, by way) {
					f := newFleet(t, 2, by, bellwether.Options{TTL: time.Hour, MaxWait: time.Minute})
					f.origin.build = build
					a, b := f.processes[0], f.processes[1]
					began := time.Now()
					at := func(then time.Duration) { time.Sleep(then - time.Since(began)) }
					time.AfterFunc(from, func() { b.store.set(fault) })
					time.AfterFunc(from+silence, func() { b.store.set(nil) })
					at(time.Microsecond)
					var wg sync.WaitGroup
					defer wg.Wait()
					wg.Go(func() {
						if v, err := b.Get(t.Context(), "k"); v != "v1" && by != notices || err != nil { // or the load was cancelled by the notice
							t.Errorf("the caller that began the load got %q, %v", v, err)
						}
					})
					at(5 * time.Second)
					invalidate(t, a, "k")
					for _, late := range []time.Duration{15 * time.Second, build + 900*time.Millisecond} {
						at(late)
						wg.Go(func() {
							if v, err := b.Get(t.Context(), "k"); v == "v1" || err != nil {
								t.Errorf("a call %v after the invalidation got %q, %v", late-5*time.Second, v, err)
							}
						})
					}
				})
			})
		}
	}
}
