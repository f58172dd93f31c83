package bellwether_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file attacks the log of sweeps: what happens between any two of its
// steps, to the log itself, and to those who read and write it.

func sweep(t *testing.T, s *site, m bellwether.Match) {
	t.Helper()
	if err := s.mw.InvalidateMatching(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// A handler that fails is asked once for those who wait, whatever was swept
// before.
func TestSweep_FailuresAreRemembered(t *testing.T) {
	for name, store := range map[string]bellwether.Store{"a store": quiet{memstore.New()}, "no store": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := sites(t, 1, store, func(http.ResponseWriter, *http.Request) {
					time.Sleep(10 * time.Millisecond)
					panic("no luck")
				})[0]
				for _, when := range []string{"before any sweep", "after one"} {
					calls := s.calls.Load()
					for range 3 {
						if w := s.get("http://example.com/"); w.Code != -1 && w.Code < 500 {
							t.Errorf("%s: %d", when, w.Code)
						}
					}
					time.Sleep(100 * time.Millisecond)
					if n := s.calls.Load() - calls; n != 1 {
						t.Errorf("%s: %d calls of the handler, want 1", when, n)
					}
					sweep(t, s, bellwether.Match{Prefixes: []string{"http://example.com"}})
					time.Sleep(5 * time.Minute) // it is forgotten
				}
			})
		})
	}
}

// What was stale when it was swept is offered to nobody while the rebuild
// behind it runs, neither here nor elsewhere.
func TestSweep_WhileStaleIsServed(t *testing.T) {
	for name, match := range map[string]bellwether.Match{
		"tag":    {Tags: []string{"x"}},
		"prefix": {Prefixes: []string{"http://example.com/"}},
	} {
		for notified, store := range map[string]func() bellwether.Store{
			"told": func() bellwether.Store { return memstore.New() }, "quiet": func() bellwether.Store { return quiet{memstore.New()} },
		} {
			for by, sweeper := range []string{"by the holder", "by one who waits"} {
				t.Run(name+"/"+notified+"/"+sweeper, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						var n, slow = 0, time.Duration(0)
						var mu sync.Mutex
						all := sites(t, 2, store(), func(w http.ResponseWriter, r *http.Request) {
							mu.Lock()
							n++
							body, build := fmt.Sprint(n), slow
							mu.Unlock()
							time.Sleep(build)
							w.Header().Set("Cache-Control", "max-age=2, stale-while-revalidate=600")
							w.Header().Set("Surrogate-Key", "x")
							fmt.Fprint(w, body)
						})
						for _, s := range all {
							s.get("http://example.com/")
						}
						mu.Lock()
						slow = 10 * time.Second
						mu.Unlock()
						time.Sleep(3 * time.Second)
						for _, s := range all {
							if got := s.get("http://example.com/").Body.String(); got != "1" {
								t.Fatalf("stale: got %s, want 1", got)
							}
						}
						time.Sleep(2 * time.Second) // both wait for it, with the stale one at hand
						sweep(t, all[by], match)
						for i, s := range []*site{all[by], all[1-by]} {
							if i == 1 {
								time.Sleep(1001 * time.Millisecond)
							}
							ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
							w := s.do(request(http.MethodGet, "http://example.com/").WithContext(ctx))
							cancel()
							if w.Body.String() == "1" {
								t.Errorf("served what was swept: by another process: %v", i == 1)
							}
						}
						time.Sleep(30 * time.Second)
					})
				})
			}
		}
	}
}

// Two sweeps at one moment are both heeded, also by the process that has no
// store to write them to, and also by what was being made.
func TestSweep_AtOneMomentInOneProcess(t *testing.T) {
	for round := range 200 {
		synctest.Test(t, func(t *testing.T) {
			s := sites(t, 1, nil, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				w.Header().Set("Cache-Control", "max-age=3600")
				w.Header().Set("Surrogate-Key", r.URL.Query().Get("tag"))
				fmt.Fprint(w, time.Now().UnixNano())
			})[0]
			const n = 8
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { s.get(fmt.Sprintf("http://example.com/?tag=%d", i)) })
			}
			time.Sleep(time.Second / 2)
			start := make(chan struct{})
			for i := range n {
				wg.Go(func() {
					<-start
					s.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{fmt.Sprint(i)}})
				})
			}
			synctest.Wait()
			swept := time.Now().UnixNano()
			close(start)
			wg.Wait()
			for i := range n {
				var made int64
				fmt.Sscan(s.get(fmt.Sprintf("http://example.com/?tag=%d", i)).Body.String(), &made)
				if made < swept+int64(time.Second) {
					t.Fatalf("round %d: tag %d was swept and is served", round, i)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

// However much is swept, the log stays a value that stores take.
func TestSweep_LogStaysSmall(t *testing.T) {
	long := strings.Repeat("p", 8000)
	for name, tt := range map[string]struct {
		rounds int
		match  func(i int) bellwether.Match
	}{
		"long prefixes": {140, func(i int) bellwether.Match {
			return bellwether.Match{Prefixes: []string{fmt.Sprintf("http://example.com/%d%s", i, long)}}
		}},
		"long tags": {20, func(i int) bellwether.Match {
			return bellwether.Match{Tags: []string{fmt.Sprint(i, strings.Repeat("t", 300<<10))}}
		}},
		"a tag of 1 MB": {20, func(i int) bellwether.Match { return bellwether.Match{Tags: []string{strings.Repeat("t", 1<<20)}} }},
		"tags of hostile bytes": {20, func(i int) bellwether.Match {
			return bellwether.Match{Tags: []string{fmt.Sprint(i, strings.Repeat("<\u2028\xff", 10<<10))}}
		}},
		"many at a time": {20, func(i int) bellwether.Match {
			var m bellwether.Match
			for j := range 2000 {
				m.Tags = append(m.Tags, fmt.Sprint(i, "-", j))
			}
			return m
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 1<<20 - 2<<10
				largest := 0
				store := &wiredStore{wire: &wire{}, store: memstore.New(), limit: func(e bellwether.Entry) error {
					if largest = max(largest, len(e.Value)); len(e.Value) > limit {
						return bellwether.ErrTooLarge
					}
					return nil
				}}
				all := sites(t, 2, store, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=36000")
					w.Header().Set("Surrogate-Key", r.URL.Query().Get("tag"))
					fmt.Fprint(w, r.URL.Path)
				})
				all[0].get("http://example.com/kept")
				for i := range tt.rounds {
					if err := all[0].mw.InvalidateMatching(t.Context(), tt.match(i)); err != nil {
						t.Fatalf("sweep %d: %v", i, err)
					}
				}
				t.Logf("the largest log has %d bytes", largest)
				// It works still, for all.
				for _, s := range all {
					s.get("http://example.com/?tag=last")
				}
				calls := all[1].calls.Load()
				sweep(t, all[0], bellwether.Match{Tags: []string{"last"}})
				time.Sleep(1001 * time.Millisecond)
				all[1].get("http://example.com/?tag=last")
				if n := all[1].calls.Load() - calls; n != 1 {
					t.Errorf("%d calls after the last sweep, want 1", n)
				}
			})
		})
	}
}

// Tags and prefixes are bytes, not text: other processes read what was meant.
func TestSweep_BytesThatAreNoUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tag = "caf\xe9"
		all := sites(t, 2, quiet{memstore.New()}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=36000")
			w.Header().Set("Surrogate-Key", tag)
			fmt.Fprint(w, "v")
		})
		for _, s := range all {
			s.get("http://example.com/")
		}
		sweep(t, all[0], bellwether.Match{Tags: []string{tag}})
		time.Sleep(1001 * time.Millisecond)
		before := all[1].calls.Load()
		all[1].get("http://example.com/")
		if n := all[1].calls.Load() - before; n != 1 {
			t.Errorf("%d calls after the tag was swept elsewhere, want 1", n)
		}
	})
}

// A POST's response that is kept for the next GET is none if it was swept while
// it was made; what was swept before the request does not concern it.
func TestSweep_PostsResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sites(t, 1, nil, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				w.Header().Set("Content-Location", r.URL.String())
				defer time.Sleep(time.Second)
			}
			w.Header().Set("Cache-Control", "max-age=3600")
			fmt.Fprint(w, r.Method)
		})[0]
		all := bellwether.Match{Prefixes: []string{"http://example.com/"}}
		const url = "http://example.com/"
		sweep(t, s, all)
		s.do(httptest.NewRequest(http.MethodPost, url, nil))
		if got := s.get(url).Body.String(); got != http.MethodPost {
			t.Fatalf("after a POST: %s, want its response", got)
		}
		sweep(t, s, bellwether.Match{Prefixes: []string{"http://example.org/"}})
		if got := s.get(url).Body.String(); got != http.MethodPost {
			t.Errorf("after another host was swept: %s, want the POST's response", got)
		}
		time.AfterFunc(time.Second/2, func() { sweep(t, s, all) })
		s.do(httptest.NewRequest(http.MethodPost, url, nil))
		if got := s.get(url).Body.String(); got != http.MethodGet {
			t.Errorf("a %s's response is served that was swept while it was made", got)
		}
	})
}

// A request that takes only what is kept does not get what was swept elsewhere.
func TestSweep_OnlyIfCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu    sync.Mutex
			calls int
		)
		all := sites(t, 2, quiet{memstore.New()}, tagged(&calls, &mu))
		for _, s := range all {
			s.get("http://example.com/?tag=x")
		}
		synctest.Wait()
		sweep(t, all[0], bellwether.Match{Tags: []string{"x"}})
		time.Sleep(1001 * time.Millisecond)
		if w := all[1].get("http://example.com/?tag=x", "Cache-Control", "only-if-cached"); w.Code != http.StatusGatewayTimeout {
			t.Errorf("%d %s: it was swept a second ago", w.Code, w.Body)
		}
	})
}

// What is swept softly while it is made, and has no stale windows, is gone.
func TestSweep_SoftDuringALoad(t *testing.T) {
	for name, store := range map[string]bellwether.Store{"a store": quiet{memstore.New()}, "no store": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				s := sites(t, 1, store, func(w http.ResponseWriter, r *http.Request) {
					n++
					body := fmt.Sprint(n)
					time.Sleep(5 * time.Second)
					w.Header().Set("Cache-Control", "max-age=3600")
					fmt.Fprint(w, body)
				})[0]
				go s.get("http://example.com/")
				time.Sleep(time.Second)
				sweep(t, s, bellwether.Match{Prefixes: []string{"http://example.com/"}, Soft: true})
				if got := s.get("http://example.com/").Body.String(); got != "2" {
					t.Errorf("a request after the sweep got response %s, which was begun before it", got)
				}
			})
		})
	}
}

// The holder of the log's lease is gone, or the store does not answer: no
// request waits longer for the log than for an engine that does not answer.
// A log whose bytes are none takes everything with it, and is begun anew.
// A sweep is done only if the log's lease has held until it was written; who
// cannot know that writes once more.
// Without its store a process drops also what it is making.
