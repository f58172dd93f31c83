package bellwether_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

func TestFleet_FailureIsShared(t *testing.T) {
	for name, test := range map[string]struct {
		fail func(int) error
		text string
	}{
		"error":  {func(int) error { return errOrigin }, errOrigin.Error()},
		"panic":  {func(int) error { panic("oh no") }, "oh no"},
		"goexit": {func(int) error { runtime.Goexit(); return nil }, bellwether.ErrGoexit.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				const n, m = 5, 50
				f := newFleet(t, n, by, bellwether.Options{ErrorTTL: 4 * time.Second, MaxErrorTTL: time.Hour})
				f.origin.fail = test.fail
				begin := time.Now()
				got := f.get(m, "k")
				if len(got.failed) != n*m || got.slowest > time.Second+pollLag(time.Second) {
					t.Fatalf("answers %v", got.count)
				}
				remote := 0
				for _, err := range got.failed {
					if r, ok := errors.AsType[*bellwether.RemoteError](err); ok && strings.Contains(r.Message, test.text) {
						remote++
					} else if !strings.Contains(err.Error(), test.text) {
						t.Fatalf("err = %v", err)
					}
				}
				if remote != (n-1)*m {
					t.Errorf("%d callers got a RemoteError, want the callers of %d processes", remote, n-1)
				}
				f.wantLoads(t, 1)

				// The fleet loads once after each back-off, and the back-off doubles.
				last := 1
				var ends []time.Duration
				for len(ends) < 5 {
					f.get(2, "k")
					if loads, _ := f.origin.count(); loads > last {
						if loads != last+1 {
							t.Fatalf("%d loads at one time", loads-last)
						}
						last = loads
						ends = append(ends, time.Since(begin))
					}
					time.Sleep(400 * time.Millisecond)
				}
				from := time.Second
				for i, at := range ends {
					full := 4 * time.Second << i
					// The load takes another second.
					if gap := at - from - time.Second; gap < full/2 || gap > full+time.Second {
						t.Errorf("pause %d was %v, want %v to %v", i, gap, full/2, full)
					}
					from = at
				}
				f.origin.set(func(o *source) { o.fail = nil })
				time.Sleep(5 * time.Minute)
				if got := f.get(2, "k"); len(got.failed) > 0 || len(got.values) != 1 {
					t.Errorf("after the failures %v", got.count)
				}
				f.wantLoads(t, last+1)
			})
		})
	}
}

func TestFleet_ContextErrorIsNotRemembered(t *testing.T) {
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		everyWay(t, func(t *testing.T, by way) {
			f := newFleet(t, 3, by, bellwether.Options{ErrorTTL: time.Hour})
			f.origin.fail = func(n int) error {
				if n == 1 {
					return fmt.Errorf("query: %w", cause)
				}
				return nil
			}
			got := f.get(10, "k")
			if len(got.failed)+got.values["v2"] != 30 || len(got.failed) < 10 || got.slowest > 4*time.Second {
				t.Errorf("answers %v, want the failure or the next value", got.count)
			}
			if got := f.get(10, "k"); got.values["v2"] != 30 || got.slowest > 2*time.Second {
				t.Errorf("answers of the next calls %v", got.count)
			}
			f.wantLoads(t, 2)
		})
	}
}

// A timeout of a client that the load uses answers all callers after one load, and is not remembered.
func TestFleet_ClientTimeoutIsTold(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 5, by, bellwether.Options{ErrorTTL: time.Hour, MaxWait: time.Minute})
		f.origin.set(func(o *source) { o.build = 3 * time.Second })
		f.origin.fail = func(int) error { return fmt.Errorf("query: %w", context.DeadlineExceeded) }
		for round := range 2 {
			got := f.get(10, "k")
			if len(got.failed) != 50 || got.slowest > 3*time.Second+pollLag(3*time.Second) {
				t.Errorf("%d calls have failed, the slowest after %v: %v", len(got.failed), got.slowest, got.count)
			}
			f.wantLoads(t, round+1)
		}
	})
}

// A failure with a long text is shortened and shared between processes.
func TestFleet_FailuresOfManyWords(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 5, by, bellwether.Options{})
		f.origin.fail = func(int) error { return errors.New(strings.Repeat("é", 1<<20)) }
		f.each(func(p *process) {
			p.store.limit = func(e driver.Entry) error {
				if len(e.Failure) > 1<<20 {
					return driver.ErrTooLarge
				}
				return nil
			}
		})
		got := f.get(20, "k")
		if loads, _ := f.origin.count(); loads != 1 || got.slowest > 1100*time.Millisecond {
			t.Errorf("%d loads, and the slowest caller waited %v for that of a second", loads, got.slowest)
		}
		for _, err := range got.failed {
			if text := err.Error(); len(text) < 1000 || !utf8.ValidString(text) {
				t.Fatalf("a failure of %d bytes, valid: %v", len(text), utf8.ValidString(text))
			}
		}
	})
}

// A load fails while the store is silent. Callers get the stale value that the store gave before.
func TestFailures_StaleValueOfASilentStore(t *testing.T) {
	for name, down := range map[string]fault{"up": nil, "silent": blackHole, "reads refused": on(refuse, "get"), "reads silent": on(blackHole, "get")} {
		inBubbleBeside(t, name, func(t *testing.T) {
			f := newFleet(t, 2, push, bellwether.Options{TTL: time.Second, StaleIfError: time.Hour})
			f.processes[0].Get(t.Context(), "k")
			time.Sleep(2 * time.Second)
			f.origin.set(func(o *source) { o.fail = func(int) error { return errOrigin } })
			p := f.processes[1]
			time.AfterFunc(time.Second/2, func() { p.store.set(down) })
			v, err := p.Get(t.Context(), "k")
			if v != "v1" || err != nil {
				t.Errorf("Get = %q, %v; want the stale v1", v, err)
			}
		})
	}
}

// A failure's commit is lost, or the store does not take it. The other processes' callers get the stale value as before.
func TestFailures_LostCommitBesideAStaleValue(t *testing.T) {
	faults := map[string]func(p *process){
		"the first is lost":        func(p *process) { p.losesCommits(1) },
		"the first three are lost": func(p *process) { p.losesCommits(3) },
		"no value is taken":        takesNoValues,
	}
	for name, fails := range faults {
		for by, fleet := range map[string]way{"a pair": push, "an elector": atOnce} {
			inBubbleBeside(t, name+"/"+by, func(t *testing.T) {
				f := newFleet(t, 2, fleet, bellwether.Options{TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: 20 * time.Second})
				f.processes[0].Get(t.Context(), "k")
				time.Sleep(2 * time.Second)
				f.origin.set(func(o *source) { o.fail = func(int) error { return errOrigin } })
				f.processes[0].store.reset()
				fails(f.processes[0])
				for range 3 {
					for i, p := range f.processes {
						if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil {
							t.Errorf("process %d: Get = %q, %v; want the stale v1", i, v, err)
						}
					}
					time.Sleep(10 * time.Second)
				}
			})
		}
	}
}

// A failure without a pause, beside a stale value, does not answer the callers that come after the value has expired
// and while the next holder loads.
func TestFailures_OldBesideAnExpiredValue(t *testing.T) {
	for _, silent := range []bool{false, true} {
		inBubble(t, fmt.Sprintf("store silent when it expires: %t", silent), func(t *testing.T) {
			f := newFleet(t, 2, poll, bellwether.Options{
				TTL: 100 * time.Millisecond, StaleWhileRevalidate: time.Second, Fleet: bellwether.Fleet{NearTTL: 200 * time.Millisecond},
			})
			waiter := f.processes[1] // never the holder
			waiter.locker.set(on(answer(&driver.HeldError{Key: "k", Until: time.Now().Add(10 * time.Second)}), "acquire"))
			f.origin.fail = func(n int) error {
				if n == 2 {
					return fmt.Errorf("the database: %w", context.DeadlineExceeded)
				}
				return nil
			}
			epoch := time.Now()
			at := func(ms int, build time.Duration) {
				time.Sleep(time.Until(epoch.Add(time.Duration(ms) * time.Millisecond)))
				f.origin.set(func(o *source) { o.build = build })
				f.get(1, "k")
			}
			at(0, 0)                       // v1
			at(120, 80*time.Millisecond)   // v1, stale: the holder's load fails at 200 ms
			at(280, 1400*time.Millisecond) // v1, stale: the holder loads v3
			time.Sleep(570 * time.Millisecond)
			if silent {
				waiter.store.set(on(blackHole, "get"))
				time.Sleep(250 * time.Millisecond)
				waiter.store.set(nil)
			}
			time.Sleep(time.Until(epoch.Add(1110 * time.Millisecond))) // v1 has expired
			got := f.get(1, "k")
			if len(got.failed) > 0 || got.values["v1"] > 0 {
				t.Errorf("%v, %v; want new values", got.values, got.failed)
			}
		})
	}
}

// The store refuses the claim of a load that fails. Without an epoch: no commit, and no second load.
func TestFailures_RefusedClaim(t *testing.T) {
	for _, before := range []string{"stale", "nothing"} {
		inBubble(t, before, func(t *testing.T) {
			f := newFleet(t, 2, push, bellwether.Options{TTL: time.Second, StaleIfError: time.Hour})
			if before == "stale" {
				f.processes[0].Get(t.Context(), "k")
				time.Sleep(2 * time.Second)
			}
			loads := 0
			f.origin.set(func(o *source) {
				loads, o.build = o.loads, 3*time.Second
				o.fail = func(int) error { return errOrigin }
			})
			p := f.processes[1]
			p.store.set(on(refuse, "claim"))
			time.AfterFunc(2*time.Second, func() { p.store.set(nil) })
			v, err := p.Get(t.Context(), "k")
			if want := map[string]string{"stale": "v1"}[before]; v != want || err == nil == (want == "") {
				t.Errorf("Get = %q, %v; want the value from before if there is one", v, err)
			}
			f.origin.set(func(o *source) {
				if o.loads-loads != 1 {
					t.Errorf("%d loads, want 1", o.loads-loads)
				}
			})
			if n := p.store.count("commit"); n != 0 {
				t.Errorf("%d commits without an epoch, want 0", n)
			}
		})
	}
}

// A load of a new key fails, and finds a value that was set meanwhile, and is stale.
func TestFailures_SetMeanwhile(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{TTL: 100 * time.Millisecond, StaleIfError: time.Hour})
		f.origin.fail = func(int) error { return errOrigin }
		f.each(func(p *process) { p.store.set(on(refuse, "notice")) })
		time.AfterFunc(500*time.Millisecond, func() {
			if err := f.processes[1].Set(t.Context(), "k", "set"); err != nil {
				t.Error(err)
			}
		})
		wantValue(t, f.processes[0], "k", "set")
	})
}

// A key is invalidated elsewhere while a claim fails. Beside the failed load, for which the store answers, nothing is left
// of the value from before.
func TestFailures_InvalidatedBesideARefusedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: time.Minute, MaxErrorTTL: time.Minute})
		p, q := f.processes[0], f.processes[1]
		p.Get(t.Context(), "k")
		time.Sleep(2 * time.Second)
		f.origin.set(func(o *source) {
			o.build = 100 * time.Millisecond
			o.fail = func(int) error { return errOrigin }
		})
		p.store.set(on(func(ctx context.Context, op string) error {
			time.Sleep(300 * time.Millisecond)
			return errRefused
		}, "claim"))
		go p.Get(t.Context(), "k")
		synctest.Wait()
		invalidate(t, q, "k")
		time.Sleep(1100 * time.Millisecond) // longer than NearTTL
		if v, err := p.Get(t.Context(), "k"); !errors.Is(err, errOrigin) {
			t.Errorf("Get = %q, %v after the invalidation", v, err)
		}
	})
}

// The notice of an earlier invalidation that arrives during a failed load's look leaves the failure.
func TestFailures_LateNoticeOfAnEarlierInvalidation(t *testing.T) {
	for _, where := range []string{"here", "elsewhere"} {
		inBubble(t, where, func(t *testing.T) {
			o := bellwether.Options{TTL: time.Hour, ErrorTTL: time.Minute, MaxErrorTTL: time.Minute}
			f := newFleet(t, 2, notices, o)
			p, q := f.processes[0], f.processes[1]
			f.origin.set(func(s *source) {
				s.build = 0
				s.fail = func(int) error { return errOrigin }
			})
			p.store.trip, q.store.trip = time.Millisecond, time.Millisecond
			p.store.set(on(takes(2500*time.Microsecond), "notice"))
			r := p
			if where == "elsewhere" {
				r = q
			}
			if err := r.Invalidate(t.Context(), "k"); err != nil {
				t.Error(err)
			}
			p.Get(t.Context(), "k")
			f.wantLoads(t, 1)
		})
	}
}

// During the look of a failed load, a sweep of other keys that the store refuses leaves the failure.
func TestFailures_SweepHereOfOtherKeys(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		o := bellwether.Options{TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: time.Minute, MaxErrorTTL: time.Minute, Sweeps: true}
		f := newFleet(t, 1, push, o)
		p := f.processes[0]
		p.Get(t.Context(), "k")
		time.Sleep(2 * time.Second)
		f.origin.set(func(s *source) {
			s.build = 100 * time.Millisecond
			s.fail = func(int) error { return errOrigin }
		})
		until := fromNow()
		var call sync.WaitGroup
		call.Go(func() { p.Get(t.Context(), "k") })
		until(90)
		p.store.set(on(takes(300*time.Millisecond), "get"))
		until(200) // the look: 100 to 400 ms
		p.store.set(on(refuse, "claim", "commit", "invalidate"))
		if err := p.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"other"}}); err == nil {
			t.Error("the store has taken the sweep")
		}
		p.store.set(nil)
		call.Wait()
		time.Sleep(time.Second)
		f.wantLoads(t, 2)
	})
}

// Without a store, the next load follows at once after an invalidated load that overruns its time.
func TestFailures_InvalidatedWithoutAStore(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		o := bellwether.Options{RebuildTimeout: time.Second, MaxWait: time.Minute}
		var loads atomic.Int64
		c := loaderOf(t, func(ctx context.Context, r bellwether.Request[string]) (bellwether.Result[string], error) {
			if loads.Add(1) == 1 {
				time.Sleep(3 * time.Second)
			}
			return bellwether.Result[string]{Value: "v"}, nil
		}, o)
		began := time.Now()
		time.AfterFunc(500*time.Millisecond, func() { c.Invalidate(context.Background(), "k") })
		v, err := c.Get(t.Context(), "k")
		if took := time.Since(began); took != time.Second || loads.Load() != 2 {
			t.Errorf("%q, %v after %v and %d loads", v, err, took, loads.Load())
		}
		time.Sleep(10 * time.Second)
	})
}

// A reply that was slow makes a failure look older than it is. The process believes the better reply.
func TestFailures_SlowReplyThenQuick(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{ErrorTTL: time.Minute, MaxErrorTTL: time.Minute, Fleet: bellwether.Fleet{NearTTL: -1}})
		f.origin.build = 10 * time.Millisecond
		f.origin.fail = func(int) error { return errOrigin }
		f.processes[0].Get(t.Context(), "k")
		there, err := f.store.Get(t.Context(), "test:k")
		if err != nil || there.Failures == 0 {
			t.Fatalf("%+v, %v, want a failure", there, err)
		}
		due := time.Now().Add(there.RetryAge - there.Age)
		p := f.processes[1]
		slow := func(e *driver.Entry) { e.Age += 2 * time.Second }
		p.store.tamper.Store(&slow)
		p.Get(t.Context(), "k")
		p.store.tamper.Store(nil)
		time.Sleep(time.Until(due) - time.Second)
		if p.Get(t.Context(), "k"); f.origin.loads != 1 {
			t.Errorf("%d loads a second before the next try is due, want 1", f.origin.loads)
		}
		time.Sleep(time.Second)
		if p.Get(t.Context(), "k"); f.origin.loads != 2 {
			t.Errorf("%d loads when the next try is due, want 2", f.origin.loads)
		}
	})
}

type advice time.Duration

func (advice) Error() string               { return "busy" }
func (a advice) RetryAfter() time.Duration { return time.Duration(a) }

func TestFailures_RetryAfter(t *testing.T) {
	for pause, wantLoads := range map[time.Duration]int{20 * time.Second: 1, 0: 3, -time.Second: 3} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3, notices, bellwether.Options{})
			f.origin.set(func(o *source) { o.fail = func(int) error { return fmt.Errorf("loading: %w", advice(pause)) } })
			for _, p := range f.processes {
				if _, err := p.Get(t.Context(), "k"); err == nil {
					t.Error("no error")
				}
				time.Sleep(5 * time.Second)
			}
			f.wantLoads(t, wantLoads)
			time.Sleep(10 * time.Second) // with the jitter of a tenth
			f.origin.set(func(o *source) { o.fail = nil })
			f.get(1, "k")
			f.wantLoads(t, wantLoads+1)
		})
	}
}

// The longest possible pause reaches the other processes undiminished.
func TestFailures_LongestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{})
		f.origin.build, f.origin.freshness = 0, &bellwether.Freshness{Age: time.Hour, TTL: time.Hour + time.Second, StaleIfError: time.Minute}
		f.origin.fail = func(n int) error {
			if n == 1 {
				return nil
			}
			return advice(1<<63 - 1)
		}
		encoded := func(e *driver.Entry) { e.Decode("k", e.Append(nil, "k")) }
		p, other := f.processes[0], f.processes[1]
		other.store.tamper.Store(&encoded)
		p.Get(t.Context(), "k")
		time.Sleep(10 * time.Second)
		p.Get(t.Context(), "k")
		time.Sleep(time.Second)
		v, err := other.Get(t.Context(), "k")
		synctest.Wait() // a third load would run in the background
		if loads, _ := f.origin.count(); v != "v1" || err != nil || loads != 2 {
			t.Errorf("%q, %v after %d loads, want the stale value and no third load", v, err, loads)
		}
	})
}

// Without a page to serve, the pauses between the runs of a failing handler double, for a 503 as for a panic.
func TestFailures_PausesOfAHandlerDouble(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter){
		"503":   func(w http.ResponseWriter) { http.Error(w, "sorry", http.StatusServiceUnavailable) },
		"panic": func(http.ResponseWriter) { panic("origin") },
	} {
		t.Run(name, func(t *testing.T) {
			const took, step = 10 * time.Millisecond, 20 * time.Millisecond
			var (
				mu    sync.Mutex
				begin time.Time
				asked []time.Duration
			)
			h := func(w http.ResponseWriter, _ *http.Request) {
				mu.Lock()
				asked = append(asked, time.Since(begin))
				mu.Unlock()
				time.Sleep(took)
				fail(w)
			}
			inPairs(t, bellwether.HTTPOptions{TTL: time.Minute}, h, func(t *testing.T, p pair) {
				begin, asked = time.Now(), nil
				for time.Since(begin) < 20*time.Second {
					for _, s := range []*site{p.first, p.second} {
						w := s.get("http://a/p")
						if w.Code == http.StatusOK {
							t.Fatalf("status %d of a broken handler", w.Code)
						}
						age, _ := strconv.Atoi(cmp.Or(w.Header().Get("Age"), "0"))
						if since := time.Since(begin) - asked[len(asked)-1]; name == "503" && (w.Header().Get("Cache-Control") != "" || age != int((since-took)/time.Second) && since > took) {
							t.Errorf("%v after the handler's header: Age %d, Cache-Control %q", since-took, age, w.Header().Get("Cache-Control"))
						}
					}
					time.Sleep(step)
				}
				for i := 1; i < len(asked); i++ {
					full := min(time.Second<<(i-1), 5*time.Second)
					if gap := asked[i] - asked[i-1] - took; gap < full/2 || gap > full+2*step {
						t.Errorf("pause %d is %v, want %v to %v; the handler was asked at %v", i, gap, full/2, full, asked)
						break
					}
				}
				if n := len(asked); n < 5 || n > 10 {
					t.Errorf("the handler was asked at %v", asked)
				}
			})
		})
	}
}

// Errors within a pause, of clients that decline the stored error, do not make the next pauses longer.
func TestFailures_PausesGrowOncePerPause(t *testing.T) {
	const took, step = 10 * time.Millisecond, 20 * time.Millisecond
	var last atomic.Int64
	h := func(w http.ResponseWriter, _ *http.Request) {
		last.Store(time.Now().UnixNano())
		time.Sleep(took)
		http.Error(w, "sorry", http.StatusServiceUnavailable)
	}
	inPairs(t, bellwether.HTTPOptions{TTL: time.Minute}, h, func(t *testing.T, p pair) {
		for range 5 {
			p.first.get("http://a/p", "Cache-Control", "no-cache")
			p.second.get("http://a/p", "Cache-Control", "no-cache")
		}
		from := last.Load()
		if n := p.calls(); n != 10 {
			t.Fatalf("%d runs for 10 clients that decline the error", n)
		}
		for last.Load() == from {
			p.second.get("http://a/p")
			time.Sleep(step)
		}
		if gap := time.Duration(last.Load() - from); gap < time.Second/2 || gap > time.Second+took+2*step {
			t.Errorf("the handler was asked again after %v, want 0.5 s to 1 s", gap)
		}
	})
}

// An early refresh does not shorten the pause after an error.
func TestFailures_NoEarlyRefreshInThePause(t *testing.T) {
	const took, step = 5 * time.Second, 20 * time.Millisecond
	var end, shortest atomic.Int64
	h := func(w http.ResponseWriter, _ *http.Request) {
		shortest.Store(min(shortest.Load(), time.Now().UnixNano()-end.Load()))
		time.Sleep(took)
		end.Store(time.Now().UnixNano())
		http.Error(w, "sorry", http.StatusServiceUnavailable)
	}
	inPairs(t, bellwether.HTTPOptions{TTL: time.Minute, EarlyRefresh: 1}, h, func(t *testing.T, p pair) {
		end.Store(0)
		shortest.Store(int64(time.Hour))
		for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(step) {
			p.first.get("http://a/p")
			p.second.get("http://a/p")
		}
		if gap := time.Duration(shortest.Load()); gap < time.Second/2 || gap > 5*time.Second {
			t.Errorf("the shortest pause after an error is %v, want 0.5 s at least", gap)
		}
	})
}

// A load's failure replaces the mark of a writer that began before the load: no other process loads to fail.
func TestFailure_ReplacesAnEarlierMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{ErrorTTL: 10 * time.Second})
		f.origin.fail = func(int) error { return errOrigin }
		_, earlier, _ := f.store.Claim(t.Context(), "test:k")
		time.AfterFunc(500*time.Millisecond, func() {
			mark := driver.Entry{Kind: driver.KindUnshared, Epoch: earlier, TTL: time.Hour}
			if err := f.store.Commit(context.Background(), "test:k", mark); err != nil {
				t.Error(err)
			}
		})
		f.processes[0].Get(t.Context(), "k")
		if v, err := f.processes[1].Get(t.Context(), "k"); err == nil {
			t.Errorf("Get = %q, want the failure", v)
		}
		f.wantLoads(t, 1)
	})
}

// The reads of a process reach a copy of the store that lags. A failure neither brings a value from before an
// invalidation back into the store, nor takes the stale value away.
func TestFailures_BesideACopyThatLags(t *testing.T) {
	for name, face := range map[string]func(*wiredStore) driver.Store{
		"in the store":          (*wiredStore).fencing,
		"in a store with Touch": (*wiredStore).full,
	} {
		for _, invalidated := range []bool{true, false} {
			inBubble(t, fmt.Sprintf("%s, invalidated %t", name, invalidated), func(t *testing.T) {
				store := wiredTo(memstore.New())
				origin := &source{}
				c := loaderOf(t, origin.result, bellwether.Options{TTL: time.Second, StaleIfError: time.Hour, Fleet: bellwether.Fleet{Store: face(store), Locker: locallock.New()}})
				c.Get(t.Context(), "k")
				var behind driver.Entry
				if invalidated {
					behind, _ = store.Get(t.Context(), "test:k")
					behind.Age = 2 * time.Second
					c.Invalidate(t.Context(), "k")
				}
				time.Sleep(2 * time.Second)
				store.behind.Store(&behind)
				origin.set(func(o *source) { o.fail = func(int) error { return errOrigin } })
				for _, when := range []string{"during the lag", "after the lag"} {
					if v, err := c.Get(t.Context(), "k"); invalidated != (err != nil) {
						t.Errorf("%s: Get = %q, %v", when, v, err)
					}
					store.behind.Store(nil)
					time.Sleep(time.Minute)
				}
			})
		}
	}
}
