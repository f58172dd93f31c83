package bellwether_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// numbered answers with the number of its call and this Cache-Control.
func numbered(cacheControl string, fields ...string) http.HandlerFunc {
	var n atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		v := n.Add(1)
		w.Header().Set("Cache-Control", cacheControl)
		for i := 0; i < len(fields); i += 2 {
			w.Header().Add(fields[i], fields[i+1])
		}
		fmt.Fprint(w, v)
	}
}

// RFC 9111 section 5.2.1, with a response that is 30 s old.
func TestRequest_Directives(t *testing.T) {
	const fresh, stale = "max-age=60", "max-age=10, stale-if-error=3600"
	for _, test := range []struct {
		response, request string
		age               string // Age of the response when it arrives
		want              string // number of the handler's call
	}{
		{fresh, "", "", "1"},
		{fresh, "no-cache", "", "2"},
		{fresh, "max-age=29", "", "2"},
		{fresh, "max-age=30", "", "1"},
		{fresh, "min-fresh=31", "", "2"},
		{fresh, "no-store", "", "2"},
		{fresh, "only-if-cached", "", "1"},
		{"max-age=600", "max-age=500", "500", "2"},
		{stale, "", "", "2"},
		{stale, "max-stale", "", "1"},
		{stale, "max-stale=19", "", "2"},
		{stale, "max-age=29, max-stale=60", "", "2"},
		{stale + ", must-revalidate", "max-stale", "", "2"},
		{"max-age=10, stale-while-revalidate=60", "max-stale=5", "", "2"},
		{"max-age=10, stale-while-revalidate=60", "", "", "1"},
	} {
		inBubble(t, test.response+"/"+test.request, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, numbered(test.response, "Age", test.age))
			s.get("http://a/p")
			time.Sleep(30 * time.Second)
			if w := s.get("http://a/p", "Cache-Control", test.request); w.Code != 200 || w.Body.String() != test.want {
				t.Errorf("got %d %q, want %s", w.Code, w.Body, test.want)
			}
			if n, stale := s.mw.Stats().Stale, test.want == "1" && test.response != fresh; (n > 0) != stale {
				t.Errorf("%d stale answers are counted, want some: %v", n, stale)
			}
		})
	}
}

// A request with only-if-cached does not call the handler (RFC 9111 section 5.2.1.7).
func TestRequest_OnlyIfCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		options := bellwether.HTTPOptions{EarlyRefresh: 1e9, Fleet: bellwether.Fleet{Store: store}}
		page := numbered("max-age=60, stale-while-revalidate=60")
		s := newSite(t, options, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Millisecond) // a rebuild with a duration, which is due early
			page(w, r)
		})
		w := s.get("http://a/p", "Cache-Control", "only-if-cached")
		if w.Code != 504 || w.Header().Get("Cache-Control") != "no-store" || w.Header()["Retry-After"] != nil {
			t.Errorf("nothing stored: %d %v, want 504", w.Code, w.Header())
		}
		s.get("http://a/p")
		synctest.Wait() // until it is stored
		s.calls.Store(0)
		for range 2 {
			if w := s.get("http://a/p", "Cache-Control", "only-if-cached"); w.Code != 200 || w.Body.String() != "1" {
				t.Errorf("stored: %d %q", w.Code, w.Body)
			}
			if w := s.get("http://a/p", "Cache-Control", "only-if-cached, min-fresh=61"); w.Code != 504 {
				t.Errorf("stored, but not fresh enough: %d", w.Code)
			}
			time.Sleep(70 * time.Second) // in its stale window
		}
		other := newSite(t, options, numbered("max-age=60"))
		if w := other.get("http://a/p", "Cache-Control", "only-if-cached, max-stale=100"); w.Code != 504 {
			t.Errorf("past all windows in the store: %d %q", w.Code, w.Body)
		}
		s.wantCalls(t, 0)
		alone := newSite(t, bellwether.HTTPOptions{}, numbered("max-age=60"))
		alone.get("http://a/p")
		time.Sleep(70 * time.Second) // past all windows, and kept for max-stale
		if w := alone.get("http://a/p", "Cache-Control", "only-if-cached"); w.Code != 504 {
			t.Errorf("past all windows in this process: %d %q", w.Code, w.Body)
		}
		s.get("http://a/p")
		synctest.Wait()
		if w := other.get("http://a/p", "Cache-Control", "only-if-cached"); w.Code != 200 || w.Body.String() != "2" {
			t.Errorf("in the store alone: %d %q", w.Code, w.Body)
		}
		other.wantCalls(t, 0)
	})
}

// A thousand reloads share one load. Other clients get the stored page meanwhile.
func TestRequest_ReloadsCollapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := numbered("max-age=60")
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			page(w, r)
		})
		s.get("http://a/p")
		reload := func(int) *http.Request { return request("GET", "http://a/p", "Cache-Control", "no-cache") }
		done := make(chan struct{})
		go func() {
			defer close(done)
			wantBurst(t, s.burst(1000, reload), 1000, "200 2 1s")
		}()
		time.Sleep(500 * time.Millisecond)
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 1 0s")
		// These come after that load has begun, so they share the next load.
		wantBurst(t, s.burst(50, reload), 50, "200 3 1.5s")
		<-done
		s.wantCalls(t, 3)
	})
}

// Reloads in several processes during a load share the fleet's next load.
func TestRequest_ReloadsCollapseInAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := numbered("max-age=60")
		all := sites(t, 8, memstore.New(), func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			page(w, r)
		})
		loads := func() (n int32) {
			for _, s := range all {
				n += s.calls.Load()
			}
			return n
		}
		all[0].get("http://a/p")
		for _, then := range []time.Duration{0, 8 * time.Millisecond, 500 * time.Millisecond} {
			before := loads()
			var wg sync.WaitGroup
			for _, s := range all {
				wg.Go(func() {
					began := time.Now()
					w := s.get("http://a/p", "Cache-Control", "no-cache")
					if took := time.Since(began); w.Code != http.StatusOK || took > 2100*time.Millisecond {
						t.Errorf("%d %q after %v, want at most the load that runs and the next", w.Code, w.Body, took)
					}
				})
				time.Sleep(then / 8)
			}
			wg.Wait()
			// Reloads of one instant may all come before the first load begins.
			if n := loads() - before; n != 2 && !(n == 1 && then == 0) {
				t.Errorf("%d loads for reloads within %v, want two", n, then)
			}
		}
	})
}

// A reload gets a page that was loaded after it came, also with a slow store without notices.
func TestRequest_ReloadIsOfNoEarlierLoad(t *testing.T) {
	for _, late := range []time.Duration{0, 50 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			began := func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				now := time.Now()
				time.Sleep(time.Second)
				fmt.Fprint(w, now.UnixNano())
			}
			store, locker := memstore.New(), polling(locallock.New())
			slow := wiredTo(store)
			var all []*site
			for _, s := range []driver.Store{quiet{store}, quiet{store}, quiet{slow}} {
				all = append(all, newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: s, Locker: locker}}, began))
			}
			time.Sleep(time.Second)
			slow.reply.Store(int64(late))
			var wg sync.WaitGroup
			reload := func(s *site) {
				wg.Go(func() {
					came := time.Now()
					w := s.get("http://a/p", "Cache-Control", "no-cache")
					if n, err := strconv.ParseInt(w.Body.String(), 10, 64); err != nil || n < came.UnixNano() {
						t.Errorf("replies after %v: %d, loaded %v before the request", late, w.Code, came.Sub(time.Unix(0, n)))
					}
				})
			}
			reload(all[0])
			reload(all[1])
			for range 600 {
				reload(all[2])
				time.Sleep(5 * time.Millisecond)
			}
			wg.Wait()
		})
	}
}

func TestRequest_MaxStaleIsNoWayAroundAnInvalidation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := quiet{memstore.New()} // without notices
		o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: silent}}
		page := numbered("max-age=10, stale-if-error=3600")
		a, b := newSite(t, o, page), newSite(t, o, page)
		a.get("http://a/p")
		time.Sleep(20 * time.Second)
		invalidate(t, b.mw, "http://a/p")
		time.Sleep(2 * time.Second)
		a.wantBody(t, "2", "http://a/p", "Cache-Control", "max-stale") // the stored page was invalidated
	})
}

// A body above MaxBodyBytes waits for the clients that read it, and not for a reload.
func TestRequest_ReloadHoldsUpNoBodyOverTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 100}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Write(make([]byte, 50))
			time.Sleep(time.Second)
			w.Write(make([]byte, 500))
		})
		start := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			w := s.get("http://a/p")
			if took := time.Since(start); w.Body.Len() != 550 || took != time.Second {
				t.Errorf("the first client got %d bytes in %v, want all in 1s", w.Body.Len(), took)
			}
		}()
		time.Sleep(500 * time.Millisecond)
		if w := s.get("http://a/p", "Cache-Control", "no-cache"); w.Body.Len() != 550 {
			t.Errorf("the reload got %d bytes", w.Body.Len())
		}
		<-done
	})
}

// only-if-cached does not call the handler, even with Authorization and beside a remembered failure.
func TestRequest_OnlyIfCachedIsNeverPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{header: "max-age=1, stale-if-error=60", fail: func(http.ResponseWriter) { panic(http.ErrAbortHandler) }}
		s := newSite(t, bellwether.HTTPOptions{}, f.ServeHTTP)
		s.get("http://a/p")
		time.Sleep(2 * time.Second)
		f.broken.Store(true)
		s.get("http://a/p") // fails, and the failure is remembered
		s.calls.Store(0)
		if w := s.get("http://a/p", "Cache-Control", "only-if-cached", "Authorization", "me"); w.Code != 504 {
			t.Errorf("%d %v, want 504", w.Code, w.Header())
		}
		s.wantCalls(t, 0)
	})
}

// crowded returns a site with a stored /c and, after pause, a full queue. done waits for the other pages.
func crowded(t *testing.T, store driver.Store, control string, pause time.Duration) (s *site, done func()) {
	t.Helper()
	o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}, Limits: bellwether.Limits{MaxRebuilds: 1, MaxQueued: 1}}
	s = newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/c" {
			time.Sleep(5 * time.Second)
		}
		w.Header().Set("Cache-Control", control)
		fmt.Fprint(w, "page")
	})
	s.get("http://a/c")
	time.Sleep(pause)
	var others sync.WaitGroup
	for _, path := range []string{"a", "b"} {
		others.Go(func() { s.get("http://a/" + path) })
		synctest.Wait()
	}
	return s, others.Wait
}

// A request beyond MaxQueued is answered at once, also with no-cache, max-age or Authorization.
func TestRequest_OverloadedForWhoWantsMore(t *testing.T) {
	for _, field := range [][]string{{"Cache-Control", "no-cache"}, {"Cache-Control", "max-age=0"}, {"Authorization", "me"}} {
		synctest.Test(t, func(t *testing.T) {
			store := wiredTo(memstore.New())
			s, done := crowded(t, store, "max-age=60", time.Second)
			store.reset()
			start := time.Now()
			w := s.get("http://a/c", field...)
			if calls := store.count(); time.Since(start) > time.Second || calls > 10 {
				t.Errorf("%v: %d after %v and %d calls of the store", field, w.Code, time.Since(start), calls)
			}
			done()
		})
	}
}

// Cache-Status is hit for a stale response that is served because of MaxQueued.
func TestRequest_StaleInAnOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, done := crowded(t, nil, "max-age=1, stale-if-error=60", 1500*time.Millisecond)
		if got, want := s.get("http://a/c").Header().Get("Cache-Status"), "Bellwether;hit;ttl=-1;detail=stale-if-error"; got != want {
			t.Errorf("Cache-Status %q, want %q", got, want)
		}
		done()
	})
}

// A response that expires during a slow store's reply counts as expired.
func TestRequest_OnlyIfCachedOfASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		handler := func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=1, must-revalidate")
			w.Header().Set("ETag", `"v"`)
			fmt.Fprint(w, "page")
		}
		o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store.full()}}
		first, second := newSite(t, o, handler), newSite(t, o, handler)
		first.get("http://a/p")
		time.Sleep(800 * time.Millisecond)
		store.set(on(takes(400*time.Millisecond), "get", "getmany"))
		w := second.get("http://a/p", "Cache-Control", "only-if-cached")
		if w.Code != http.StatusGatewayTimeout {
			t.Errorf("%d, %v; want 504: it is over and must not be served stale", w.Code, w.Header())
		}
	})
}

// only-if-cached does not call the handler for a page with a hit-for-miss record.
func TestRequest_OnlyIfCachedOfARecord(t *testing.T) {
	for _, cc := range []string{"private", "no-cache", "max-age=60"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", cc)
				w.Header().Set("ETag", `"e"`)
				io.WriteString(w, "x")
			})
			s.get("http://a/p")
			synctest.Wait()
			s.wantCalls(t, 1)
			for _, fields := range [][]string{
				{"Cache-Control", "only-if-cached"},
				{"Cache-Control", "only-if-cached", "Authorization", "Basic x"},
				{"Cache-Control", "only-if-cached, no-store"},
			} {
				w := s.get("http://a/p", fields...)
				if s.wantCalls(t, 0); w.Code != http.StatusGatewayTimeout && (cc != "max-age=60" || w.Code != http.StatusOK) {
					t.Errorf("%s, %v: %d", cc, fields, w.Code)
				}
			}
		})
	}
}

// Begun rebuilds of reset HTTP/2 streams go on. The others leave the queue, and other clients are next.
func TestRequest_FloodOfHTTP2StreamsThatAreReset(t *testing.T) {
	const slots = 128
	over := make(chan struct{}) // the rebuilds take as long as the flood
	s := newSite(t, bellwether.HTTPOptions{Limits: bellwether.Limits{MaxRebuilds: slots, MaxQueued: 1024}}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/first" {
			<-over
		}
		page(0, "page")(w, r)
	})
	var open atomic.Int64
	server := serveHTTP2(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		s.handler.ServeHTTP(w, r)
	}))
	client := server.Client()
	res, err := client.Get(server.URL + "/first") // one connection for all streams
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	var streams sync.WaitGroup
	for i := range 1300 {
		streams.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprint(server.URL, "/", i), nil)
			if res, err := client.Do(r); err == nil {
				res.Body.Close()
			}
		})
		if i%100 == 99 {
			streams.Wait() // a server accepts 250 concurrent streams of a connection
		}
	}
	streams.Wait()
	eventually(t, func() bool { return open.Load() == 0 }) // the server has seen the last reset
	close(over)
	for _, path := range []string{"/honest", "/another"} {
		began := time.Now()
		res, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if took := time.Since(began); res.StatusCode != http.StatusOK || string(body) != "page" || took > 3*time.Second {
			t.Errorf("%s: %d %q after %v, want the page at once", path, res.StatusCode, body, took)
		}
	}
	if n := s.calls.Load(); n > slots+3 {
		t.Errorf("%d runs of the handler for 1,300 streams that were reset, want the %d that had begun and three of an honest client", n, slots)
	}
}

// A request without a possible key is refused by net/http, or reaches the handler each time.
func TestRequest_OddOnesAreNotKept(t *testing.T) {
	for name, tt := range map[string]struct {
		request string
		status  int
	}{
		"two hosts":             {"GET /p HTTP/1.1\r\nHost: a\r\nHost: evil\r\n\r\n", 400},
		"no host":               {"GET /p HTTP/1.1\r\n\r\n", 400},
		"no host, 1.0":          {"GET /p HTTP/1.0\r\n\r\n", 200},
		"host with a parameter": {"GET /p HTTP/1.1\r\nHost: a;b\r\n\r\n", 200},
		"fat GET":               {"GET /p HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nq=evil", 200},
		"fat GET, chunked":      {"GET /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nq=evil\r\n0\r\n\r\n", 200},
		"fat HEAD":              {"HEAD /p HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nq=evil", 200},
		"longer than a key":     {"GET /" + strings.Repeat("p", 8<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", 200},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, quote)
			server := serve(t, s.handler)
			for range 3 {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				io.WriteString(conn, tt.request)
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || res.StatusCode != tt.status {
					t.Errorf("got %v, %v, want status %d", res, err, tt.status)
				}
				if err == nil && strings.HasPrefix(name, "fat GET") {
					if body, _ := io.ReadAll(res.Body); !strings.HasSuffix(string(body), "|q=evil") {
						t.Errorf("the handler did not get the body: %q", body)
					}
				}
				conn.Close()
			}
			if tt.status == 200 {
				s.wantCalls(t, 3)
			} else {
				s.wantCalls(t, 0)
			}
			if _, body, _ := raw(t, server.Listener.Addr().String(), "GET /p HTTP/1.1\r\nHost: a\r\n\r\n"); !strings.HasPrefix(body, "GET a /p /p|") || strings.Contains(body, "evil") {
				t.Errorf("the plain request then got %q", body)
			}
		})
	}
}

// A request that may only have a stored response, and may not have it, gets a 504 and nothing else.
func TestRequest_OnlyIfCachedPastTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, page(0, "page"))
		s.get("http://a/p")
		synctest.Wait()
		if w := s.get("http://a/p", "Cache-Control", "only-if-cached, no-store"); w.Code != 504 || strings.Contains(w.Body.String(), "page") {
			t.Errorf("%d %q, want 504", w.Code, w.Body)
		}
		s.wantCalls(t, 1)
	})
}

// While the store is silent, a page of the near tier answers requests of all kinds, also after NearTTL.
func TestRequest_PageAtHandWhileTheStoreIsSilent(t *testing.T) {
	for _, fields := range [][]string{nil, {"Cache-Control", "only-if-cached"}, {"Authorization", "Basic eDp5"}} {
		synctest.Test(t, func(t *testing.T) {
			store := wiredTo(memstore.New())
			s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=60")
			})
			s.get("http://a/p")
			time.Sleep(2 * time.Second)
			store.set(refuse)
			if w := s.get("http://a/p", fields...); w.Code != http.StatusOK {
				t.Errorf("%q: status %d, Cache-Status %q", fields, w.Code, w.Header()["Cache-Status"])
			}
			s.wantCalls(t, 1)
		})
	}
}
