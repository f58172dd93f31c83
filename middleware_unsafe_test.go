package bellwether_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests unsafe requests (RFC 9111 section 4.4).

// A successful unsafe request invalidates its URL, and by InvalidateLocations its Locations on the same host.
func TestUnsafe_Invalidates(t *testing.T) {
	for name, tt := range map[string]struct {
		status          int
		field, location string
		gone            string // paths, with InvalidateLocations; without it only the first
	}{
		"nothing named": {200, "", "", "/p"},
		"Location":      {201, "Location", "http://a/q", "/p /q"},
		"lower case":    {201, "location", "http://a/q", "/p /q"},
		"another host":  {201, "Location", "http://b/q", "/p"},
		"refused":       {403, "Location", "/q", ""},
	} {
		for _, locations := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{InvalidateLocations: locations}, func(w http.ResponseWriter, r *http.Request) {
					if r.Method != "GET" {
						if tt.field != "" {
							w.Header()[tt.field] = []string{tt.location} // in any spelling, as net/http sends it
						}
						w.WriteHeader(tt.status)
						return
					}
					page(0, "page")(w, r)
				})
				want := tt.gone
				if !locations {
					want, _, _ = strings.Cut(want, " ")
				}
				all := []string{"http://a/p", "http://a/q", "http://b/q"}
				for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
					for _, url := range all {
						s.get(url)
					}
					synctest.Wait()
					if w := s.do(request(method, "http://a/p")); w.Code != tt.status {
						t.Errorf("%s, %s: %d", name, method, w.Code)
					}
					synctest.Wait()
					var gone []string
					for _, url := range all {
						if w := s.get(url); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
							gone = append(gone, strings.TrimPrefix(url, "http://a"))
						}
					}
					if got := strings.Join(gone, " "); got != want {
						t.Errorf("%s, %s, locations %v: %q gone, want %q", name, method, locations, got, want)
					}
					synctest.Wait()
				}
			})
		}
	}
}

// An unsafe request with a refused Key, or with a Key without a URL, invalidates nothing.
func TestUnsafe_KeyRefused(t *testing.T) {
	for _, bad := range []string{"", "nonsense", "http:///p", "http://a/p#f", "http://u@a/p", "http://a:99999/p", "http://a b/p"} {
		for _, method := range []string{"PUT", "POST", "DELETE"} {
			s := newSite(t, bellwether.HTTPOptions{InvalidateLocations: true, Key: func(r *http.Request) (bellwether.Key, bool) {
				if r.Method != "GET" {
					return bellwether.Key{URL: bad}, bad != ""
				}
				return bellwether.Key{URL: "http://a" + r.URL.Path}, true
			}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Location", "/p")
			})
			s.get("http://a/p")
			if w := s.do(request(method, "http://a/p")); !strings.Contains(w.Header().Get("Cache-Status"), "fwd=method") {
				t.Errorf("%q: %v", bad, w.Header())
			}
			s.get("http://a/p")
			s.wantCalls(t, 2)
		}
	}
}

// With SoftInvalidation each process serves the page and its variants stale, and one rebuild follows.
func TestUnsafe_Soft(t *testing.T) {
	for _, vary := range []string{"", "Accept-Language"} {
		inBubble(t, vary, func(t *testing.T) {
			version := "old"
			h := func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "PUT" {
					version = "new"
					return
				}
				if vary != "" {
					w.Header().Set("Vary", vary)
				}
				time.Sleep(100 * time.Millisecond)
				w.Header().Set("Cache-Control", "max-age=600, stale-while-revalidate=60")
				fmt.Fprint(w, version)
			}
			store, locker := memstore.New(), locallock.New()
			o := bellwether.HTTPOptions{UnsafeInvalidation: bellwether.SoftInvalidation, Fleet: bellwether.Fleet{Store: store, Locker: locker}}
			first, second := newSite(t, o, h), newSite(t, o, h)
			for _, s := range []*site{first, second} {
				time.Sleep(2 * time.Second)
				for _, language := range []string{"de", "en"} {
					s.get("http://a/p", "Accept-Language", language)
				}
			}
			time.Sleep(2 * time.Second)
			first.do(request("PUT", "http://a/p"))
			time.Sleep(2 * time.Second)
			for _, language := range []string{"de", "en"} {
				for _, s := range []*site{first, second} {
					began := time.Now()
					if w := s.get("http://a/p", "Accept-Language", language); w.Body.String() != "old" && language == "de" || time.Since(began) > 0 {
						t.Errorf("%s after the PUT: %q after %v", language, w.Body, time.Since(began))
					}
				}
				time.Sleep(2 * time.Second)
				for _, s := range []*site{first, second} {
					s.wantBody(t, "new", "http://a/p", "Accept-Language", language)
				}
			}
		})
	}
}

// Any number of soft invalidations by unsafe requests displace no older sweep from the log.
func TestUnsafe_SoftFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.HTTPOptions{UnsafeInvalidation: bellwether.SoftInvalidation, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()}}
		s := newSite(t, o, page(0, "page"))
		s.get("http://a/popular")
		for i := range 600 { // more than the log remembers
			url := fmt.Sprint("http://a/", i)
			s.get(url)
			s.do(request("POST", url))
			s.calls.Store(0)
			s.get(url)
			synctest.Wait()
			s.wantCalls(t, 1)
		}
		if w := s.get("http://a/popular"); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
			t.Errorf("another page after 600 unsafe requests: %v", w.Header())
		}
	})
}

func TestUnsafe_NoInvalidation(t *testing.T) {
	for _, store := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := bellwether.HTTPOptions{UnsafeInvalidation: bellwether.NoInvalidation, InvalidateLocations: true}
			if store {
				o.Fleet.Store = memstore.New()
			}
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/q")
				if store { // the answer to a POST is for no GET then
					w.Header().Set("Content-Location", "/p")
				}
				page(0, r.Method)(w, r)
			})
			s.get("http://a/p")
			s.get("http://a/q")
			for _, method := range []string{"POST", "PUT", "DELETE"} {
				s.do(request(method, "http://a/p"))
			}
			s.calls.Store(0)
			for _, url := range []string{"http://a/p", "http://a/q"} {
				s.wantBody(t, "GET", url)
			}
			s.wantCalls(t, 0)
		})
	}
}

// When the client may see the first bytes of the answer, the page is gone.
func TestUnsafe_InvalidatesBeforeTheClientSees(t *testing.T) {
	long := strings.Repeat("x", 4<<10)
	for name, answer := range map[string]func(w http.ResponseWriter){
		"a long answer": func(w http.ResponseWriter) { io.WriteString(w, long) },
		"a copy":        func(w http.ResponseWriter) { w.(io.ReaderFrom).ReadFrom(strings.NewReader(long)) },
		"a flush":       func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
	} {
		for _, method := range []string{"PUT", "POST"} {
			inBubble(t, method+" "+name, func(t *testing.T) {
				var s *site
				s = newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					if r.Method == "GET" {
						page(0, "page")(w, r)
						return
					}
					answer(w)
					if s.hits("http://a/p") {
						t.Error("the client sees the answer, and other clients get the old page")
					}
				})
				s.get("http://a/p")
				synctest.Wait()
				if w := s.do(request(method, "http://a/p")).Result(); w.Header.Get("Cache-Status") != "Bellwether;fwd=method" {
					t.Errorf("the answer has the header %v", w.Header)
				}
			})
		}
	}
}

// A client that leaves at its success has changed the page all the same.
func TestUnsafe_ClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		s := newSite(t, bellwether.HTTPOptions{
			Fleet:   bellwether.Fleet{Store: memstore.New()},
			OnError: func(_ string, err error) { t.Error(err) },
		}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "GET" {
				page(0, "page")(w, r)
				return
			}
			leave()
		})
		s.get("http://a/p")
		synctest.Wait()
		s.do(request("PUT", "http://a/p").WithContext(ctx))
		if s.hits("http://a/p") {
			t.Error("the page stays")
		}
	})
}

// Soft invalidations one after another all leave the page to be served stale.
func TestUnsafe_SoftManyTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{UnsafeInvalidation: bellwether.SoftInvalidation}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=600, stale-while-revalidate=60")
			io.WriteString(w, "page")
		})
		s.get("http://a/p")
		for i := range 8 {
			synctest.Wait()
			s.do(request("PUT", "http://a/p"))
			if !s.hits("http://a/p") {
				t.Errorf("after PUT %d the page is not served stale", i+1)
			}
		}
	})
}

// A page loaded before an unsafe handler's return is invalidated too: a commit may come after its header.
func TestUnsafe_CommitBehindTheHeader(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"kept back by net/http": func(w http.ResponseWriter) { io.WriteString(w, "ok") },
		"sent before":           func(w http.ResponseWriter) { w.Write(make([]byte, 4<<10)) },
		"flushed":               func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"with a panic":          func(w http.ResponseWriter) { io.WriteString(w, "ok"); panic(http.ErrAbortHandler) },
	} {
		for _, method := range []string{"PUT", "POST"} {
			inBubble(t, method+" "+name, func(t *testing.T) {
				var state atomic.Int32
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					if r.Method == "GET" {
						fmt.Fprint(w, state.Load())
						return
					}
					defer func() {
						time.Sleep(2 * time.Second)
						state.Add(1)
					}()
					answer(w)
				})
				s.get("http://a/p")
				go s.do(request(method, "http://a/p"))
				time.Sleep(time.Second)
				s.get("http://a/p")
				time.Sleep(2 * time.Second)
				s.wantBody(t, "1", "http://a/p") // after the handler has returned
			})
		}
	}
}

// Requests that offer h2c are cached, and invalidate, as others.
func TestUnsafe_OfferOfH2C(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, r.Method, r.Header["Upgrade"], r.Header["Http2-Settings"])
	})
	offer := []string{"Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABk"}
	for range 2 {
		s.wantBody(t, "GET[] []", "http://a/p", offer...)
	}
	s.wantCalls(t, 1)
	s.do(request("PUT", "http://a/p", offer...))
	s.wantCalls(t, 1)
	s.get("http://a/p")
	s.wantCalls(t, 1) // the PUT has invalidated the page
}

func TestPost_Hijack(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Location", "/")
		if r.Method == "GET" {
			io.WriteString(w, "page")
			return
		}
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		rw.WriteString("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
		rw.Flush()
		conn.Close()
	})
	served := make(chan struct{}, 2)
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handler.ServeHTTP(w, r)
		served <- struct{}{}
	}))
	resp, err := http.Post(server.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusInternalServerError {
		t.Errorf("the client got %s, want the hijacked response", resp.Status)
	}
	<-served // responses are stored after the client's reply
	if resp, err = http.Get(server.URL); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); string(body) != "page" || err != nil {
		t.Errorf("the next GET gets %q, %v", body, err)
	}
}

func TestUnsafe_HijackFails(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		if r.Method != "PUT" {
			return
		}
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack of a recorder: %v, want ErrNotSupported", err)
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	s.get("http://a/p")
	s.do(request("PUT", "http://a/p"))
	s.get("http://a/p")
	s.wantCalls(t, 2) // the page is still stored
}

// The response to a POST is stored only if a GET would have had the same response.
func TestPost_KeepsNobodysOwn(t *testing.T) {
	for name, post := range map[string]*http.Request{
		"a field that retargets": request("POST", "http://a/p", "X-Forwarded-Host", "evil"),
		"an override":            request("POST", "http://a/p", "X-HTTP-Method-Override", "PUT"),
		"a spelling of the Host": request("POST", "http://A:0080/p"),
		"a spelling of the path": request("POST", "http://a/%70"),
		"a part":                 request("POST", "http://a/p", "Range", "items=1-2"),
		"a hop's field":          request("POST", "http://a/p", "TE", "evil"),
		"no-store":               request("POST", "http://a/p", "Cache-Control", "no-store"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Location", "/p")
				fmt.Fprint(w, r.Method, r.Host, r.Header.Get("X-Forwarded-Host"), r.Header.Get("X-HTTP-Method-Override"))
			})
			s.do(post)
			s.wantBody(t, "GETa", "http://a/p") // the next GET
		})
	}
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Location", "/p")
		fmt.Fprint(w, "<html>")
	})
	s.do(request("POST", "http://a/p", "Connection", "keep-alive", "Cache-Control", "evil", "Content-Type", "text/plain"))
	if w := s.get("http://a/p"); w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("the next GET gets %v", w.Header())
	}
	s.wantCalls(t, 1)
}

func TestPost_Age(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Location", "/p")
			w.WriteHeader(http.StatusOK)
			if r.Method == "POST" {
				time.Sleep(50 * time.Second)
			}
			io.WriteString(w, r.Method)
		})
		s.do(request("POST", "http://a/p"))
		if w := s.get("http://a/p"); w.Body.String() != "POST" || w.Header().Get("Age") != "50" {
			t.Errorf("50 s after the header: %q %v", w.Body, w.Header())
		}
		time.Sleep(11 * time.Second)
		s.wantBody(t, "GET", "http://a/p") // 61 s after the header, with max-age=60
	})
}

// RFC 9110 section 9.3.3.
func TestPost_MayAnswerTheNextGet(t *testing.T) {
	explicit := http.Header{"Cache-Control": {"max-age=60"}, "Content-Location": {"/p"}}
	with := func(name, value string) http.Header {
		h := explicit.Clone()
		h.Set(name, value)
		return h
	}
	for name, test := range map[string]struct {
		header http.Header
		stored bool
		store  driver.Store
	}{
		"explicit freshness, own location": {explicit, true, nil},
		"private":                          {with("Cache-Control", "private, max-age=60"), false, nil},
		"no-store":                         {with("Cache-Control", "no-store, max-age=60"), false, nil},
		"set-cookie":                       {with("Set-Cookie", "session=1"), false, nil},
		"shorter than announced":           {with("Content-Length", "9"), false, nil},
		"an event stream":                  {with("Content-Type", "text/event-stream"), false, nil},
		"a header of 64 KiB":               {with("X-Long", strings.Repeat("x", 64<<10)), false, nil},
		"a store that others write to":     {explicit, false, memstore.New()},
	} {
		inBubble(t, name, func(t *testing.T) {
			o := bellwether.HTTPOptions{StoreSetCookie: true, Fleet: bellwether.Fleet{Store: test.store}}
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
	}
}

// The responses to two overlapping POSTs are not stored, because their order is unknown.
func TestPost_OverlappingKeepNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Location", "/p")
			now := state.Load()
			if r.Method == "POST" {
				now = state.Add(1)
				time.Sleep(time.Duration(3-now) * time.Second) // the first ends last
			}
			fmt.Fprint(w, now)
		})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { s.do(request("POST", "http://a/p")) })
			synctest.Wait()
		}
		wg.Wait()
		s.wantBody(t, "2", "http://a/p")
	})
}

// The body of a POST arrives whole through ReadFrom, and is stored whole or not at all.
func TestPost_BodyArrivesWhole(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	length := map[string]int{"/kept": 1 << 10, "/long": 1 << 20, "/other": 1 << 20}
	s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 1 << 10}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/other" {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Location", r.URL.Path)
		}
		io.Copy(w, struct{ io.Reader }{bytes.NewReader(body[:length[r.URL.Path]])}) // without WriteTo
	})
	server := serve(t, s.handler)
	for path, n := range length {
		res, err := http.Post(server.URL+path, "text/plain", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if !bytes.Equal(got, body[:n]) || err != nil {
			t.Errorf("%s: %d of %d bytes, %v", path, len(got), n, err)
		}
		w := s.get(server.URL + path)
		if hit := strings.Contains(w.Header().Get("Cache-Status"), "hit"); w.Body.Len() != n || hit != (path == "/kept") {
			t.Errorf("GET %s: %d of %d bytes, %v", path, w.Body.Len(), n, w.Header())
		}
	}
}

// A ReadFrom that fails before its first byte sends nothing, and the handler's later response counts.
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

// Concurrent unsafe requests for two URLs in two processes take effect in both, also without a Locker.
func TestUnsafe_SoftWithoutALocker(t *testing.T) {
	for name, tt := range map[string]struct {
		kind   bellwether.Invalidation
		locker driver.Locker
		one    bool
	}{
		"hard": {}, "soft": {kind: bellwether.SoftInvalidation}, "soft, one process": {kind: bellwether.SoftInvalidation, one: true},
		"soft, with a Locker": {kind: bellwether.SoftInvalidation, locker: farLocker()},
	} {
		inBubble(t, name, func(t *testing.T) {
			var version sync.Map
			h := func(w http.ResponseWriter, r *http.Request) {
				n, _ := version.LoadOrStore(r.URL.Path, 0)
				if r.Method == "PUT" {
					version.Store(r.URL.Path, n.(int)+1)
					return
				}
				w.Header().Set("Cache-Control", "max-age=600")
				fmt.Fprint(w, n)
			}
			o := bellwether.HTTPOptions{UnsafeInvalidation: tt.kind, Fleet: bellwether.Fleet{Store: farStore(memstore.New()), Locker: tt.locker}}
			p := pair{newSite(t, o, h), newSite(t, o, h)}
			if tt.one {
				p.second = p.first
			}
			time.Sleep(2 * time.Second)
			lost := 0
			for i := range 20 {
				urls := []string{fmt.Sprintf("http://a/a%d", i), fmt.Sprintf("http://a/b%d", i)}
				for _, u := range urls {
					p.first.get(u)
					p.second.get(u)
				}
				time.Sleep(2 * time.Second)
				var wg sync.WaitGroup
				wg.Go(func() { p.first.do(request("PUT", urls[0])) })
				wg.Go(func() {
					time.Sleep(time.Duration(i%5) * 500 * time.Microsecond)
					p.second.do(request("PUT", urls[1]))
				})
				wg.Wait()
				time.Sleep(5 * time.Second)
				for j, u := range urls {
					for k, s := range []*site{p.first, p.second} {
						if w := s.get(u); w.Body.String() != "1" {
							lost++
							if lost == 1 {
								t.Logf("URL %d in process %d, 5 s later: %q %s", j, k, w.Body, w.Header().Get("Cache-Status"))
							}
						}
					}
				}
				time.Sleep(5 * time.Second)
			}
			if lost > 0 {
				t.Errorf("%d of 80 replies are from before the PUT", lost)
			}
		})
	}
}

// Concurrent soft invalidations displace no older sweep from the log, and delay no request for long.
func TestUnsafe_SoftFloodAtOneTime(t *testing.T) {
	for _, n := range []int{100, 1000} {
		inBubble(t, fmt.Sprint(n), func(t *testing.T) {
			o := bellwether.HTTPOptions{UnsafeInvalidation: bellwether.SoftInvalidation}
			o.Fleet.Store, o.Fleet.Locker = farStore(memstore.New()), farLocker()
			s := newSite(t, o, page(0, "page"))
			time.Sleep(time.Second)
			s.get("http://a/popular")
			time.Sleep(time.Second)
			var longest atomic.Int64
			var failed atomic.Int32
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					began := time.Now()
					if w := s.do(request("POST", fmt.Sprint("http://a/", i))); w.Code != 200 {
						failed.Add(1)
					}
					for d := int64(time.Since(began)); ; {
						if l := longest.Load(); d <= l || longest.CompareAndSwap(l, d) {
							break
						}
					}
				})
			}
			wg.Wait()
			s.calls.Store(0)
			if w := s.get("http://a/popular"); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Errorf("another page after %d unsafe requests at one time: %v", n, w.Header())
			}
			if d := time.Duration(longest.Load()); d > 2*time.Second || failed.Load() > 0 {
				t.Errorf("one of %d unsafe requests took %v for a handler of 0 s, and %d failed", n, d, failed.Load())
			}
		})
	}
}

// With a Key of its own, a location counts from the request's URL, and names the page that a GET to it would get.
func TestUnsafe_LocationsByKey(t *testing.T) {
	rules := bellwether.Keys(bellwether.SortedQuery(), bellwether.WithoutQuery("utm"))
	key := func(r *http.Request) (bellwether.Key, bool) {
		switch {
		case r.URL.Path == "/items/1/edit":
			return bellwether.Key{URL: "http://shop/items/1"}, true
		case strings.HasPrefix(r.URL.Path, "/sorted"):
			return rules(r)
		}
		return bellwether.Key{URL: "http://shop" + r.URL.RequestURI()}, true
	}
	for location, gone := range map[string]string{
		"/items":                     "/items",
		"history":                    "/items/1/history",
		"../../items":                "/items",
		"http://node1/items":         "/items", // the host that the handler sees
		"http://shop/items":          "/items", // the host of the key
		"http://evil/items":          "",
		"/sorted?utm=x&b=2&a=1":      "/sorted?a=1&b=2",
		"/items/1/edit":              "/items/1",
		"/history":                   "/history",
		"http://evil@node1/items":    "",
		"http://node1:81/items":      "",
		"http://node1:80/./items#at": "/items",
	} {
		inBubble(t, location, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{InvalidateLocations: true, Key: key}, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "POST" {
					r.ParseForm()
					w.Header().Set("Location", location)
					w.WriteHeader(http.StatusCreated)
					return
				}
				w.Header().Set("Cache-Control", "max-age=600")
			})
			paths := []string{"/items", "/history", "/items/history", "/items/1/history", "/sorted?a=1&b=2"}
			for _, path := range paths {
				s.get("http://node1" + path)
			}
			synctest.Wait()
			s.do(request("POST", "http://node1/items/1/edit"))
			for _, path := range paths {
				s.calls.Store(0)
				s.get("http://node1" + path)
				if ran := s.calls.Load() == 1; ran != (path == gone) {
					t.Errorf("Location %q: %s is gone: %v", location, path, ran)
				}
			}
			synctest.Wait()
		})
	}
}

// A POST's response is not kept for another page, whose URL Key has returned.
func TestUnsafe_PostUnderAnotherKey(t *testing.T) {
	for _, location := range []string{"page", "/dir/page", "/page", "/dir/edit"} {
		inBubble(t, location, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
				if r.URL.Path == "/dir/edit" {
					return bellwether.Key{URL: "http://a/page"}, true
				}
				return bellwether.Key{}, true
			}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=600")
				w.Header().Set("Content-Location", location)
				fmt.Fprint(w, r.Method)
			})
			s.do(request("POST", "http://a/dir/edit"))
			synctest.Wait()
			s.wantBody(t, "GET", "http://a/page")
			synctest.Wait()
		})
	}
}

// A panic of Key for a location leaves the request's own URL invalidated, and is reported.
func TestUnsafe_KeyPanicsForALocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported []error
		key := func(r *http.Request) (bellwether.Key, bool) {
			if r.URL.Path == "/items/2" {
				panic("planned")
			}
			return bellwether.Key{}, true
		}
		o := bellwether.HTTPOptions{InvalidateLocations: true, Key: key, OnError: func(_ string, err error) { reported = append(reported, err) }}
		s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" {
				w.Header().Set("Location", "/items/2")
				w.WriteHeader(http.StatusCreated)
				return
			}
			w.Header().Set("Cache-Control", "max-age=600")
		})
		s.get("http://a/items")
		synctest.Wait()
		if w := s.do(request("POST", "http://a/items")); w.Code != 201 {
			t.Errorf("the POST has the status %d", w.Code)
		}
		s.calls.Store(0)
		s.get("http://a/items")
		s.wantCalls(t, 1)
		synctest.Wait()
		if len(reported) != 1 {
			t.Errorf("reported: %v", reported)
		}
	})
}

// A location counts from the URL that the client has sent, also behind http.StripPrefix.
func TestUnsafe_LocationBehindStripPrefix(t *testing.T) {
	for location, gone := range map[string]bool{"items": true, "/api/items": true, "../items": false, "/items": false} {
		inBubble(t, location, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{InvalidateLocations: true, Key: bellwether.Keys()}, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "POST" {
					w.Header().Set("Location", location)
					w.WriteHeader(http.StatusCreated)
					return
				}
				w.Header().Set("Cache-Control", "max-age=600")
			})
			s.handler = http.StripPrefix("/api", s.handler)
			s.get("http://a/api/items")
			synctest.Wait()
			s.do(request("POST", "http://a/api/orders"))
			s.calls.Store(0)
			s.get("http://a/api/items")
			if ran := s.calls.Load() == 1; ran != gone {
				t.Errorf("the page is gone: %v, want %v", ran, gone)
			}
			synctest.Wait()
		})
	}
}

// A handler that changes its request, as a proxy does, changes nothing about the URL that the client has named.
func TestUnsafe_HandlerChangesItsRequest(t *testing.T) {
	for name, change := range map[string]func(r *http.Request){
		"path":   func(r *http.Request) { r.URL.Path = "/internal" + r.URL.Path },
		"host":   func(r *http.Request) { r.Host, r.URL.Host = "10.0.0.1:8080", "10.0.0.1:8080" },
		"method": func(r *http.Request) { r.Method = "GET" },
	} {
		for _, method := range []string{"POST", "PUT"} {
			inBubble(t, name+" of a "+method, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					change(r)
					page(0, "page")(w, r)
				})
				s.get("http://a/p")
				synctest.Wait()
				s.do(request(method, "http://a/p"))
				s.get("http://a/p")
				s.wantCalls(t, 3)
			})
		}
	}
}

// A login check that removes the credentials from its request makes no page of one client's answer.
func TestPost_HandlerRemovesTheCredentials(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		user := r.Header.Get("Authorization")
		r.Header.Del("Authorization")
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Location", "/p")
		fmt.Fprintf(w, "page of %q", user)
	})
	s.do(request("POST", "http://a/p", "Authorization", "alice"))
	s.wantBody(t, `page of ""`, "http://a/p")
}

// A copy of a response is complete by the Content-Length that the client has got, and not by the handler's later one:
// http.Error removes the field.
func TestPost_LengthChangesBehindTheHeader(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w http.ResponseWriter)
		next   string // the page of the next client
	}{
		"http.Error": {func(w http.ResponseWriter) { http.Error(w, "failed", http.StatusInternalServerError) }, ""},
		"set": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "10")
			io.WriteString(w, "first half")
			io.WriteString(w, "second half")
		}, "first halfsecond half"},
	} {
		for _, method := range []string{"GET", "POST"} {
			inBubble(t, name+" of a "+method, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "public, max-age=60")
					w.Header().Set("Content-Location", "/p")
					if r.Header.Get("Authorization") == "" {
						return
					}
					if name == "set" {
						w.WriteHeader(http.StatusOK)
					} else {
						w.Header().Set("Content-Length", "100")
						io.WriteString(w, "first half")
					}
					test.change(w)
				})
				s.do(request(method, "http://a/p", "Authorization", "x"))
				s.wantBody(t, test.next, "http://a/p")
			})
		}
	}
}

// The handler's part of a header is what the handler has made of it, also by a change in place of an outer middleware's
// value: the response that it makes private so is for its own client.
func TestPost_OuterValueChangedInPlace(t *testing.T) {
	for _, method := range []string{"POST", "GET"} {
		inBubble(t, method, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				h, user := w.Header(), r.Header.Get("Authorization")+r.Header.Get("X-User")
				if user != "" {
					h["Cache-Control"][0] += ", private"
				}
				h.Add("Cache-Control", "public, max-age=60")
				h.Set("Content-Location", "/p")
				fmt.Fprintf(w, "page of %q", user)
			})
			cached := s.handler
			s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "no-transform")
				cached.ServeHTTP(w, r)
			})
			field := map[string]string{"POST": "X-User", "GET": "Authorization"}[method]
			s.do(request(method, "http://a/p", field, "alice"))
			s.wantBody(t, `page of ""`, "http://a/p")
		})
	}
}

// A response without a length is complete if its client is still there, whatever context the handler gives its request.
func TestPost_HandlerReplacesItsContext(t *testing.T) {
	for _, method := range []string{"POST", "GET"} {
		inBubble(t, method, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=60")
				w.Header().Set("Content-Location", "/p")
				left := r.Context().Done()
				*r = *r.WithContext(context.WithoutCancel(r.Context()))
				io.WriteString(w, "half ")
				select {
				case <-left:
				case <-time.After(time.Second):
					io.WriteString(w, "whole")
				}
			})
			below := context.WithValue(t.Context(), http.ServerContextKey, new(http.Server)) // the handler gets the client's own request
			ctx, cancel := context.WithTimeout(below, 500*time.Millisecond)
			defer cancel()
			s.do(request(method, "http://a/p", "Authorization", "x").WithContext(ctx))
			s.wantBody(t, "half whole", "http://a/p")
		})
	}
}

// An unsafe request invalidates its own URL whatever Key does for a location of the response.
func TestUnsafe_KeyExitsForALocation(t *testing.T) {
	for _, method := range []string{"PUT", "POST"} {
		inBubble(t, method, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{InvalidateLocations: true, Key: func(r *http.Request) (bellwether.Key, bool) {
				if r.URL.Path == "/located" {
					runtime.Goexit()
				}
				return bellwether.Key{}, true
			}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/located")
				page(0, "page")(w, r)
			})
			s.get("http://a/p")
			synctest.Wait()
			var exiting sync.WaitGroup
			exiting.Go(func() { s.do(request(method, "http://a/p")) })
			exiting.Wait()
			s.get("http://a/p")
			s.wantCalls(t, 3)
		})
	}
}
