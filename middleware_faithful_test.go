package bellwether_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
	"github.com/go-chi/chi/v5"
)

// This file holds that a handler behind the middleware meets what it would meet
// without, and its clients get what they would get: where the cache is in between,
// and need not be noticed.

// A handler that is run a second time for a key, after an invalidation or a 304
// about something else, does not meet what routers and middlewares have left in the
// request of the first run.
func TestExchange_SecondRun(t *testing.T) {
	unselected := func(r *http.Request, _ int32, _ *bellwether.Middleware) int {
		if r.Header.Get("If-None-Match") != "" {
			return http.StatusNotModified
		}
		return http.StatusOK
	}
	for name, again := range map[string]func(r *http.Request, run int32, mw *bellwether.Middleware) (status int){
		"invalidated": func(r *http.Request, run int32, mw *bellwether.Middleware) int {
			if run == 1 {
				mw.Invalidate(context.Background(), "http://a/api/x/1")
			}
			return http.StatusOK
		},
		"304 about something else":           unselected,
		"no-cache, 304 about something else": unselected,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
				defer mw.Close()
				var runs atomic.Int32
				router := chi.NewRouter()
				router.Use(mw.Handler)
				router.Route("/api", func(router chi.Router) {
					router.Use(func(next http.Handler) http.Handler {
						return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							r.URL.Path += "/sub"
							r.Header.Add("X-Seen", "1")
							next.ServeHTTP(w, r)
						})
					})
					router.Get("/x/{id}", func(w http.ResponseWriter, r *http.Request) {
						run := runs.Add(1)
						w.Header().Set("Cache-Control", "max-age=1")
						if strings.HasPrefix(name, "no-cache") {
							w.Header().Set("Cache-Control", "no-cache")
						}
						w.Header().Set("ETag", fmt.Sprintf(`"%d"`, run))
						w.WriteHeader(again(r, run, mw))
						fmt.Fprint(w, chi.URLParam(r, "id"), r.URL.Path, r.Header["X-Seen"])
					})
				})
				router.Get("/x/{id}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "another page") })
				for range 3 {
					w := httptest.NewRecorder()
					router.ServeHTTP(w, request("GET", "http://a/api/x/1"))
					if w.Body.String() != "1/api/x/1/sub[1]" {
						t.Errorf("got %q", w.Body)
					}
					time.Sleep(2 * time.Second)
				}
				if runs.Load() < 4 {
					t.Errorf("%d runs: there was no second one", runs.Load())
				}
			})
		})
	}
}

// Some clients offer h2c with each request in plain. What they change is changed,
// and what they ask for is shared.
func TestHTTP_OfferOfH2C(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, r.Method, r.Header["Upgrade"], r.Header["Http2-Settings"])
	})
	offer := []string{"Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABk"}
	for range 2 {
		if w := s.get("http://a/p", offer...); w.Body.String() != "GET[] []" {
			t.Errorf("GET: %q", w.Body)
		}
	}
	s.wantCalls(t, 1)
	s.do(request("PUT", "http://a/p", offer...))
	s.wantCalls(t, 1)
	s.get("http://a/p")
	s.wantCalls(t, 1) // it was invalidated
}

// The handler of an unsafe request can take the connection over, as without a cache.
func TestHTTP_UnsafeHijack(t *testing.T) {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	server := httptest.NewServer(mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")
		rw.Flush()
	})))
	defer server.Close()
	resp, err := http.Post(server.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); string(body) != "mine" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
}

// What a POST says over a connection that it has taken over answers no GET.
func TestHTTP_PostHijack(t *testing.T) {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	server := httptest.NewServer(mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	})))
	defer server.Close()
	resp, err := http.Post(server.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	time.Sleep(50 * time.Millisecond) // what would be kept is kept behind the client's back
	if resp, err = http.Get(server.URL); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); string(body) != "page" || err != nil {
		t.Errorf("the next GET gets %q, %v", body, err)
	}
}

// Where it cannot, what it says then is what counts.
func TestHTTP_UnsafeHijackFails(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		if r.Method != "PUT" {
			return
		}
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("a recorder's connection: %v", err)
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	s.get("http://a/p")
	s.do(request("PUT", "http://a/p"))
	s.get("http://a/p")
	s.wantCalls(t, 2) // the page is still there
}

// What a POST has answered for the next GET is what the GET would have got, or it
// is not kept.
func TestHTTP_PostKeepsNobodysOwn(t *testing.T) {
	for name, fields := range map[string][]string{
		"a field that retargets": {"X-Forwarded-Host", "evil"},
		"an override":            {"X-HTTP-Method-Override", "PUT"},
		"a spelling of the Host": {"Host", "A:0080"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Location", "/p")
				fmt.Fprint(w, r.Host, r.Header.Get("X-Forwarded-Host"), r.Header.Get("X-HTTP-Method-Override"))
			})
			r := request("POST", "http://a/p", fields...)
			if fields[0] == "Host" {
				r.Host = fields[1]
			}
			s.do(r)
			if w := s.get("http://a/p"); w.Body.String() != "a" {
				t.Errorf("the next GET gets %q", w.Body)
			}
		})
	}
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Location", "/p")
		fmt.Fprint(w, "<html>")
	})
	s.do(request("POST", "http://a/p"))
	if w := s.get("http://a/p"); w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("the next GET gets %v", w.Header())
	}
	s.wantCalls(t, 1)
}

// The age of what a POST has answered counts from its header, as a GET's does.
func TestHTTP_PostAge(t *testing.T) {
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
		if w := s.get("http://a/p"); w.Body.String() != "GET" {
			t.Errorf("61 s after the header, with max-age=60: %q %v", w.Body, w.Header())
		}
	})
}

// A panic is not a load's word that there is no such thing, whatever it is made of.
func TestHTTP_PanicWithNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.HTTPOptions{Options: bellwether.Options{TTL: time.Minute, Store: memstore.New()}}
		s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
			if time.Now().Second() == 0 {
				panic(fmt.Errorf("user 42: %w", bellwether.ErrNotFound))
			}
			fmt.Fprint(w, "page")
		})
		if w := s.get("http://a/p"); w.Code != -1 {
			t.Errorf("the client whose handler panics gets %d", w.Code)
		}
		time.Sleep(10 * time.Second)
		if w := s.get("http://a/p"); w.Body.String() != "page" {
			t.Errorf("the next gets %d %q", w.Code, w.Body)
		}
	})
}

// Nor is it the end of a context, or that there is too much to do: the failure is
// remembered, and who waited is told that the handler has failed.
func TestHTTP_PanicWithTellingErrors(t *testing.T) {
	for _, says := range []error{context.DeadlineExceeded, context.Canceled, bellwether.ErrOverloaded, bellwether.ErrWaitTimeout, bellwether.ErrClosed} {
		t.Run(says.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := bellwether.HTTPOptions{Options: bellwether.Options{TTL: time.Minute, ErrorTTL: 5 * time.Second}}
				s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(time.Second)
					panic(fmt.Errorf("db: %w", says))
				})
				got := s.burst(3, same("http://a/p"))
				for outcome, n := range got {
					if !strings.HasPrefix(outcome, "502 ") && (n != 1 || !strings.HasPrefix(outcome, "-1 ")) {
						t.Errorf("%d get %q; want 502, and the first the panic", n, outcome)
					}
				}
				if w := s.get("http://a/p"); w.Code != http.StatusBadGateway {
					t.Errorf("the next gets %d, want 502", w.Code)
				}
				s.wantCalls(t, 1)
			})
		})
	}
}

// The stack of a handler that panics is told, also behind the header of a response
// that is one client's alone.
func TestHTTP_PanicIsTold(t *testing.T) {
	for _, control := range []string{"max-age=60", "private"} {
		t.Run(control, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told := make(chan error, 9)
				o := bellwether.HTTPOptions{Options: bellwether.Options{Observers: []bellwether.Observer{{
					Rebuild: func(ctx context.Context, _ string) (context.Context, func(bellwether.Rebuild)) {
						return ctx, func(r bellwether.Rebuild) { told <- r.Err }
					},
					Error: func(_ string, err error) { told <- err },
				}}}}
				s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", control)
					io.WriteString(w, "part of a page")
					time.Sleep(time.Second)
					panic("boom")
				})
				if w := s.get("http://a/p"); w.Code != -1 {
					t.Errorf("its client gets %d", w.Code)
				}
				synctest.Wait()
				close(told)
				for err := range told {
					if p, ok := errors.AsType[*bellwether.PanicError](err); ok && p.Value == "boom" && len(p.Stack) > 0 {
						return
					}
				}
				t.Error("nobody was told")
			})
		})
	}
}

// A handler that answers one client alone is not cut short because that client
// gets no body.
func TestReply_PrivateWithoutBody(t *testing.T) {
	for _, r := range []*http.Request{
		request("GET", "http://a/p"), request("HEAD", "http://a/p"), request("GET", "http://a/p", "If-None-Match", `"e"`),
	} {
		synctest.Test(t, func(t *testing.T) {
			var ended bool
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "private")
				w.Header().Set("Etag", `"e"`)
				io.WriteString(w, "page")
				select { // such as the commit of a transaction
				case <-r.Context().Done():
				case <-time.After(time.Second):
					ended = true
				}
			})
			w := s.do(r.Clone(t.Context()))
			synctest.Wait()
			if !ended {
				t.Errorf("%s %v: its context ended while the client was there", r.Method, r.Header)
			}
			if w.Header()["Age"] != nil {
				t.Errorf("%s %v: Age %q, of what the handler has made for this client", r.Method, r.Header, w.Header()["Age"])
			}
		})
	}
}

// The handler of a HEAD is cut short when it writes without end, whether the page is known
// as private or not.
func TestReply_HeadOfALongPrivateBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written atomic.Int64
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private")
			for range 1 << 15 {
				if _, err := w.Write(make([]byte, 1<<15)); err != nil {
					if r.Context().Err() == nil {
						t.Errorf("the context goes on behind %v", err)
					}
					return
				}
				written.Add(1 << 15)
			}
		})
		for _, which := range []string{"first", "known"} {
			r := request("HEAD", "http://a/p")
			if w := s.do(r.Clone(t.Context())); w.Code != 200 || w.Header().Get("Cache-Control") != "private" {
				t.Errorf("%s: %d %v", which, w.Code, w.Header())
			}
			synctest.Wait()
			if n := written.Swap(0); n > 256<<10 {
				t.Errorf("%s: %d bytes were written for a HEAD", which, n)
			}
		}
	})
}

// A range of a response that is not kept is a part of the one run of its handler, where the
// length is known. Else the client gets the whole.
func TestReply_RangeOfUnkept(t *testing.T) {
	body := strings.Repeat("0123456789", 20)
	for name, tt := range map[string]struct {
		fields       []string
		length       bool
		status       int
		contentRange string
		body         string
	}{
		"a range":                  {[]string{"Range", "bytes=150-154"}, true, 206, "bytes 150-154/200", "01234"},
		"to the end":               {[]string{"Range", "bytes=195-"}, true, 206, "bytes 195-199/200", "56789"},
		"beyond the end":           {[]string{"Range", "bytes=195-300"}, true, 206, "bytes 195-199/200", "56789"},
		"the end":                  {[]string{"Range", "bytes=-3"}, true, 206, "bytes 197-199/200", "789"},
		"all and more":             {[]string{"Range", "bytes=-300"}, true, 206, "bytes 0-199/200", body},
		"of the tag":               {[]string{"Range", "bytes=0-0", "If-Range", `"e"`}, true, 206, "bytes 0-0/200", "0"},
		"of another tag":           {[]string{"Range", "bytes=0-0", "If-Range", `"f"`}, true, 200, "", body},
		"if not since":             {[]string{"Range", "bytes=0-0", "If-Range", lastYear}, true, 200, "", body},
		"two":                      {[]string{"Range", "bytes=0-0,5-6"}, true, 200, "", body},
		"none there":               {[]string{"Range", "bytes=200-"}, true, 200, "", body},
		"nonsense":                 {[]string{"Range", "bytes=5-4"}, true, 200, "", body},
		"another unit":             {[]string{"Range", "lines=1-2"}, true, 200, "", body},
		"of nobody knows how long": {[]string{"Range", "bytes=0-0"}, false, 200, "", body},
	} {
		for kind, o := range map[string]bellwether.HTTPOptions{"private": {}, "max-age=60": {MaxBody: 100}} {
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Cache-Control", kind)
						w.Header().Set("ETag", `"e"`)
						if tt.length {
							w.Header().Set("Content-Length", "200")
						}
						for range 10 {
							io.WriteString(w, body[:20])
						}
					})
					w := s.get("http://a/p", tt.fields...)
					if w.Code != tt.status || w.Header().Get("Content-Range") != tt.contentRange || w.Body.String() != tt.body {
						t.Errorf("%d %q %q, want %d %q %q", w.Code, w.Header().Get("Content-Range"), w.Body, tt.status, tt.contentRange, tt.body)
					}
					if n := w.Header().Get("Content-Length"); n != "" && n != fmt.Sprint(len(tt.body)) {
						t.Errorf("Content-Length %s of %d bytes", n, len(tt.body))
					}
					s.wantCalls(t, 1)
				})
			})
		}
	}
}

// A request for many ranges gets the whole.
func TestReply_ManyRanges(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, page(0, strings.Repeat("0123456789", 100)))
	s.get("http://a/p")
	for n, status := range map[int]int{2: 206, 16: 206, 17: 200, 250_000: 200} {
		w := s.get("http://a/p", "Range", "bytes="+strings.TrimSuffix(strings.Repeat("0-0,", n), ","))
		if w.Code != status {
			t.Errorf("%d ranges: %d with %d bytes, want %d", n, w.Code, w.Body.Len(), status)
		}
	}
}

// What was made stale is stale since then, for a request that takes what is so long
// stale, too.
func TestReply_MaxStaleOfSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
		})
		s.get("http://a/p")
		synctest.Wait() // until it is kept
		if err := s.mw.InvalidateMatching(t.Context(), bellwether.Match{URLs: []string{"http://a/p"}, Soft: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Second)
		s.get("http://a/p", "Cache-Control", "max-stale=200")
		s.wantCalls(t, 1)
		s.get("http://a/p", "Cache-Control", "max-stale=5")
		s.wantCalls(t, 1)
	})
}

// Clients that read one response have trailers of their own to announce: what a
// middleware outside adds for one is no other's. The race detector is what fails here.
func TestReply_TrailerIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Trailer", "A, B, C")
			io.WriteString(w, "page")
			time.Sleep(time.Second)
		})
		inner := s.handler
		s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { inner.ServeHTTP(addsTrailer{w}, r) })
		s.burst(8, same("http://a/p"))
		s.wantCalls(t, 1)
	})
}

type addsTrailer struct{ http.ResponseWriter }

func (w addsTrailer) WriteHeader(status int) {
	w.Header().Add("Trailer", "D")
	w.ResponseWriter.WriteHeader(status)
}

// A request whose context ends may have a client that is there, as when a server
// is shut down: it is not told that all is well.
func TestReply_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		w := s.do(request("GET", "http://a/p").WithContext(ctx))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		s.mw.Close()
	})
}

// A type that is guessed is as good as net/http's guess: made from the first bytes
// that tell, and no better than what a middleware outside says.
func TestReply_GuessedType(t *testing.T) {
	for _, tt := range []struct {
		want   string
		pieces []string
	}{
		{"text/html; charset=utf-8", []string{"\n ", "<", "!DOC", "TYPE html>", "<p>"}},
		{"text/xml; charset=utf-8", []string{"<?x", "ml version='1.0'?>"}},
		{"text/plain; charset=utf-8", []string{"<", "3 of you"}},
		{"image/webp", []string{"RIFF", "....", "WEBPVP8"}},
		// It begins too late to be seen.
		{"text/plain; charset=utf-8", []string{strings.Repeat(" ", 300), strings.Repeat("\n", 300), strings.Repeat("\t", 300), "<html>"}},
	} {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			for _, p := range tt.pieces {
				io.WriteString(w, p)
			}
		})
		inner := s.handler
		direct, cached := httptest.NewServer(written(tt.pieces)), httptest.NewServer(s.mw.Handler(written(tt.pieces)))
		defer direct.Close()
		defer cached.Close()
		for range 2 { // made, and kept
			if want, got := typeOf(t, direct.URL), typeOf(t, cached.URL); got != want {
				t.Errorf("%q behind a WriteHeader: %q, want %q as without the cache", tt.pieces, got, want)
			}
		}
		for _, url := range []string{"http://a/p", "http://a/p"} { // made, and kept
			if w := s.get(url); w.Header().Get("Content-Type") != tt.want || w.Body.String() != strings.Join(tt.pieces, "") {
				t.Errorf("%q: %v %q", tt.pieces, w.Header(), w.Body)
			}
		}
		s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			inner.ServeHTTP(w, r)
		})
		for _, fields := range [][]string{nil, {"Range", "bytes=0-1"}, {"Cache-Control", "no-cache"}} {
			if w := s.get("http://a/p", fields...); w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%v, with a type outside: %v", fields, w.Header())
			}
		}
	}
}

// written is a handler that writes its header first.
func written(pieces []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.WriteHeader(http.StatusNotFound)
		for _, p := range pieces {
			io.WriteString(w, p)
			time.Sleep(time.Millisecond)
		}
	})
}

func typeOf(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	return resp.Header.Get("Content-Type")
}

// What comes behind a Write that was refused does not stand in its place.
func TestExchange_HoleInBody(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Length", "8")
		io.WriteString(w, "head ")
		if _, err := io.WriteString(w, "too long"); !errors.Is(err, http.ErrContentLength) {
			t.Errorf("too long: %v", err)
		}
		if _, err := io.WriteString(w, "end"); !errors.Is(err, http.ErrContentLength) {
			t.Errorf("behind it: %v", err)
		}
	})
	for _, want := range []int{-1, http.StatusBadGateway} { // broken off; and nothing is kept but that
		if w := s.get("http://a/p"); w.Code != want {
			t.Errorf("%d %q, want %d", w.Code, w.Body, want)
		}
	}
}

// The date of what was modified in the second in which it was sent says nothing
// about the rest of that second (RFC 9110 section 8.8.2.2).
func TestReply_IfRangeWeakDate(t *testing.T) {
	for modified, want := range map[string]int{"Sat, 01 Jan 2000 00:00:10 GMT": 200, "Sat, 01 Jan 2000 00:00:09 GMT": 206} {
		synctest.Test(t, func(t *testing.T) { // which begins in 2000
			time.Sleep(10 * time.Second)
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Last-Modified", modified)
				w.Header().Set("Date", "Sat, 01 Jan 2000 00:00:10 GMT")
				io.WriteString(w, "0123456789")
			})
			s.get("http://a/p")
			if w := s.get("http://a/p", "Range", "bytes=2-4", "If-Range", modified); w.Code != want {
				t.Errorf("modified at %s: %d, want %d", modified, w.Code, want)
			}
		})
	}
}

// The first client of what is not kept gets what the handler makes of its own
// request, where that matters: the answer to its condition, its range, and the
// fields between the two.
func TestReply_FirstOfWhatIsNotKept(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789"), 20)
	s := newSite(t, bellwether.HTTPOptions{MaxBody: 100}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/private", "/private-range":
			w.Header().Set("Cache-Control", "private")
		case "/large":
			w.Header().Set("Cache-Control", "max-age=60")
		case "/426":
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "HTTP/3")
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		w.Header().Set("ETag", `"e"`)
		http.ServeContent(w, r, "p.txt", time.Time{}, bytes.NewReader(body))
	})
	for _, tt := range []struct {
		path, field, value string
		status, length     int
	}{
		{"/private", "If-None-Match", `"e"`, 304, 0},
		{"/private-range", "Range", "bytes=2-4", 206, 3},
		{"/large", "Range", "bytes=150-", 206, 50},
		{"/426", "Accept", "*/*", 426, 0},
	} {
		for _, which := range []string{"first", "next"} {
			w := s.get("http://a"+tt.path, tt.field, tt.value)
			if w.Code != tt.status || w.Body.Len() != tt.length {
				t.Errorf("%s, %s %s, the %s: %d and %d bytes, want %d and %d: %v", tt.path, tt.field, tt.value, which, w.Code, w.Body.Len(), tt.status, tt.length, w.Header())
			}
			if tt.status == 426 && w.Header().Get("Upgrade") != "HTTP/3" {
				t.Errorf("the %s: %v, want to be told the upgrade", which, w.Header())
			}
			if strings.Contains(w.Header().Get("Cache-Status"), "stored") {
				t.Errorf("%s, the %s: %v", tt.path, which, w.Header())
			}
		}
	}
}
