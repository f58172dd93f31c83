package bellwether_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
	"github.com/go-chi/chi/v5/middleware"
)

// This file is the middleware in its place: between clients that lie, stall or
// leave and the handler, inside of other middlewares, before other caches.

// One middleware around another's run of the same handler would wait for itself.
func TestBetween_TwiceInOneChain(t *testing.T) {
	for name, between := range map[string]func(http.Handler) http.Handler{
		"at once":                  func(h http.Handler) http.Handler { return h },
		"with a writer of its own": middleware.Compress(5),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
				defer mw.Close()
				runs := 0
				h := mw.Handler(between(mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(time.Millisecond) // or who begins the rebuild may find its response
					runs++
					w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=60")
					fmt.Fprint(w, "page ", runs)
				}))))
				for i, want := range []string{"page 1", "page 1", "page 1", "page 2"} {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, request("GET", "http://a/p"))
					synctest.Wait()
					if w.Code != 200 || w.Body.String() != want || len(w.Header()["Cache-Status"]) != 1 {
						t.Errorf("%d: %d %q %v", i, w.Code, w.Body, w.Header())
					}
					time.Sleep(31 * time.Second)
				}
			})
		})
	}
}

// Nor would what goes past the first be held up by the second, or looked at again.
func TestBetween_TwiceInOneChainAndPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{PassThrough: 1, Options: bellwether.Options{MaxWait: time.Second}})
		defer mw.Close()
		h := mw.Handler(mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				time.Sleep(5 * time.Second)
			}
			w.Header().Set("Cache-Control", "private")
			fmt.Fprint(w, "page")
		})))
		for _, test := range []struct {
			name, method, path string
			fields             []string
			took               time.Duration
		}{
			{"first", "GET", "/p", nil, 0},
			{"known as one client's", "GET", "/p", nil, 0},
			{"no-store", "GET", "/p", []string{"Cache-Control", "no-store"}, 0},
			{"POST", "POST", "/p", nil, 0},
			{"DELETE", "DELETE", "/p", nil, 0},
			{"let through", "GET", "/slow", nil, 6 * time.Second},
		} {
			start := time.Now()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, request(test.method, "http://a"+test.path, test.fields...))
			if w.Code != 200 || w.Body.String() != "page" || len(w.Header()["Cache-Status"]) != 1 || time.Since(start) != test.took {
				t.Errorf("%s: %d %q %q after %v", test.name, w.Code, w.Body, w.Header()["Cache-Status"], time.Since(start))
			}
			synctest.Wait()
		}
	})
}

func TestHandler_Nil(t *testing.T) {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	defer func() {
		if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "bellwether: Handler needs a handler") {
			t.Errorf("the panic is %q", p)
		}
	}()
	mw.Handler(nil)
}

// What does not reach the handler must not be taken for what the client has asked.
func TestBetween_NobodyIsServedAnothersRequest(t *testing.T) {
	lang := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", name)
			if fmt.Fprint(w, "in English"); r.Header.Get(name) == "de" {
				fmt.Fprint(w, ", auf Deutsch")
			}
		}
	}
	path := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintf(w, "path %q", r.URL.Path)
	}
	get := func(fields ...string) *http.Request { return request("GET", "http://a/", fields...) }
	for name, c := range map[string]struct {
		handler        http.HandlerFunc
		attack, victim *http.Request
		want           string
	}{
		"Connection names a field":      {lang("X-Lang"), get("X-Lang", "de", "Connection", "X-Lang"), get("X-Lang", "de"), "in English, auf Deutsch"},
		"among others, in another case": {lang("X-Lang"), get("X-Lang", "de", "Connection", "close, x-lang"), get("X-Lang", "de"), "in English, auf Deutsch"},
		"an empty member":               {lang("X-Lang"), get("X-Lang", "de,"), get("X-Lang", "de"), "in English, auf Deutsch"},
		"an empty line":                 {lang("X-Lang"), get("X-Lang", "", "X-Lang", "de"), get("X-Lang", "de"), "in English, auf Deutsch"},
		"of a list that is known":       {lang("Accept-Language"), get("Accept-Language", "", "Accept-Language", "de"), get("Accept-Language", "de"), "in English, auf Deutsch"},
		"no path":                       {path, request("GET", "http://a"), get(), `path "/"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, c.handler)
				s.do(c.attack)
				synctest.Wait()
				if w := s.do(c.victim); w.Body.String() != c.want {
					t.Errorf("%q, want %q", w.Body, c.want)
				}
			})
		})
	}
}

// Lines of a list are one: the handler sees what the variant's key was made of.
func TestBetween_LinesOfAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", "X-List")
			fmt.Fprintf(w, "%q %q", r.Header["X-List"], r.Header["Cookie"])
		})
		for range 2 {
			if w := s.get("http://a/p", "X-List", "1", "X-List", "2", "Cookie", "a=1", "Cookie", "b=2"); w.Body.String() != `["1, 2"] ["a=1" "b=2"]` {
				t.Errorf("%s", w.Body)
			}
			synctest.Wait()
		}
	})
}

// All have left while the handler writes a body too large to be kept: it ends, and
// sees an error, not a panic.
func TestBetween_HandlerEndsWithItsLastClient(t *testing.T) {
	for name, write := range map[string]func(r *http.Request, w http.ResponseWriter){
		"waiting": func(r *http.Request, w http.ResponseWriter) {
			w.Write(make([]byte, 1200))
			<-r.Context().Done()
		},
		"writing": func(r *http.Request, w http.ResponseWriter) {
			time.Sleep(2 * time.Second)
			for range 5 { // heedless of errors
				w.Write(make([]byte, 600))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan any, 1)
				s := newSite(t, bellwether.HTTPOptions{MaxBody: 1024}, func(w http.ResponseWriter, r *http.Request) {
					defer func() { ended <- recover() }()
					w.Header().Set("Cache-Control", "max-age=60")
					write(r, w)
				})
				ctx, leave := context.WithCancel(t.Context())
				go s.do(request("GET", "http://a/p").WithContext(ctx))
				time.Sleep(time.Second)
				leave()
				select {
				case p := <-ended:
					if p != nil {
						t.Errorf("Write panicked: %v", p)
					}
				case <-time.After(time.Minute):
					t.Error("all have left, and the handler goes on")
				}
			})
		})
	}
}

// A client that takes nothing is given up, whatever way it is served.
func TestBetween_StalledClients(t *testing.T) {
	for name, c := range map[string]struct {
		fields string
		piece  int // that the handler writes at a time
	}{
		"whole":     {"", 4 << 20},
		"ranges":    {"Range: bytes=0-\r\n", 4 << 20},
		"in pieces": {"", 1000}, // so that readers catch up, and flush
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var finished atomic.Bool
				s := newSite(t, bellwether.HTTPOptions{MaxBody: 4 << 20}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=3600000")
					for n := 0; n < 4<<20; n += c.piece {
						w.Write(bytes.Repeat([]byte("b"), c.piece))
						if c.piece < 4<<20 {
							time.Sleep(time.Millisecond)
						}
					}
					finished.Store(true)
				})
				server := overPipes(t, s.handler)
				if c.piece == 4<<20 {
					s.get("http://a/p")
				}
				conn, err := server.dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				go io.WriteString(conn, "GET /p HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"+c.fields+"\r\n")
				br := bufio.NewReader(conn)
				if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode >= 300 {
					t.Fatalf("%v, %v", res, err)
				}
				time.Sleep(10 * time.Hour)
				if n, _ := io.Copy(io.Discard, br); n > 1<<20 || !finished.Load() {
					t.Errorf("a client that had read nothing for ten hours got %d bytes more; the handler has finished: %t", n, finished.Load())
				}
			})
		})
	}
}

// A PUT's handler says that it is done; the transaction around it is committed
// when it has returned. Others read in between.
func TestBetween_CommitBehindTheHeader(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"kept back by net/http": func(w http.ResponseWriter) { io.WriteString(w, "ok") },
		"sent before":           func(w http.ResponseWriter) { w.Write(make([]byte, 4<<10)) },
		"flushed":               func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"with a panic":          func(w http.ResponseWriter) { io.WriteString(w, "ok"); panic(http.ErrAbortHandler) },
	} {
		for _, method := range []string{"PUT", "POST"} {
			t.Run(method+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
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
					if w := s.get("http://a/p"); w.Body.String() != "1" {
						t.Errorf("after it succeeded: %q (%s)", w.Body, w.Header().Get("Cache-Status"))
					}
				})
			})
		}
	}
}

// What a middleware around this one has said stays said, on a miss and on a hit.
func TestBetween_FieldsOfOuterMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Vary", "Accept-Encoding")
			if r.URL.Path == "/private" {
				http.SetCookie(w, &http.Cookie{Name: "inner", Value: "1"})
			} else {
				w.Header().Set("Cache-Control", "max-age=60")
			}
			io.WriteString(w, "x")
		})
		for _, path := range []string{"/p", "/p", "/private", "/private"} {
			w := httptest.NewRecorder()
			w.Header().Add("Vary", "Origin")
			w.Header().Add("Set-Cookie", "outer=1")
			w.Header().Set("X-Outer", "1")
			s.handler.ServeHTTP(w, request("GET", "http://a"+path))
			synctest.Wait()
			cookies := "[outer=1]"
			if path == "/private" {
				cookies = "[outer=1 inner=1]"
			}
			h := w.Header()
			if fmt.Sprint(h["Vary"], h["Set-Cookie"], h["X-Outer"]) != "[Origin Accept-Encoding] "+cookies+" [1]" {
				t.Errorf("%s: %v (%s)", path, h, h.Get("Cache-Status"))
			}
		}
	})
}

// And it is said to its own client only, also where the handler writes behind it: to a
// POST that answers the next GET, and to who has a stored response validated.
func TestBetween_OuterFieldsOfOneClient(t *testing.T) {
	for path, cc := range map[string]string{"/posted": "max-age=60", "/checked": "no-cache"} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", cc)
					w.Header().Set("Content-Location", path)
					w.Header().Set("ETag", `"e"`)
					w.Header().Add("Link", "</inner>")
					w.Header().Set("X-Id", "inner")
					if r.Header.Get("If-None-Match") != "" {
						w.WriteHeader(http.StatusNotModified)
					}
				})
				for _, who := range []string{"alice", "bob", "carol"} {
					method := "GET"
					if who == "alice" && path == "/posted" {
						method = "POST"
					}
					w := httptest.NewRecorder()
					w.Header().Set("X-Csrf-Token", who)
					w.Header().Add("Link", "</"+who+">")
					w.Header()["x-id"] = []string{who}
					s.handler.ServeHTTP(w, request(method, "http://a"+path))
					synctest.Wait()
					h := w.Header()
					if all := fmt.Sprint(h); who != "alice" && strings.Contains(all, "alice") {
						t.Errorf("%s: %s got %s", path, who, all)
					}
					if got, want := fmt.Sprint(h["X-Csrf-Token"], h["Link"]), fmt.Sprintf("[%s] [</%[1]s> </inner>]", who); got != want {
						t.Errorf("%s: %s got %s, want %s (%s)", path, who, got, want, h.Get("Cache-Status"))
					}
				}
				if cc == "no-cache" {
					s.wantCalls(t, 3)
				} else {
					s.wantCalls(t, 1)
				}
			})
		})
	}
}

// Our word about a request stands behind those of the caches nearer to the origin
// (RFC 9211 section 2).
func TestBetween_CacheStatusIsTheLast(t *testing.T) {
	for _, say := range []func(http.Header, string, string){http.Header.Set, http.Header.Add} {
		for _, cc := range []string{"private", "max-age=60"} {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", cc)
					say(w.Header(), "Cache-Status", "Origin;hit")
					io.WriteString(w, "x")
				})
				for _, r := range []*http.Request{
					request("GET", "http://a/p"), request("GET", "http://a/p"), request("POST", "http://a/p"), request("PUT", "http://a/p"),
					request("OPTIONS", "http://a/p"), request("HEAD", "http://a/p"), request("GET", "http://a/p", "Cache-Control", "no-store"),
					request("GET", "http://a/p", "Authorization", "x"), request("GET", "http://a/p", "Authorization", "x"),
				} {
					if got := strings.Join(s.do(r).Header()["Cache-Status"], ", "); !strings.HasPrefix(got, "Origin;hit, Bellwether") {
						t.Errorf("%s, %s %v: %q", cc, r.Method, r.Header, got)
					}
					synctest.Wait()
				}
			})
		}
	}
}

// The type of a body that names none is guessed as net/http does it: not from a
// template's first line break, and not where the handler says that there is none.
func TestBetween_GuessedType(t *testing.T) {
	page := "<!DOCTYPE html><html>hi</html>"
	for name, c := range map[string]struct {
		write func(w http.ResponseWriter)
		want  string
	}{
		"in pieces":          {func(w http.ResponseWriter) { io.WriteString(w, "\n "); io.WriteString(w, page) }, "[text/html; charset=utf-8]"},
		"blank":              {func(w http.ResponseWriter) { io.WriteString(w, "\n") }, "[text/plain; charset=utf-8]"},
		"much that is blank": {func(w http.ResponseWriter) { w.Write(bytes.Repeat([]byte("\n"), 600)); io.WriteString(w, page) }, "[text/plain; charset=utf-8]"},
		"flushed when blank": {func(w http.ResponseWriter) {
			io.WriteString(w, "\n")
			w.(http.Flusher).Flush()
			io.WriteString(w, page)
		}, "[text/plain; charset=utf-8]"},
		"empty":                {func(w http.ResponseWriter) {}, "[]"},
		"behind a WriteHeader": {func(w http.ResponseWriter) { w.WriteHeader(200); io.WriteString(w, page) }, "[text/html; charset=utf-8]"},
		"changed too late": {func(w http.ResponseWriter) {
			io.WriteString(w, "\n")
			w.Header().Set("Content-Type", "a/b")
			io.WriteString(w, page)
		}, "[text/html; charset=utf-8]"},
		"none": {func(w http.ResponseWriter) { w.Header()["Content-Type"] = nil; io.WriteString(w, page) }, "[]"},
		"encoded": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			io.WriteString(w, "\x1f\x8b\x08\x00")
		}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handler := func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					c.write(w)
				}
				s := newSite(t, bellwether.HTTPOptions{}, handler)
				server := overPipes(t, s.handler)
				transport := &http.Transport{DialContext: server.dial, DisableCompression: true}
				defer transport.CloseIdleConnections()
				for i, ask := range []string{"GET", "GET", "HEAD", "GET bytes=0-1"} {
					method, part, _ := strings.Cut(ask, " ")
					r, _ := http.NewRequest(method, "http://a/p", nil)
					if part != "" {
						r.Header.Set("Range", part)
					}
					res, err := transport.RoundTrip(r)
					if err != nil {
						t.Fatal(err)
					}
					body, _ := io.ReadAll(res.Body)
					res.Body.Close()
					if got := fmt.Sprint(res.Header["Content-Type"]); got != c.want && !(len(body) == 0 && method == "GET") {
						t.Errorf("%d: %s: %s, want %s (%q)", i, ask, got, c.want, body)
					}
					synctest.Wait()
				}
			})
		})
	}
}

// Who joins a body that is being made for long gets its age, not that of its start.
func TestBetween_AgeOfWhoJoinsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10")
			io.WriteString(w, "a")
			time.Sleep(30 * time.Second)
			io.WriteString(w, "b")
		})
		go s.get("http://a/p")
		time.Sleep(25 * time.Second)
		w := s.get("http://a/p")
		s.wantCalls(t, 1)
		if h := w.Header(); h.Get("Age") != "25" || !strings.Contains(h.Get("Cache-Status"), "ttl=-15") {
			t.Errorf("joined 25 s after the header: Age %q, %s", h.Get("Age"), h.Get("Cache-Status"))
		}
	})
}

// A client that takes only what is kept costs the handler nothing, whatever is
// known of the key (RFC 9111 section 5.2.1.7).
func TestBetween_OnlyIfCached(t *testing.T) {
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

// An error that is kept is nothing to fall back on: the next one takes its place.
func TestBetween_ErrorBehindAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=2, must-revalidate")
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, "maintenance")
		})
		s.get("http://a/p")
		time.Sleep(1900 * time.Millisecond)
		s.get("http://a/p", "Cache-Control", "no-cache")
		time.Sleep(200 * time.Millisecond)
		if w := s.get("http://a/p"); w.Code != http.StatusServiceUnavailable || w.Body.String() != "maintenance" {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	})
}

// A handler that takes too long is a time-out to all who wait for it, whichever
// process has asked it.
func TestBetween_TimeoutInEveryProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.HTTPOptions{Options: bellwether.Options{Store: memstore.New(), Locker: locallock.New(), RebuildTimeout: time.Second}}
		hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		a, b := newSite(t, o, hang), newSite(t, o, hang)
		time.Sleep(time.Second) // in which one of them begins the log of invalidations
		var wg sync.WaitGroup
		for _, s := range []*site{a, b} {
			wg.Go(func() {
				if w := s.get("http://a/p"); w.Code != http.StatusGatewayTimeout {
					t.Errorf("%d %q", w.Code, w.Body)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		a.wantCalls(t, 1)
		b.wantCalls(t, 0)
	})
}

// What a handler does to its header after a 304 that its client does not get is
// not in the response that the client gets.
func TestBetween_HeaderAfterA304(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("ETag", `"e"`)
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
				w.Header().Set("X-After", "1")
				return
			}
			io.WriteString(w, "x")
		})
		for range 3 {
			if w := s.get("http://a/p"); w.Body.String() != "x" || w.Header()["X-After"] != nil {
				t.Errorf("%q %v", w.Body, w.Header())
			}
			synctest.Wait()
		}
	})
}

// An early rebuild is nobody's: it does not wait for the client whose request has
// begun it.
func TestBetween_EarlyRebuildAndASlowClient(t *testing.T) {
	for _, way := range []string{"the store's answer", "a hit"} {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				size, ended := 6<<10, make(chan time.Duration, 10)
				o := bellwether.HTTPOptions{MaxBody: 100 << 10, Options: bellwether.Options{Store: quiet{memstore.New()}, EarlyRefresh: 1e9}}
				handler := func(w http.ResponseWriter, r *http.Request) {
					began := time.Now()
					w.Header().Set("Cache-Control", "max-age=3600")
					time.Sleep(time.Second)
					for range 10 {
						w.Write(make([]byte, size))
					}
					ended <- time.Since(began)
				}
				a, b := newSite(t, o, handler), newSite(t, o, handler)
				a.get("http://a/p")
				<-ended
				synctest.Wait()
				size = 50 << 10 // beyond MaxBody, in all
				front := a
				if way != "a hit" {
					front = b
				}
				w := slowClient(2000)
				front.handler.ServeHTTP(w, request("GET", "http://a/p"))
				if took := <-ended; took != time.Second {
					t.Errorf("the early rebuild's handler took %v, want 1s", took)
				}
			})
		})
	}
}

// A request that the handler has answered is no hit, whatever is known of its key.
func TestBetween_RecordsAreNoHits(t *testing.T) {
	for _, control := range []string{"private", "no-cache"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", control)
				w.Header().Set("ETag", `"1"`)
				fmt.Fprint(w, "page")
			})
			for range 3 {
				s.get("http://a/p")
				synctest.Wait()
			}
			s.wantCalls(t, 3)
			if n := s.mw.Stats().Hits; n != 0 {
				t.Errorf("%s: %d hits, want none", control, n)
			}
		})
	}
}

// A hit counts once, whichever way it is answered.
func TestBetween_HitsOfAVariant(t *testing.T) {
	for _, size := range []int{10, 100 << 10} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Vary", "X-A")
				w.Write(make([]byte, size))
			})
			s.get("http://a/p")
			synctest.Wait()
			if s.get("http://a/p"); s.mw.Stats().Hits != 1 {
				t.Errorf("%d bytes: %d hits, want 1: the names are none", size, s.mw.Stats().Hits)
			}
		})
	}
}

// What a middleware around this one says to each client, such as a cookie of a
// session or a lifetime, says nothing of whether the handler's response is for
// sharing: it neither prolongs hit-for-miss nor ends it.
func TestBetween_OuterFieldsAndHitForMiss(t *testing.T) {
	for _, outer := range []string{"", "Set-Cookie", "Cache-Control"} {
		for _, once := range []bool{false, true} {
			t.Run(fmt.Sprint(outer, once), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					silent := true
					s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
						if !silent {
							w.Header().Set("Cache-Control", "max-age=60")
						} // else it says nothing, and there is no TTL
						silent = silent && !once
					})
					all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if outer != "" {
							w.Header().Add(outer, "max-age=600") // also a cookie
						}
						s.handler.ServeHTTP(w, r)
					})
					for range 4 {
						all.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://a/", nil))
						synctest.Wait()
					}
					calls := int32(4)
					if once {
						calls = 3 // the one for a single client, the one that ends that, the one that is kept
					}
					s.wantCalls(t, calls)
					w := httptest.NewRecorder()
					all.ServeHTTP(w, httptest.NewRequest("GET", "http://a/", nil))
					if got := strings.Join(w.Header()["Cache-Status"], ", "); once != strings.Contains(got, "hit") || !once && !strings.Contains(got, "bypass") {
						t.Errorf("Cache-Status %s", got)
					}
				})
			})
		}
	}
}
