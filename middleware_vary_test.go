package bellwether_test

import (
	"context"
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

// This file tests variants. A signpost is the entry of a URL with the names of its Vary fields.

// Each variant is built once, also if several processes ask for all variants at one time.
func TestVary_OneBuildPerVariantInAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.Options{Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()}}
		var builds [5]atomic.Int32
		fleet := make([]*site, 4)
		for i := range fleet {
			fleet[i] = newSite(t, pageOptions(o), func(w http.ResponseWriter, r *http.Request) {
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
				s.wantBody(t, "kind slow", "http://a/p", "Kind", "slow")
			})
		}
		time.Sleep(time.Second)
		got := s.burst(20, func(int) *http.Request { return request("GET", "http://a/p", "Kind", "fast") })
		wantBurst(t, got, 20, "200 kind fast 0s")
		s.wantCalls(t, 2)
	})
}

// After the names in Vary change, no client gets another variant.
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
		// Both kinds at one time, without a stored page.
		s.mw.Invalidate(t.Context(), "http://a/p")
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				cookie, want := fmt.Sprint("session=", i), fmt.Sprint("session=", i)
				if i%2 == 0 {
					s.wantBody(t, "front page", "http://a/p") // without a cookie
					return
				}
				s.wantBody(t, want, "http://a/p", "Cookie", cookie)
			})
		}
		wg.Wait()
		s.wantCalls(t, 26)
	})
}

// A flood of variants displaces neither a variant in use nor the signpost's first, so no herd scatters.
func TestVary_FloodDoesNotScatterTheWantedVariant(t *testing.T) {
	for _, test := range []struct {
		name, cacheControl string
		read               int           // minutes of reads before the flood
		expires            time.Duration // after the flood
	}{
		{"read for long", "max-age=1200", 11, 9*time.Minute + 30*time.Second},
		{"read for long, stale", "max-age=1200, stale-while-revalidate=600", 11, 9*time.Minute + 30*time.Second},
		{"the first", "max-age=60", 0, time.Minute},
	} {
		inBubble(t, test.name, func(t *testing.T) {
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
			time.Sleep(time.Second) // for a rebuild in the background
			s.wantCalls(t, 1)
		})
	}
}

// If a handler names fields only when they are set, one signpost collects the names.
func TestVary_NamedWhenSeen(t *testing.T) {
	names := []string{"X-A", "X-B", "X-C", "X-D", "X-E", "X-F"}
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=7200")
		for _, name := range names {
			if v := r.Header.Get(name); v != "" {
				w.Header().Add("Vary", name)
				fmt.Fprint(w, name, "=", v, " ")
			}
		}
		io.WriteString(w, "page")
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		for round := range 3 {
			for _, name := range names {
				if round == 0 {
					p.first.mw.Invalidate(t.Context(), "http://a/p")
				}
				p.second.get("http://a/p", name, "1")
				p.first.get("http://a/p", name, "1")
				time.Sleep(2 * time.Second)
			}
		}
		for range 2 {
			p.first.get("http://a/p")
			p.second.get("http://a/p")
			synctest.Wait()
		}
		p.calls()
		time.Sleep(time.Hour)
		for range 100 {
			for _, s := range []*site{p.first, p.second} {
				s.wantBody(t, "page", "http://a/p") // without a field
				for _, name := range names {
					s.wantBody(t, name+"=1 page", "http://a/p", name, "1")
				}
			}
		}
		if n := p.calls(); n > 0 {
			t.Errorf("an hour later %d calls for 1,400 requests", n)
		}
	})
}

// A growing signpost does not replace a signpost that was invalidated meanwhile.
func TestVary_GrowthBehindAnInvalidation(t *testing.T) {
	var version, slow atomic.Int32
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=600")
		w.Header().Set("Vary", "X-A")
		v := version.Load()
		if r.Header.Get("X-B") != "" {
			w.Header().Add("Vary", "X-B")
			time.Sleep(time.Duration(slow.Load()) * time.Second)
		}
		fmt.Fprint(w, "v", v)
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		version.Store(1)
		slow.Store(0)
		p.first.get("http://a/p", "X-A", "1")
		p.second.get("http://a/p", "X-A", "1")
		slow.Store(2)
		time.Sleep(2 * time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { p.first.get("http://a/p", "X-A", "2", "X-B", "1") })
		time.Sleep(time.Second)
		version.Store(2)
		invalidate(t, p.second.mw, "http://a/p")
		wg.Wait()
		time.Sleep(2 * time.Second)
		slow.Store(0)
		for range 2 {
			for _, s := range []*site{p.first, p.second} {
				for _, fields := range [][]string{{"X-A", "1"}, {"X-A", "2"}, {"X-A", "2", "X-B", "1"}} {
					s.wantBody(t, "v2", "http://a/p", fields...) // after the invalidation
				}
			}
		}
	})
}

func TestVary_PrivateAnswerGrowsNoSignpost(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		if c := r.Header.Get("Cookie"); strings.Contains(c, "session") {
			w.Header().Set("Vary", "Accept-Language, Cookie")
			w.Header().Set("Cache-Control", "private")
			io.WriteString(w, c)
			return
		}
		w.Header().Set("Vary", "Accept-Language")
		w.Header().Set("Cache-Control", "max-age=600")
		io.WriteString(w, r.Header.Get("Accept-Language"))
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		others := func() int32 {
			for i := range 50 {
				for _, s := range []*site{p.first, p.second} {
					lang := []string{"de", "en"}[i%2]
					s.wantBody(t, lang, "http://a/p", "Accept-Language", lang, "Cookie", fmt.Sprint("_ga=", i))
				}
			}
			return p.calls()
		}
		if n := others(); n != 2 {
			t.Fatalf("%d calls for two languages", n)
		}
		time.Sleep(2 * time.Second)
		p.first.get("http://a/p", "Accept-Language", "xx", "Cookie", "session=1")
		time.Sleep(2 * time.Second)
		p.calls()
		if n := others(); n > 0 {
			t.Errorf("%d calls for 100 requests of fresh variants after a private answer", n)
		}
	})
}

// An invalidation between any two steps of a signpost's creation, move or growth drops all earlier pages.
func TestVary_InvalidationBetweenTheStepsOfASignpost(t *testing.T) {
	for name, fields := range map[string][]string{
		"moved":   {"X-Forwarded-Host", "evil"},
		"grown":   {"X-One", "1"},
		"reload":  {"X-One", "1", "Cache-Control", "no-cache"},
		"private": {"Cookie", "u=1", "Cache-Control", "no-cache"},
		"panic":   {"Cookie", "bad", "Cache-Control", "no-cache"},
	} {
		for _, control := range []string{"max-age=600", "max-age=1, stale-while-revalidate=600"} {
			for way, match := range map[string]bellwether.Match{
				"URL":    {Keys: []string{"http://a/p"}},
				"prefix": {Prefixes: []string{"http://a/"}},
			} {
				t.Run(fmt.Sprint(name, " ", control, " ", way), func(t *testing.T) {
					t.Parallel()
					for at := range 30 {
						if testing.Short() && at%2 != len(name+control+way)%2 {
							continue // every other moment; the other cases take the rest
						}
						synctest.Test(t, func(t *testing.T) {
							invalidateAt(t, time.Duration(at)*time.Millisecond+500*time.Microsecond, match, control, fields, name == "grown")
						})
					}
				})
			}
		}
	}
}

// invalidateAt invalidates the page during two processes' requests. Each later request gets a later page.
func invalidateAt(t *testing.T, after time.Duration, match bellwether.Match, control string, fields []string, signpost bool) {
	t.Helper()
	var version atomic.Int32
	h := func(w http.ResponseWriter, r *http.Request) {
		v := version.Load()
		time.Sleep(4 * time.Millisecond)
		for _, name := range []string{"X-One", "X-Two"} {
			if r.Header.Get(name) != "" {
				w.Header().Add("Vary", name)
			}
		}
		w.Header().Set("Cache-Control", control)
		switch r.Header.Get("Cookie") {
		case "u=1":
			w.Header().Set("Cache-Control", "private")
		case "bad":
			panic("bad")
		}
		fmt.Fprint(w, v)
		time.Sleep(2 * time.Millisecond)
	}
	store := wiredTo(memstore.New()) // each step of a load takes a millisecond each way
	store.trip = time.Millisecond
	store.reply.Store(int64(time.Millisecond))
	o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store.full(), Locker: locallock.New()}}
	p := pair{newSite(t, o, h), newSite(t, o, h)}
	time.Sleep(time.Second) // the log is read
	if signpost {
		p.first.get("http://a/p", "X-Two", "2")
	}
	p.first.get("http://a/p")
	p.second.get("http://a/p")
	time.Sleep(1100 * time.Millisecond)
	var wg sync.WaitGroup
	wg.Go(func() { p.first.get("http://a/p", fields...) })
	wg.Go(func() { time.Sleep(3 * time.Millisecond); p.first.get("http://a/p", "Cache-Control", "no-cache") })
	wg.Go(func() { time.Sleep(2 * time.Millisecond); p.second.get("http://a/p", fields...) })
	time.Sleep(after)
	version.Add(1)
	sweep(t, p.second, match)
	time.Sleep(1100 * time.Millisecond) // NearTTL
	for range 3 {
		for _, s := range []*site{p.first, p.second} {
			for _, fields := range [][]string{nil, {"X-Forwarded-Host", "evil"}, {"X-One", "1"}, {"X-Two", "2"}} {
				s.wantBody(t, "1", "http://a/p", fields...)
			}
		}
		time.Sleep(900 * time.Millisecond)
	}
	wg.Wait()
}

// An outer handler changes a field for the inner handlers, and restores it when they have returned. The
// first client leaves before the response, which is a variant for the field that its handler has seen.
func TestVary_FieldRestoredByAnOuterHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", "X-Tenant")
			fmt.Fprint(w, "page of ", r.Header.Get("X-Tenant"))
		})
		ctx, leave := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer leave()
		r := request("GET", "http://a/p", "X-Tenant", "inner").WithContext(ctx)
		s.do(r)
		r.Header.Set("X-Tenant", "outer")
		time.Sleep(time.Second)
		s.wantBody(t, "page of outer", "http://a/p", "X-Tenant", "outer")
		s.wantBody(t, "page of inner", "http://a/p", "X-Tenant", "inner")
		s.wantCalls(t, 2)
	})
}

// An unusual spelling of a field's value does not reach the handler of a shared page.
func TestVary_SpellingsOfAField(t *testing.T) {
	for _, tt := range []struct {
		name, odd, usual, want string
		anyOrder               bool
	}{
		{"Accept-Language", "DE-de", "de-DE", "de-DE", false},
		{"Accept-Language", "de, en", "en, de", "en, de", false},
		{"Accept-Language", "de,EN", "en, de", "de, en", true},
		{"Accept-Encoding", "br,GZIP", "gzip, br", "br, gzip", false},
		{"X-List", "a ,b", "a, b", "a, b", false},
		{"Cookie", "a=1,b", "a=1, b", "a=1, b", false},
	} {
		s := newSite(t, bellwether.HTTPOptions{AnyLanguageOrder: tt.anyOrder}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", tt.name)
			io.WriteString(w, strings.Join(r.Header[tt.name], "|"))
		})
		s.get("http://a/p", tt.name, tt.odd)
		s.wantBody(t, tt.want, "http://a/p", tt.name, tt.usual)
	}
}

func TestVary_VariantsNeverMixNorWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "X-Lang")
			w.Header().Set("Cache-Control", "max-age=60")
			time.Sleep(500 * time.Millisecond)
			fmt.Fprint(w, r.Header.Get("X-Lang"))
		})
		variant := func(i int) *http.Request {
			return request("GET", "http://a/p", "X-Lang", fmt.Sprint("l", i%5))
		}
		got := s.burst(50, variant)
		for i := range 5 {
			if n := got[fmt.Sprintf("200 l%d 500ms", i)] + got[fmt.Sprintf("200 l%d 1s", i)]; n != 10 {
				t.Errorf("variant %d: %v, want 10 right answers after one or two builds", i, got)
			}
		}
		s.wantCalls(t, 5)
		for o, n := range s.burst(50, variant) {
			if n != 10 || !strings.HasSuffix(o, " 0s") {
				t.Errorf("hit %q x %d", o, n)
			}
		}
		s.wantCalls(t, 0)
		// When the names are known, a new variant does not wait for another.
		time.Sleep(61 * time.Second)
		for o := range s.burst(50, variant) {
			if !strings.HasSuffix(o, " 500ms") {
				t.Errorf("expired: %q, want one build in parallel per variant", o)
			}
		}
		s.wantCalls(t, 5)
		s.do(request("POST", "http://a/p"))
		s.calls.Store(0)
		s.burst(50, variant)
		s.wantCalls(t, 5) // the POST has invalidated all variants
	})
}

// A variant over MaxBodyBytes waits for its own readers, and not for the clients of another variant.
func TestVary_LongVariantWaitsForNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 1000}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", "Accept-Language")
			if r.Header.Get("Accept-Language") == "de" {
				w.Write(make([]byte, 100_000))
			}
		})
		go s.get("http://a/p", "Accept-Language", "de")
		synctest.Wait()
		go s.get("http://a/p", "Accept-Language", "fr") // its run lasts until 2 s
		began := time.Now()
		s.get("http://a/p", "Accept-Language", "de")
		if took := time.Since(began); took != time.Second {
			t.Errorf("the long variant came after %v", took)
		}
		time.Sleep(time.Minute)
	})
}

// The variants of one key, and the store's commits, are bounded. Older variants stay.
func TestVary_ThousandsOfVariants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.busy = true
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, NearTTL: time.Hour}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
			w.Header().Set("Vary", "User-Agent")
			io.WriteString(w, r.Header.Get("User-Agent"))
		})
		ask := func(agent string) string {
			w := s.get("http://a/p", "User-Agent", agent)
			if w.Body.String() != agent {
				t.Errorf("%s got %q", agent, w.Body)
			}
			return w.Header().Get("Cache-Status")
		}
		ask("honest")
		const most = 1024 // maxVariants
		for i := range 5000 {
			ask(fmt.Sprint("attacker", i))
		}
		if n := store.count("commit"); n > most+10 {
			t.Errorf("%d writes to the store, want at most one for each of %d variants", n, most)
		}
		s.wantCalls(t, 5001)
		if status := ask("honest"); !strings.Contains(status, "hit") {
			t.Errorf("the honest client's variant is gone: %s", status)
		}
		if status := ask("attacker4999"); !strings.Contains(status, "too many variants") {
			t.Errorf("a variant over the limit: %s", status)
		}
		// Expired variants make room.
		time.Sleep(2 * time.Hour)
		ask("late")
		s.calls.Store(0)
		synctest.Wait()
		if status := ask("late"); !strings.Contains(status, "hit") {
			t.Errorf("after the others have expired: %s", status)
		}
		s.wantCalls(t, 0)
	})
}

// A variant that leaves no entry behind counts once, however often it is built.
func TestVary_VariantsWithoutALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()}}
		s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(10 * time.Millisecond)
			w.Header().Set("Vary", "Accept-Language")
			w.Header().Set("Cache-Control", "max-age=0")
			io.WriteString(w, r.Header.Get("Accept-Language"))
		})
		for range 2500 {
			s.get("http://a/p", "Accept-Language", "en")
			time.Sleep(50 * time.Millisecond)
		}
		s.calls.Store(0)
		s.burst(100, func(int) *http.Request { return request("GET", "http://a/p", "Accept-Language", "en") })
		if n := s.calls.Load(); n > 3 {
			t.Errorf("%d runs of the handler for a herd of 100", n)
		}
	})
}

// A request that needs a variant gets no page of the plain URL in place of the error that it waited for.
func TestVary_NoOtherVariantInPlaceOfAnError(t *testing.T) {
	for name, o := range map[string]bellwether.HTTPOptions{
		"retargeted": {StaleIfError: time.Minute},
		"key": {StaleIfError: time.Minute, Key: func(r *http.Request) (bellwether.Key, bool) {
			return bellwether.Key{Variant: r.Header.Get("X-Forwarded-Host")}, true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Cookie") != "" {
					time.Sleep(time.Second)
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				w.Header().Set("Cache-Control", "max-age=60")
				io.WriteString(w, "page of "+r.Header.Get("X-Forwarded-Host"))
			}
			inPairs(t, o, h, func(t *testing.T, p pair) {
				p.first.wantBody(t, "page of ", "http://a/p")
				time.Sleep(time.Second)
				var wg sync.WaitGroup
				defer wg.Wait()
				wg.Go(func() {
					p.first.wantBody(t, "page of ", "http://a/p", "Cookie", "u=1", "Cache-Control", "no-cache") // in place of the 500
				})
				time.Sleep(100 * time.Millisecond)
				if w := p.first.get("http://a/p", "Cookie", "u=1", "X-Forwarded-Host", "evil"); w.Code < 500 {
					t.Errorf("got %d %q (%s)", w.Code, w.Body, w.Header().Get("Cache-Status"))
				}
			})
		})
	}
}

// A load that an unfinished response has led to leaves no signpost to itself after an invalidation.
func TestVary_NoSignpostFromBeforeAnInvalidation(t *testing.T) {
	for _, unsafe := range []bool{false, true} {
		t.Run(fmt.Sprint("unsafe ", unsafe), func(t *testing.T) {
			var version atomic.Int32
			h := func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					version.Store(2)
					return
				}
				page := fmt.Sprint("version ", version.Load())
				w.Header().Set("Cache-Control", "max-age=60")
				if r.Header.Get("A") == "1" {
					w.Header().Set("Vary", "A")
					w.(http.Flusher).Flush()
					time.Sleep(time.Second)
				} else {
					time.Sleep(2500 * time.Millisecond)
					w.Header().Set("Vary", "A, B")
				}
				io.WriteString(w, page)
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				version.Store(1)
				var wg sync.WaitGroup
				defer wg.Wait()
				wg.Go(func() { p.first.wantBody(t, "version 1", "http://a/p", "A", "1") })
				time.Sleep(500 * time.Millisecond)
				wg.Go(func() { p.first.wantBody(t, "version 1", "http://a/p", "A", "2") }) // it sees A=1 in progress, and goes on
				time.Sleep(1500 * time.Millisecond)
				if unsafe {
					p.first.do(request(http.MethodPut, "http://a/p"))
				} else {
					version.Store(2)
					if err := p.first.mw.Invalidate(t.Context(), "http://a/p"); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(2 * time.Second)
				p.first.wantBody(t, "version 2", "http://a/p", "A", "2")
			})
		})
	}
}

// While the store is down, the signpost of a load from before an invalidation replaces no later signpost.
func TestVary_NoOlderSignpostWhileTheStoreIsDown(t *testing.T) {
	inBubble(t, "down", func(t *testing.T) {
		var version atomic.Int32
		version.Store(1)
		h := func(w http.ResponseWriter, r *http.Request) {
			page := fmt.Sprint("version ", version.Load())
			w.Header().Set("Vary", "A")
			w.Header().Set("Cache-Control", "max-age=1")
			if r.Header.Get("Slow") != "" {
				time.Sleep(3 * time.Second)
				w.Header().Set("Vary", "A, B")
				w.Header().Set("Cache-Control", "max-age=60")
			}
			io.WriteString(w, page)
		}
		store := wiredTo(memstore.New())
		store.set(refuse)
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}}, h)
		time.Sleep(time.Second)
		s.get("http://a/other")
		s.wantBody(t, "version 1", "http://a/p", "A", "1")
		time.Sleep(2 * time.Second)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { s.get("http://a/p", "A", "1", "Slow", "1") })
		time.Sleep(time.Second)
		version.Store(2)
		s.mw.Invalidate(t.Context(), "http://a/p")
		s.wantBody(t, "version 2", "http://a/p", "A", "2")
		time.Sleep(3 * time.Second)
		s.wantBody(t, "version 2", "http://a/p", "A", "1")
	})
}

// A response may vary by a field beside the variant of Key.
func TestVary_BesideAKeysVariant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
			return bellwether.Key{Variant: r.Header.Get("X-Kind")}, true
		}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", "Accept-Language")
			fmt.Fprint(w, r.Header.Get("X-Kind"), r.Header.Get("Accept-Language"))
		})
		for range 2 {
			for _, kind := range []string{"mobile", "print"} {
				for _, language := range []string{"de", "en"} {
					s.wantBody(t, kind+language, "http://a/p", "X-Kind", kind, "Accept-Language", language)
					synctest.Wait()
				}
			}
		}
		s.wantCalls(t, 4)
	})
}
