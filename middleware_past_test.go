package bellwether_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// wantFrom checks whether the last reply came from the cache.
func wantFrom(t *testing.T, s *site, calls int32, what string) {
	t.Helper()
	synctest.Wait()
	if got := s.calls.Swap(0); got != calls {
		t.Errorf("%s: %d handler calls, want %d", what, got, calls)
	}
}

func TestHTTP_OneCacheableResponseEndsHitForMiss(t *testing.T) {
	for name, store := range map[string]bellwether.Store{"near tier": nil, "store": memstore.New()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cc := "no-store"
				o := bellwether.HTTPOptions{UncacheableTTL: time.Hour, Options: bellwether.Options{Store: store}}
				s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", cc)
					fmt.Fprint(w, "v")
				})
				s.get("http://a/p")
				synctest.Wait()
				s.get("http://a/p")
				wantFrom(t, s, 2, "not for sharing")
				cc = "max-age=60"
				s.do(request("HEAD", "http://a/p"))
				wantFrom(t, s, 1, "a HEAD ends nothing")
				s.get("http://a/p")
				wantFrom(t, s, 1, "the one that ends it")
				time.Sleep(time.Millisecond)
				s.get("http://a/p")
				wantFrom(t, s, 1, "the next one is stored")
				s.get("http://a/p")
				wantFrom(t, s, 0, "and served")
			})
		})
	}
}

// A body over the limit does not end it again and again.
func TestHTTP_TooLargeStaysHitForMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var size, announced atomic.Int64
		size.Store(100)
		s := newSite(t, bellwether.HTTPOptions{MaxBody: 50, UncacheableTTL: time.Hour}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			if announced.Load() != 0 {
				w.Header().Set("Content-Length", fmt.Sprint(size.Load()))
			}
			w.Write(make([]byte, size.Load()))
		})
		status := func() string {
			synctest.Wait()
			time.Sleep(time.Millisecond)
			return s.get("http://a/p").Header().Get("Cache-Status")
		}
		status()
		for range 3 {
			if got := status(); !strings.Contains(got, "bypass") {
				t.Errorf("too large: %q", got)
			}
		}
		size.Store(10)
		announced.Store(1)
		status() // this one says that it fits
		status()
		if got := status(); !strings.Contains(got, "hit") {
			t.Errorf("no longer too large: %q", got)
		}
	})
}

// What is withheld although it says that it may be cached is withheld from the next
// as well: they do not wait for each other to find that out again.
func TestHTTP_WithheldStaysHitForMiss(t *testing.T) {
	for name, withheld := range map[string]http.Header{
		"an event stream":  {"Content-Type": {"text/event-stream"}},
		"too large header": {"X-Long": {strings.Repeat("x", 70<<10)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					maps.Copy(w.Header(), withheld)
					w.Header().Set("Cache-Control", "max-age=60")
				})
				s.get("http://a/p")
				for range 4 {
					time.Sleep(100 * time.Millisecond)
					if w := s.get("http://a/p"); !strings.Contains(w.Header().Get("Cache-Status"), "fwd=bypass") {
						t.Errorf("%v", w.Header()["Cache-Status"])
					}
				}
			})
		})
	}
}

func TestHTTP_PassThroughIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		o := bellwether.HTTPOptions{PassThrough: 3, Options: bellwether.Options{MaxWait: time.Second}}
		s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(5 * time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "v")
		})
		got := s.burst(50, same("http://a/p"))
		if got["503 Service Unavailable\n 1s"] != 47 || got["200 v 6s"] != 3 {
			t.Errorf("outcomes %v, want 3 let through and 47 times 503", got)
		}
		if n := most.Load(); n != 4 {
			t.Errorf("%d handlers at one time, want the rebuild and 3", n)
		}
		s.wantCalls(t, 4)
	})
}

// RFC 9110 section 9.3.3.
func TestHTTP_PostMayAnswerTheNextGet(t *testing.T) {
	explicit := http.Header{"Cache-Control": {"max-age=60"}, "Content-Location": {"/p"}}
	with := func(name, value string) http.Header {
		h := explicit.Clone()
		h.Set(name, value)
		return h
	}
	for name, test := range map[string]struct {
		header http.Header
		stored bool
		store  bellwether.Store
	}{
		"explicit freshness, own location": {explicit, true, nil},
		"absolute location":                {with("Content-Location", "http://a/p"), true, nil},
		"no location":                      {http.Header{"Cache-Control": {"max-age=60"}}, false, nil},
		"another location":                 {with("Content-Location", "/q"), false, nil},
		"another host's":                   {with("Content-Location", "http://b/p"), false, nil},
		"no freshness":                     {http.Header{"Content-Location": {"/p"}}, false, nil},
		"private":                          {with("Cache-Control", "private, max-age=60"), false, nil},
		"no-store":                         {with("Cache-Control", "no-store, max-age=60"), false, nil},
		"set-cookie":                       {with("Set-Cookie", "session=1"), false, nil},
		"vary":                             {with("Vary", "X"), false, nil},
		"shorter than announced":           {with("Content-Length", "9"), false, nil},
		"a store that others write to":     {explicit, false, memstore.New()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := bellwether.HTTPOptions{SetCookie: true, Options: bellwether.Options{Store: test.store}}
				s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
					if r.Method == "POST" {
						for name, values := range test.header {
							w.Header()[name] = values
						}
						io.Copy(w, strings.NewReader("posted"))
						return
					}
					w.Header().Set("Cache-Control", "max-age=60")
					io.WriteString(w, "got")
				})
				s.get("http://a/p")
				if w := s.do(request("POST", "http://a/p")); w.Body.String() != "posted" {
					t.Errorf("POST got %q", w.Body)
				}
				want := "got"
				if test.stored {
					want = "posted"
				}
				s.calls.Store(0)
				if w := s.get("http://a/p"); w.Body.String() != want || w.Header()["Cache-Status"] == nil || test.stored != (s.calls.Load() == 0) {
					t.Errorf("GET got %q with %d calls, want %q", w.Body, s.calls.Load(), want)
				}
			})
		})
	}
}

// When the middleware is closed, nothing is kept any more, and nobody is served what
// was kept before, here or in the store.
func TestHTTP_Closed(t *testing.T) {
	for name, test := range map[string]struct {
		store  bellwether.Store
		before string // a request's method
		after  string
		field  string // Cache-Control of the last
		want   int
	}{
		"what there was":             {nil, "GET", "GET", "", 503},
		"what was in the store":      {memstore.New(), "GET", "GET", "", 503},
		"what a POST shows":          {nil, "GET", "POST", "", 503},
		"only-if-cached":             {nil, "GET", "GET", "only-if-cached", 504},
		"only-if-cached, in a store": {memstore.New(), "GET", "GET", "only-if-cached", 504},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{Store: test.store}}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					w.Header().Set("Content-Location", "/p")
					io.WriteString(w, "page")
				})
				s.do(request(test.before, "http://a/p"))
				synctest.Wait()
				s.mw.Close()
				s.do(request(test.after, "http://a/p"))
				if w := s.get("http://a/p", "Cache-Control", test.field); w.Code != test.want {
					t.Errorf("got %d %q", w.Code, w.Body)
				}
			})
		})
	}
}

// Of two POSTs that overlap neither's response is kept: who was last is not
// known.
func TestHTTP_OverlappingPostsKeepNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Location", "/p")
			now := state.Load()
			if r.Method == "POST" {
				now = state.Add(1)
				time.Sleep(time.Duration(3-now) * time.Second) // the first answers last
			}
			fmt.Fprint(w, now)
		})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { s.do(request("POST", "http://a/p")) })
			synctest.Wait()
		}
		wg.Wait()
		if w := s.get("http://a/p"); w.Body.String() != "2" {
			t.Errorf("got state %s, want 2", w.Body)
		}
	})
}

func TestHTTP_Options(t *testing.T) {
	week := 7 * 24 * time.Hour
	for name, test := range map[string]struct {
		options bellwether.HTTPOptions
		header  http.Header
		status  int
		after   time.Duration
		stored  bool
	}{
		"targeted field, by default":         {bellwether.HTTPOptions{}, http.Header{"Cache-Control": {"no-store"}, "Cdn-Cache-Control": {"max-age=60"}}, 200, time.Second, true},
		"targeted field forbids":             {bellwether.HTTPOptions{}, http.Header{"Cache-Control": {"max-age=60"}, "Cdn-Cache-Control": {"no-store"}}, 200, time.Second, false},
		"none is targeted":                   {bellwether.HTTPOptions{TargetedFields: []string{}}, http.Header{"Cache-Control": {"no-store"}, "Cdn-Cache-Control": {"max-age=60"}}, 200, time.Second, false},
		"own name in front":                  {bellwether.HTTPOptions{TargetedFields: []string{"My-Cache-Control", "CDN-Cache-Control"}}, http.Header{"My-Cache-Control": {"max-age=60"}, "Cdn-Cache-Control": {"no-store"}}, 200, time.Second, true},
		"own name absent":                    {bellwether.HTTPOptions{TargetedFields: []string{"My-Cache-Control", "CDN-Cache-Control"}}, http.Header{"Cdn-Cache-Control": {"max-age=60"}}, 200, time.Second, true},
		"no heuristic by default":            {bellwether.HTTPOptions{}, http.Header{"Last-Modified": {lastYear}}, 200, time.Second, false},
		"heuristic":                          {bellwether.HTTPOptions{HeuristicFraction: 0.1}, http.Header{"Last-Modified": {lastYear}}, 200, 23 * time.Hour, true},
		"heuristic is bounded":               {bellwether.HTTPOptions{HeuristicFraction: 0.1}, http.Header{"Last-Modified": {lastYear}}, 200, 25 * time.Hour, false},
		"heuristic without a date":           {bellwether.HTTPOptions{HeuristicFraction: 0.1}, http.Header{}, 200, time.Second, false},
		"TTL before the heuristic":           {bellwether.HTTPOptions{HeuristicFraction: 0.1, Options: bellwether.Options{TTL: week}}, http.Header{"Last-Modified": {lastYear}}, 200, 25 * time.Hour, true},
		"heuristic not for every status":     {bellwether.HTTPOptions{HeuristicFraction: 0.1}, http.Header{"Last-Modified": {lastYear}}, 403, time.Second, false},
		"set-cookie":                         {bellwether.HTTPOptions{SetCookie: true}, http.Header{"Cache-Control": {"max-age=60"}, "Set-Cookie": {"a=b"}}, 200, time.Second, true},
		"set-cookie without a lifetime":      {bellwether.HTTPOptions{SetCookie: true, Options: bellwether.Options{TTL: week}}, http.Header{"Set-Cookie": {"a=b"}}, 200, time.Second, false},
		"error, and no TTL":                  {bellwether.HTTPOptions{Options: bellwether.Options{ErrorTTL: time.Minute}}, http.Header{}, 503, time.Second, false},
		"error remembered":                   {bellwether.HTTPOptions{Options: bellwether.Options{TTL: time.Second, ErrorTTL: time.Minute}}, http.Header{}, 503, 2 * time.Second, true},
		"error remembered from now on":       {bellwether.HTTPOptions{Options: bellwether.Options{TTL: time.Second, ErrorTTL: time.Minute}}, http.Header{"Age": {"300"}}, 503, 2 * time.Second, true},
		"error that is to be asked for anew": {bellwether.HTTPOptions{Options: bellwether.Options{ErrorTTL: time.Minute}}, http.Header{"Cache-Control": {"no-cache"}}, 503, time.Second, false},
		"error that is public":               {bellwether.HTTPOptions{Options: bellwether.Options{TTL: week, ErrorTTL: time.Second}}, http.Header{"Cache-Control": {"public"}}, 503, 2 * time.Second, false},
		"public error, and no TTL":           {bellwether.HTTPOptions{Options: bellwether.Options{ErrorTTL: time.Minute}}, http.Header{"Cache-Control": {"public"}}, 503, time.Second, true},
		"public error, to be validated":      {bellwether.HTTPOptions{Options: bellwether.Options{ErrorTTL: time.Minute}}, http.Header{"Cache-Control": {"public, must-revalidate"}}, 503, time.Second, true},
		"public error by the heuristic":      {bellwether.HTTPOptions{HeuristicFraction: 0.1, Options: bellwether.Options{ErrorTTL: time.Second}}, http.Header{"Cache-Control": {"public"}, "Last-Modified": {lastYear}}, 503, 2 * time.Second, false},
		"error not remembered":               {bellwether.HTTPOptions{Options: bellwether.Options{ErrorTTL: -1}}, http.Header{}, 503, 0, false},
		"error is nothing to fall back on":   {bellwether.HTTPOptions{Options: bellwether.Options{ErrorTTL: -1, StaleIfError: week}}, http.Header{}, 503, time.Second, false},
		"error with a lifetime of its own":   {bellwether.HTTPOptions{Options: bellwether.Options{ErrorTTL: -1}}, http.Header{"Cache-Control": {"max-age=60"}}, 503, time.Second, true},
		"206 to a request without a range":   {bellwether.HTTPOptions{}, http.Header{"Cache-Control": {"max-age=60"}, "Content-Range": {"bytes 0-0/1"}}, 206, time.Second, false},
		"must-understand, not understood":    {bellwether.HTTPOptions{}, http.Header{"Cache-Control": {"max-age=60, must-understand"}}, 599, time.Second, false},
		"304 to a request without condition": {bellwether.HTTPOptions{}, http.Header{"Cache-Control": {"max-age=60"}}, 304, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, test.options, func(w http.ResponseWriter, r *http.Request) {
					for name, values := range test.header {
						w.Header()[name] = values
					}
					w.WriteHeader(test.status)
					if test.status != 304 {
						io.WriteString(w, "v")
					}
				})
				first := s.get("http://a/p")
				synctest.Wait()
				time.Sleep(test.after)
				s.calls.Store(0)
				second := s.get("http://a/p")
				if first.Code != test.status || second.Code != test.status || first.Body.String() != second.Body.String() {
					t.Errorf("got %d %q and %d %q", first.Code, first.Body, second.Code, second.Body)
				}
				if stored := s.calls.Load() == 0; stored != test.stored {
					t.Errorf("stored %v, want %v", stored, test.stored)
				}
			})
		})
	}
}

// With ErrorTTL negative an error answers those who waited for it all the same.
func TestHTTP_UnrememberedErrorAnswersTheHerdOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{ErrorTTL: -1}}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			http.Error(w, "down", http.StatusServiceUnavailable)
		})
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "503 down\n 1s")
		s.wantCalls(t, 1)
	})
}

func TestHTTP_LanguageOrder(t *testing.T) {
	for _, any := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{AnyLanguageOrder: any}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Vary", "Accept-Language")
				fmt.Fprint(w, r.Header.Get("Accept-Language"))
			})
			for lang, want := range map[string][2]string{"en, de": {"en, de", "de, en"}, "de,EN": {"de, en", "de, en"}, "en;q=0.5, de": {"en;q=0.5, de", "de, en;q=0.5"}} {
				s.get("http://a/"+lang[:2], "Accept-Language", "en, de")
				got := s.get("http://a/"+lang[:2], "Accept-Language", lang).Body.String()
				if i := map[bool]int{true: 1}[any]; got != want[i] {
					t.Errorf("any order %v: %q got the variant of %q, want %q", any, lang, got, want[i])
				}
			}
		})
	}
}

// While a whole body waits to be committed, a range is a range of it.
func TestHTTP_RangeOfAFinishedLiveBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.set(on(takes(time.Second), "commit"))
		s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{Store: store.full(), EngineTimeout: time.Minute}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "0123456789")
		})
		s.get("http://a/p")
		synctest.Wait() // the handler has returned
		w := s.get("http://a/p", "Range", "bytes=2-4")
		if w.Code != 206 || w.Body.String() != "234" || !strings.Contains(w.Header().Get("Cache-Status"), "collapsed") {
			t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
		}
		s.wantCalls(t, 1)
	})
}

// Real sockets from here on: a recorder takes an interim response for the final
// one.

func TestHTTP_InterimResponsesReachTheFirstClientAtOnce(t *testing.T) {
	release := make(chan struct{})
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(102)
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(103)
		clear(w.Header()) // as httputil.ReverseProxy does
		<-release
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
	})
	server := serve(t, s.handler)
	for i, want := range [][]string{{"102 ", "103 </style.css>; rel=preload"}, nil} {
		var got []string
		trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			got = append(got, fmt.Sprint(code, " ", h.Get("Link")))
			if code == 103 {
				close(release) // nothing of the response is there yet
			}
			return nil
		}}
		req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", server.URL+"/p", nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if !reflect.DeepEqual(got, want) || res.StatusCode != 200 || string(body) != "page" || res.Header["Link"] != nil {
			t.Errorf("client %d got %q, then %d %q %v, want %q and the page alone", i, got, res.StatusCode, body, res.Header, want)
		}
		for !strings.Contains(s.get(server.URL+"/p").Header().Get("Cache-Status"), "hit") {
		}
	}
	s.wantCalls(t, 1)
}

// A first client that does not read does not stop the handler's hints, and none
// of them reaches a client that joined.
func TestHTTP_InterimResponsesAreNobodyElses(t *testing.T) {
	var more sync.WaitGroup
	more.Add(1)
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		for range 10_000 {
			w.WriteHeader(102)
		}
		more.Wait()
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
	})
	server := serve(t, s.handler)
	var wg sync.WaitGroup
	var hinted atomic.Int32
	for range 10 {
		wg.Go(func() {
			first := true
			trace := &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
				if first {
					first = false
					hinted.Add(1)
				}
				return nil
			}}
			req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", server.URL+"/p", nil)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return // net/http's client takes no more than 5 interim responses
			}
			defer res.Body.Close()
			if body, err := io.ReadAll(res.Body); string(body) != "page" || err != nil {
				t.Errorf("got %q, %v", body, err)
			}
		})
	}
	for s.mw.Stats().Misses+s.mw.Stats().Collapsed < 10 {
		time.Sleep(time.Millisecond)
	}
	more.Done()
	wg.Wait()
	if n := hinted.Load(); n != 1 {
		t.Errorf("%d clients got interim responses, want the first alone", n)
	}
	s.wantCalls(t, 1)
}

func TestHTTP_TrailersReachWhoReadsLive(t *testing.T) {
	for name, test := range map[string]struct{ before, after string }{
		"announced": {"X-Sum", "X-Sum"},
		"prefixed":  {"", http.TrailerPrefix + "X-Sum"},
	} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				if test.before != "" {
					w.Header().Set("Trailer", test.before)
				}
				io.WriteString(w, "page")
				<-release
				w.Header().Set(test.after, "42")
			})
			server := serve(t, s.handler)
			get := func() (string, string) {
				res, err := http.Get(server.URL + "/p")
				if err != nil {
					t.Error(err)
					return "", ""
				}
				defer res.Body.Close()
				body, _ := io.ReadAll(res.Body)
				return string(body), res.Trailer.Get("X-Sum")
			}
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if body, sum := get(); body != "page" || sum != "42" {
						t.Errorf("live: %q with trailer %q", body, sum)
					}
				})
			}
			for s.mw.Stats().Misses+s.mw.Stats().Collapsed < 5 {
				time.Sleep(time.Millisecond)
			}
			close(release)
			wg.Wait()
			for !strings.Contains(s.get(server.URL+"/p").Header().Get("Cache-Status"), "hit") {
			}
			if body, sum := get(); body != "page" || sum != "" {
				t.Errorf("stored: %q with trailer %q, want none (RFC 9111 section 3.1)", body, sum)
			}
			s.wantCalls(t, 1)
		})
	}
}

// The real writer's own way of copying stays, and a POST's whole body arrives
// whether it is kept or not.
func TestHTTP_PostBodyArrivesWhole(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	s := newSite(t, bellwether.HTTPOptions{MaxBody: 1 << 10}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/kept" {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Location", "/kept")
		}
		io.Copy(w, bytes.NewReader(body))
	})
	server := serve(t, s.handler)
	for _, path := range []string{"/kept", "/other"} {
		res, err := http.Post(server.URL+path, "text/plain", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if !bytes.Equal(got, body) || err != nil {
			t.Errorf("%s: %d of %d bytes, %v", path, len(got), len(body), err)
		}
	}
	if w := s.get(server.URL + "/kept"); w.Body.Len() != len(body) || strings.Contains(w.Header().Get("Cache-Status"), "hit") {
		t.Errorf("GET: %d bytes, %v, want it not kept", w.Body.Len(), w.Header())
	}
}

// What a handler does in one breath, the interim response, the response and the
// trailer, arrives in that order.
func TestHTTP_InterimResponseAndTrailerInOneBreath(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
		w.Header().Set(http.TrailerPrefix+"X-Sum", "42")
	})
	server := serve(t, s.handler)
	for i := range 50 {
		hints := 0
		trace := &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil }}
		req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", fmt.Sprint(server.URL, "/", i), nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if hints != 1 || string(body) != "page" || res.Trailer.Get("X-Sum") != "42" {
			t.Fatalf("%d interim responses, %q, trailer %v", hints, body, res.Trailer)
		}
	}
}

// A copy that fails before its first byte has sent nothing: what the handler says
// then is the response.
func TestPost_CopyThatFails(t *testing.T) {
	for name, copied := range map[string]string{"at once": "", "in the first bytes": "some", "later": strings.Repeat("b", 2000)} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				if r.Method == http.MethodGet {
					io.WriteString(w, "page")
					return
				}
				w.Header().Set("Content-Location", r.URL.Path)
				from := io.MultiReader(strings.NewReader(copied), iotest.ErrReader(errOrigin))
				if n, err := w.(io.ReaderFrom).ReadFrom(from); n != int64(len(copied)) || err != errOrigin {
					t.Errorf("ReadFrom: %d, %v", n, err)
				}
				http.Error(w, "failure", http.StatusInternalServerError)
			})
			addr := serve(t, s.handler).Listener.Addr().String()
			status, body, _ := raw(t, addr, "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
			want := http.StatusOK // sent with the first bytes
			if copied == "" {
				want = http.StatusInternalServerError
			}
			if status != want || !strings.HasSuffix(body, "failure\n") {
				t.Errorf("POST: %d %q, want %d and the failure", status, body, want)
			}
			if status, body, h := raw(t, addr, "GET /p HTTP/1.1\r\nHost: a\r\n\r\n"); copied == "" && (status != 200 || body != "page") {
				t.Errorf("the next GET got %d %q (%s)", status, body, h["Cache-Status"])
			}
		})
	}
}
