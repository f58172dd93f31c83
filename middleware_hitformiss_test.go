package bellwether_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests the hit-for-miss record of a page that is not shareable.

// Only a response is a hit, and neither a hit-for-miss record nor the names of a Vary.
func TestHitForMiss_IsNoHit(t *testing.T) {
	for _, tt := range []struct {
		control, vary string
		size          int
		calls         int32
		hits          uint64
	}{{"private", "", 10, 3, 0}, {"no-cache", "", 10, 3, 0}, {"max-age=60", "X-A", 10, 1, 2}, {"max-age=60", "X-A", 100 << 10, 1, 2}} {
		inBubble(t, fmt.Sprint(tt), func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", tt.control)
				w.Header().Set("ETag", `"1"`)
				w.Header().Set("Vary", tt.vary)
				w.Write(make([]byte, tt.size))
			})
			for range 3 {
				s.get("http://a/p")
				synctest.Wait()
			}
			s.wantCalls(t, tt.calls)
			if n := s.mw.Stats().Hits; n != tt.hits {
				t.Errorf("%d hits, want %d", n, tt.hits)
			}
		})
	}
}

func TestHitForMiss_OneCacheableResponseEndsIt(t *testing.T) {
	for name, store := range map[string]driver.Store{"near tier": nil, "store": memstore.New()} {
		inBubble(t, name, func(t *testing.T) {
			cc := "no-store"
			o := bellwether.HTTPOptions{HitForMissTTL: time.Hour, Fleet: bellwether.Fleet{Store: store}}
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", cc)
				fmt.Fprint(w, "v")
			})
			ask := func(method string, calls int32) {
				t.Helper()
				s.do(request(method, "http://a/p"))
				synctest.Wait()
				s.wantCalls(t, calls)
			}
			ask("GET", 1)
			ask("GET", 1) // not shareable
			cc = "max-age=60"
			ask("HEAD", 1) // ends nothing
			ask("GET", 1)  // ends hit-for-miss
			ask("GET", 1)  // is stored
			ask("GET", 0)
		})
	}
}

// A client with a Cookie makes a no-cache page uncacheable. The next client without one ends that.
func TestHitForMiss_CheckedEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, validated("page"))
		s.get("http://a/p", "Cookie", "a=b")
		var last *httptest.ResponseRecorder
		for range 4 {
			last = s.get("http://a/p")
			time.Sleep(time.Second)
		}
		if status := last.Header().Get("Cache-Status"); last.Body.String() != "page" || !strings.Contains(status, "fwd-status=304") {
			t.Errorf("%q, Cache-Status %q: not validated", last.Body, status)
		}
	})
}

// Bodies above MaxBodyBytes do not end hit-for-miss. A Content-Length within MaxBodyBytes does.
func TestHitForMiss_TooLargeStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var size, announced atomic.Int64
		size.Store(100)
		s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 50, HitForMissTTL: time.Hour}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			if announced.Load() != 0 {
				w.Header().Set("Content-Length", fmt.Sprint(size.Load()))
			}
			w.Write(make([]byte, size.Load()))
		})
		status := func() string {
			synctest.Wait()
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
		status() // announces a body that fits
		status()
		if got := status(); !strings.Contains(got, "hit") {
			t.Errorf("no longer too large: %q", got)
		}
	})
}

// A response that is not stored despite its header begins hit-for-miss too.
func TestHitForMiss_WithheldStays(t *testing.T) {
	for name, withheld := range map[string]http.Header{
		"an event stream":  {"Content-Type": {"text/event-stream"}},
		"too large header": {"X-Long": {strings.Repeat("x", 70<<10)}},
	} {
		inBubble(t, name, func(t *testing.T) {
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
	}
}

func TestHitForMiss_NotSharedIsReleasedTogetherAndRemembered(t *testing.T) {
	for name, header := range map[string]http.Header{
		"no-store":     {"Cache-Control": {"no-store"}},
		"private":      {"Cache-Control": {"private"}},
		"no freshness": {},
		"set-cookie":   {"Cache-Control": {"max-age=60"}, "Set-Cookie": {"session=1"}},
		"lower case":   {"Cache-Control": {"max-age=60"}, "set-cookie": {"session=1"}},
		"vary *":       {"Cache-Control": {"max-age=60"}, "Vary": {"*"}},
	} {
		inBubble(t, name, func(t *testing.T) {
			var n atomic.Int32
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				me := n.Add(1)
				time.Sleep(200 * time.Millisecond)
				for name, values := range header {
					w.Header()[name] = values
				}
				fmt.Fprint(w, me)
			})
			got := s.burst(50, same("http://a/p"))
			if len(got) != 50 || got["200 1 200ms"] != 1 {
				t.Errorf("outcomes %v, want 50 different bodies, the first after 200ms", got)
			}
			for o := range got {
				if !strings.HasSuffix(o, " 400ms") && o != "200 1 200ms" {
					t.Errorf("outcome %q, want everybody released together", o)
				}
			}
			s.wantCalls(t, 50)
			got = s.burst(50, same("http://a/p"))
			for o := range got {
				if !strings.HasSuffix(o, " 200ms") {
					t.Errorf("outcome %q of the next burst, want no queue at all", o)
				}
			}
			s.wantCalls(t, 50)
		})
	}
}

// A page that exceeded MaxBodyBytes once is stored again when it is small, also without a Content-Length.
func TestHitForMiss_OnceTooLarge(t *testing.T) {
	var large atomic.Bool
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=600")
		if large.Load() {
			for range 20 {
				w.Write(make([]byte, 100<<10))
			}
			return
		}
		io.WriteString(w, "page")
		w.(http.Flusher).Flush()
	}
	o := bellwether.HTTPOptions{MaxBodyBytes: 1 << 20}
	inPairs(t, o, h, func(t *testing.T, p pair) {
		large.Store(true)
		p.first.get("http://a/p")
		large.Store(false)
		time.Sleep(time.Second)
		p.calls()
		for range 600 { // ten minutes
			p.first.get("http://a/p")
			p.second.get("http://a/p")
			time.Sleep(time.Second)
		}
		if n := p.calls(); n > 50 {
			t.Errorf("%d runs for 1,200 requests in ten minutes for a small page with max-age=600", n)
		}
	})
}

// The record of a slow response lasts until the next such response at least. Otherwise its clients would queue.
func TestHitForMiss_SlowOutlivesTheTTL(t *testing.T) {
	for pause, want := range map[time.Duration]string{7 * time.Second: "fwd=bypass", 9 * time.Second: "fwd=uri-miss"} {
		inBubble(t, pause.String(), func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{HitForMissTTL: time.Second}, func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(4 * time.Second)
				w.Header().Set("Cache-Control", "private")
			})
			s.get("http://a/p")
			time.Sleep(pause)
			if status := s.get("http://a/p").Header().Get("Cache-Status"); !strings.Contains(status, want) {
				t.Errorf("%v after a header that took 4 s: %s, want %s", pause, status, want)
			}
		})
	}
}

// Clients of a quick private page do not wait for each other, also after the page's record has been prolonged.
func TestHitForMiss_ProlongedIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxPassThrough: 1}, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "private")
			fmt.Fprint(w, "page")
		})
		s.get("http://a/p")
		time.Sleep(7 * time.Second)
		s.get("http://a/p") // prolongs
		wantBurst(t, s.burst(10, same("http://a/p")), 10, "200 page 1s")
	})
}

func TestHitForMiss_NotModifiedDoesNotProlong(t *testing.T) {
	for name, fields := range map[string][]string{"304": {"If-None-Match", `"v"`}, "206": {"Range", "bytes=0-1"}} {
		t.Run(name, func(t *testing.T) {
			var private atomic.Bool
			h := func(w http.ResponseWriter, r *http.Request) {
				if private.Load() {
					w.Header().Set("Cache-Control", "private")
					return
				}
				w.Header().Set("Cache-Control", "public, max-age=600")
				w.Header().Set("ETag", `"v"`)
				http.ServeContent(w, r, "x.txt", time.Time{}, strings.NewReader("page"))
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				private.Store(true)
				p.first.get("http://a/p")
				private.Store(false)
				time.Sleep(time.Second)
				p.calls()
				for range 600 {
					p.first.get("http://a/p", fields...)
					p.second.get("http://a/p", fields...)
					time.Sleep(time.Second)
				}
				if n := p.calls(); n > 50 {
					t.Errorf("%d runs for 1,200 requests in ten minutes for a page with max-age=600", n)
				}
			})
		})
	}
}

// A handler that removes the Cookie from its request does not end the record of its response: requests with other
// Cookies do not wait for each other.
func TestHitForMiss_HandlerRemovesTheCookie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Cookie")
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=0")
			io.WriteString(w, "page")
		})
		for range 2 {
			s.get("http://a/p", "Cookie", "c")
			synctest.Wait()
		}
		wantBurst(t, s.burst(20, func(i int) *http.Request {
			return request("GET", "http://a/p", "Cookie", fmt.Sprint(i))
		}), 20, "200 page 1s")
	})
}

// A response for everyone ends the validations of a no-cache page, whether the handler sends or confirms the page. An
// error does not.
func TestHitForMiss_EndOfValidations(t *testing.T) {
	for name, tt := range map[string]struct {
		status  int
		control string
		next    string // in Cache-Status
	}{"sent": {200, "max-age=60", ";stored"}, "confirmed": {304, "max-age=60", ";stored"}, "error": {503, "no-cache", ";fwd-status=304"}} {
		inBubble(t, name, func(t *testing.T) {
			control, status := "no-cache", http.StatusOK
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", control)
				w.Header().Set("ETag", `"1"`)
				if r.Header.Get("If-None-Match") != "" {
					w.WriteHeader(status)
				}
				if status != http.StatusNotModified {
					io.WriteString(w, "page")
				}
			})
			s.get("http://a/p")
			synctest.Wait()
			control, status = tt.control, tt.status
			s.get("http://a/p")
			synctest.Wait()
			if status != http.StatusOK {
				status = http.StatusNotModified
			}
			if got := s.get("http://a/p").Header().Get("Cache-Status"); !strings.Contains(got, tt.next) {
				t.Errorf("the next request: Cache-Status %q, want %q", got, tt.next)
			}
		})
	}
}
