package bellwether_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// Variants: who gets which, who waits for whom, and who builds.

// Each variant has one build, also when all are first asked for at one time by
// several processes.
func TestVary_OneBuildPerVariantInAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.Options{Store: memstore.New(), Locker: locallock.New()}
		var builds [5]atomic.Int32
		fleet := make([]*site, 4)
		for i := range fleet {
			fleet[i] = newSite(t, bellwether.HTTPOptions{Options: o}, func(w http.ResponseWriter, r *http.Request) {
				lang := r.Header.Get("Accept-Language")
				builds[lang[1]-'0'].Add(1)
				time.Sleep(500 * time.Millisecond)
				w.Header().Set("Vary", "Accept-Language")
				w.Header().Set("Cache-Control", "max-age=60")
				io.WriteString(w, lang)
			})
		}
		herd := func(most time.Duration) {
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() {
					start, lang := time.Now(), fmt.Sprint("l", i%5)
					w := fleet[i/5%4].get("http://a/p", "Accept-Language", lang)
					if d := time.Since(start); w.Body.String() != lang || d > most {
						t.Errorf("process %d, %s got %d %q after %v, want it within %v", i/5%4, lang, w.Code, w.Body, d, most)
					}
				})
			}
			wg.Wait()
		}
		herd(1100 * time.Millisecond)
		for i := range builds {
			if n := builds[i].Swap(0); n != 1 {
				t.Errorf("variant %d was built %d times, want once", i, n)
			}
		}
		time.Sleep(61 * time.Second)
		herd(510 * time.Millisecond)
		for i := range builds {
			if n := builds[i].Swap(0); n != 1 {
				t.Errorf("expired, variant %d was built %d times, want once", i, n)
			}
		}
	})
}

// While one variant is being built, or streamed, the others are built and
// served.
func TestVary_SlowVariantHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Kind")
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "kind ")
			if r.Header.Get("Kind") == "slow" {
				time.Sleep(20 * time.Second)
			}
			io.WriteString(w, r.Header.Get("Kind"))
		})
		var wg sync.WaitGroup
		defer wg.Wait()
		for range 20 {
			wg.Go(func() {
				if w := s.get("http://a/p", "Kind", "slow"); w.Body.String() != "kind slow" {
					t.Errorf("slow got %q", w.Body)
				}
			})
		}
		time.Sleep(time.Second)
		got := s.burst(20, func(int) *http.Request { return request("GET", "http://a/p", "Kind", "fast") })
		wantBurst(t, got, 20, "200 kind fast 0s")
		s.wantCalls(t, 2)
	})
}

// The names change: who is asked for by the old ones is rebuilt by the new
// ones, and nobody gets what the new ones tell apart.
func TestVary_ChangesOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var vary atomic.Value
		vary.Store("A")
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			names := vary.Load().(string)
			if names != "" {
				w.Header().Set("Vary", names)
			}
			for name := range strings.SplitSeq(names, ",") {
				fmt.Fprint(w, r.Header.Get(name), ".")
			}
		})
		ask := func(a, b string) func(int) *http.Request {
			return func(int) *http.Request { return request("GET", "http://a/p", "A", a, "B", b) }
		}
		wantBurst(t, s.burst(20, ask("1", "1")), 20, "200 1. 1s")
		wantBurst(t, s.burst(20, ask("1", "2")), 20, "200 1. 0s")
		s.wantCalls(t, 1)
		for _, names := range []string{"A,B", "B", "B,A", ""} {
			vary.Store(names)
			time.Sleep(61 * time.Second)
			for _, a := range []string{"1", "2"} {
				for _, b := range []string{"1", "2"} {
					want := map[string]string{"A,B": a + "." + b + ".", "B": b + ".", "B,A": b + "." + a + ".", "": "."}[names]
					for range 2 {
						for o, n := range s.burst(20, ask(a, b)) {
							if body := strings.Fields(o)[1]; n != 20 || body != want {
								t.Errorf("Vary %q: A=%s B=%s got %q %d times, want %q", names, a, b, o, n, want)
							}
						}
					}
				}
			}
			if n := s.calls.Swap(0); n > 4 {
				t.Errorf("Vary %q: %d calls for at most 4 variants", names, n)
			}
		}
	})
}

// Names that lead to names are followed up to a bound, and then each request
// goes to the handler: wrong for nobody, and no loop.
func TestVary_NestedNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const depth = 8
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			// Each field that is set makes the next one count.
			w.Header().Set("Cache-Control", "max-age=600")
			body := ""
			for i := range depth {
				name := fmt.Sprint("F", i)
				w.Header().Add("Vary", name)
				if r.Header.Get(name) == "" {
					break
				}
				body += "x"
			}
			io.WriteString(w, body)
		})
		for range 3 {
			for n := range depth + 1 {
				var fields []string
				for i := range n {
					fields = append(fields, fmt.Sprint("F", i), "x")
				}
				if w := s.get("http://a/p", fields...); w.Code != 200 || w.Body.String() != strings.Repeat("x", n) {
					t.Errorf("%d fields got %d %q", n, w.Code, w.Body)
				}
				synctest.Wait()
			}
		}
		// Four keys are looked at: the plain one, and one below each of three
		// fields.
		if n, want := s.calls.Load(), int32(depth+1+2*(depth+1-3)); n != want {
			t.Errorf("%d calls, want %d: the first levels from the cache", n, want)
		}
	})
}

// One user's private page keeps nobody else's variant out of the cache.
func TestVary_PrivateVariantBarsOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(200 * time.Millisecond)
			w.Header().Set("Vary", "Cookie")
			if user := r.Header.Get("Cookie"); user != "" {
				w.Header().Set("Cache-Control", "private")
				io.WriteString(w, user)
				return
			}
			page(0, "front page")(w, r)
		})
		user := func(int) *http.Request { return request("GET", "http://a/p", "Cookie", "session=1") }
		for o, n := range s.burst(10, user) {
			if o != "200 session=1 200ms" && o != "200 session=1 400ms" {
				t.Errorf("%d times %q, want the users released together", n, o)
			}
		}
		s.wantCalls(t, 10)
		wantBurst(t, s.burst(10, user), 10, "200 session=1 200ms") // no queue
		s.wantCalls(t, 10)
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 front page 200ms")
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 front page 0s")
		s.wantCalls(t, 1)
		// Together from the beginning.
		s.mw.Invalidate(t.Context(), "http://a/p")
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				cookie, want := fmt.Sprint("session=", i), fmt.Sprint("session=", i)
				if i%2 == 0 {
					if w := s.get("http://a/p"); w.Body.String() != "front page" {
						t.Errorf("without a cookie: %q", w.Body)
					}
					return
				}
				if w := s.get("http://a/p", "Cookie", cookie); w.Body.String() != want {
					t.Errorf("%s got %q", cookie, w.Body)
				}
			})
		}
		wg.Wait()
		s.wantCalls(t, 26)
	})
}

// The variant that everybody wants keeps its place among those that are built for the
// cache, however long it is fresh: else 1,024 requests in ten minutes with a field of
// anybody's choice send each request of a herd to the handler. So does the one whose
// build has told the names, which nobody has admitted.
func TestVary_FloodDoesNotScatterTheWantedVariant(t *testing.T) {
	for _, test := range []struct {
		name, cacheControl string
		read               int           // minutes in which somebody reads it, before the flood
		expires            time.Duration // after the flood
	}{
		{"read for long", "max-age=1200", 11, 9*time.Minute + 30*time.Second},
		{"read for long, stale", "max-age=1200, stale-while-revalidate=600", 11, 9*time.Minute + 30*time.Second},
		{"the first", "max-age=60", 0, time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(100 * time.Millisecond)
					w.Header().Set("Cache-Control", test.cacheControl)
					w.Header().Set("Vary", "Accept-Language")
					fmt.Fprint(w, r.Header.Get("Accept-Language"))
				})
				english := func(int) *http.Request {
					return request(http.MethodGet, "http://a/p", "Accept-Language", "en")
				}
				s.burst(100, english)
				s.wantCalls(t, 1)
				for range test.read {
					time.Sleep(time.Minute)
					s.burst(1, english)
				}
				s.wantCalls(t, 0)
				s.burst(1024, func(i int) *http.Request {
					return request(http.MethodGet, "http://a/p", "Accept-Language", fmt.Sprint("x-", i))
				})
				s.wantCalls(t, 1024)
				time.Sleep(test.expires)
				s.burst(200, english)
				time.Sleep(time.Second) // of a rebuild behind what is stale
				s.wantCalls(t, 1)
			})
		})
	}
}

// A response that says it depends on Host is not given to those of another, whatever
// URL HTTPOptions.Key makes of both.
func TestVary_HostUnderOneKey(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{
		Key: func(r *http.Request) (string, bool) { return "http://shop.example" + r.URL.RequestURI(), true },
	}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Host")
		fmt.Fprint(w, r.Host)
	})
	for _, host := range []string{"one.example", "two.example", "one.example"} {
		if got := s.get("http://" + host + "/p").Body.String(); got != host {
			t.Errorf("a request for %s got the page of %s", host, got)
		}
	}
}
