package bellwether_test

import (
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// What a reply from what is stored has in it: the part that is asked for, the
// fields that are for everybody, and a word on where it comes from.

// Ranges are answered from the whole, which the handler is asked for once.
func TestReply_Ranges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Last-Modified", lastYear)
			w.Header().Set("ETag", `"e"`)
			if r.URL.Path == "/weak" {
				w.Header().Set("ETag", `W/"e"`)
			}
			if r.URL.Path == "/none" {
				w.WriteHeader(http.StatusNotFound)
			}
			io.WriteString(w, "0123456789")
		})
		for _, path := range []string{"/p", "/weak", "/none"} {
			s.get("http://a" + path)
		}
		synctest.Wait()
		s.wantCalls(t, 3)
		for _, tt := range []struct {
			path, ranges, ifRange string
			status                int
			body, contentRange    string
		}{
			{"/p", "bytes=2-4", "", 206, "234", "bytes 2-4/10"},
			{"/p", "bytes=7-", "", 206, "789", "bytes 7-9/10"},
			{"/p", "bytes=-1", "", 206, "9", "bytes 9-9/10"},
			{"/p", "bytes=8-99", "", 206, "89", "bytes 8-9/10"},
			{"/p", "bytes=10-", "", 416, "invalid range: failed to overlap\n", "bytes */10"},
			{"/p", "lines=1-2", "", 200, "0123456789", ""}, // RFC 9110 section 14.2
			{"/none", "bytes=2-4", "", 404, "0123456789", ""},
			// RFC 9110 section 13.1.5: the whole, unless the client's part is of
			// the same.
			{"/p", "bytes=2-4", `"e"`, 206, "234", "bytes 2-4/10"},
			{"/p", "bytes=2-4", `"other"`, 200, "0123456789", ""},
			{"/p", "bytes=2-4", `W/"e"`, 200, "0123456789", ""},
			{"/weak", "bytes=2-4", `W/"e"`, 200, "0123456789", ""},
			{"/p", "bytes=2-4", lastYear, 206, "234", "bytes 2-4/10"},
			{"/p", "bytes=2-4", "Sat, 01 Jan 2000 00:00:00 GMT", 200, "0123456789", ""},
		} {
			r := request("GET", "http://a"+tt.path, "Range", tt.ranges)
			if tt.ifRange != "" {
				r.Header.Set("If-Range", tt.ifRange)
			}
			w := s.do(r)
			length := fmt.Sprint(len(tt.body))
			if w.Code == http.StatusRequestedRangeNotSatisfiable {
				length = "" // http.Error has no length
			}
			if w.Code != tt.status || w.Body.String() != tt.body || w.Header().Get("Content-Range") != tt.contentRange || w.Header().Get("Content-Length") != length {
				t.Errorf("%s %s, If-Range %q: %d %q %v, want %d %q %q", tt.path, tt.ranges, tt.ifRange, w.Code, w.Body, w.Header(), tt.status, tt.body, tt.contentRange)
			}
			if status := w.Header().Get("Cache-Status"); !strings.Contains(status, "hit") {
				t.Errorf("%s %s: Cache-Status %q", tt.path, tt.ranges, status)
			}
		}

		// RFC 9111 section 4.3.2: these are the origin's to evaluate.
		for _, condition := range [][]string{{"If-Match", `"other"`}, {"If-Unmodified-Since", "Sat, 01 Jan 1994 00:00:00 GMT"}} {
			if w := s.get("http://a/p", append(condition, "Range", "bytes=2-4")...); w.Code != 206 || w.Body.String() != "234" {
				t.Errorf("%v: %d %q", condition, w.Code, w.Body)
			}
		}

		w := s.get("http://a/p", "Range", "bytes=0-1, 5-6,-1")
		_, params, err := mime.ParseMediaType(w.Header().Get("Content-Type"))
		if w.Code != 206 || err != nil {
			t.Fatalf("several ranges: %d %v, %v", w.Code, w.Header(), err)
		}
		parts := multipart.NewReader(w.Body, params["boundary"])
		for _, want := range []string{"bytes 0-1/10 text/plain 01", "bytes 5-6/10 text/plain 56", "bytes 9-9/10 text/plain 9"} {
			p, err := parts.NextPart()
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(p)
			if got := fmt.Sprint(p.Header.Get("Content-Range"), " ", p.Header.Get("Content-Type"), " ", string(b)); got != want {
				t.Errorf("part %q, want %q", got, want)
			}
		}
		if _, err := parts.NextPart(); err != io.EOF {
			t.Errorf("after the last part: %v", err)
		}
		s.wantCalls(t, 0)
	})
}

// A part has not the digest of the whole, and that there is none is not kept by caches
// in front of this one.
func TestReply_FieldsOfRanges(t *testing.T) {
	whole := []string{"CDN-Cache-Control", "Content-Digest", "Content-Md5", "Expires", "Repr-Digest"}
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			for _, name := range whole {
				w.Header().Set(name, "max-age=60")
			}
			io.WriteString(w, "0123456789")
		})
		s.get("http://a/p")
		synctest.Wait()
		for _, tt := range []struct {
			ranges string
			status int
			want   string
		}{
			{"bytes=0-1,0-9,0-9", 200, strings.Join(whole, " ")},
			{"bytes=2-3", 206, "CDN-Cache-Control Expires Repr-Digest"},
			{"bytes=2-3,5-6", 206, "CDN-Cache-Control Expires Repr-Digest"},
			{"bytes=20-30", 416, "Repr-Digest"},
		} {
			w := s.get("http://a/p", "Range", tt.ranges)
			got := slices.DeleteFunc(slices.Clone(whole), func(name string) bool { return w.Header().Get(name) == "" })
			if w.Code != tt.status || strings.Join(got, " ") != tt.want {
				t.Errorf("%s: %d with %v, want %d with %s", tt.ranges, w.Code, got, tt.status, tt.want)
			}
		}
		s.wantCalls(t, 1)
	})
}

// Fields that a handler says are for one client, or for one connection, reach
// nobody else: neither those who wait for the response nor those who come later.
// Its own client gets the former, unless it was a 304 that had them.
func TestReply_FieldsForOneClient(t *testing.T) {
	for _, validated := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				h := w.Header()
				h.Set("Cache-Control", `max-age=60, private="X-Me, X-Mine", no-cache="set-cookie"`)
				h.Set("Set-Cookie", "session="+r.Header.Get("Cookie"))
				h.Set("X-Me", r.Header.Get("Cookie"))
				h["x-mine"] = []string{r.Header.Get("Cookie")}
				h.Set("Connection", "close, X-Hop")
				h.Set("X-Hop", "hop")
				h.Set("Keep-Alive", "timeout=5")
				h.Set("Proxy-Authenticate", "Basic")
				h.Set("X-All", "all")
				h.Set("Warning", `110 - "stale"`) // RFC 9111 section 5.5: a field like any other
				h.Set("ETag", `"e"`)
				if r.Header.Get("If-None-Match") != "" {
					w.WriteHeader(http.StatusNotModified)
					return
				}
				io.WriteString(w, "page")
			})
			check := func(who string, w *httptest.ResponseRecorder, own bool) {
				t.Helper()
				h := w.Header()
				for _, name := range []string{"X-Hop", "Keep-Alive", "Proxy-Authenticate", "Connection"} {
					if h[name] != nil {
						t.Errorf("%s got %s: %q", who, name, h[name])
					}
				}
				for _, name := range []string{"Set-Cookie", "X-Me", "X-Mine"} {
					if (h[name] != nil) != own {
						t.Errorf("%s got %s: %q", who, name, h[name])
					}
				}
				if w.Code != 200 || w.Body.String() != "page" || h.Get("X-All") != "all" || h.Get("Warning") != `110 - "stale"` {
					t.Errorf("%s got %d %q %v", who, w.Code, w.Body, h)
				}
			}
			if validated {
				s.get("http://a/p", "Cookie", "earlier")
				time.Sleep(2 * time.Minute)
				s.calls.Store(0)
			}
			var wg sync.WaitGroup
			wg.Go(func() { check("the first client", s.get("http://a/p", "Cookie", "first"), !validated) })
			synctest.Wait()
			for range 20 {
				wg.Go(func() { check("a client that waited", s.get("http://a/p", "Cookie", "other"), false) })
			}
			wg.Wait()
			synctest.Wait()
			check("a later client", s.get("http://a/p", "Cookie", "later"), false)
			s.wantCalls(t, 1)
		})
	}
}

// So it is with those that come behind the body, and with cookies there.
func TestReply_TrailersForOneClient(t *testing.T) {
	for _, prefix := range []string{"", http.TrailerPrefix} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				h := w.Header()
				h.Set("Cache-Control", `max-age=60, private="X-Me", no-cache="x-mine"`)
				if prefix == "" {
					h.Set("Trailer", "X-Me, x-mine, Set-Cookie, X-All")
				}
				io.WriteString(w, "page")
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
				for _, name := range []string{"X-Me", "X-Mine", "Set-Cookie", "X-All"} {
					h.Set(prefix+name, r.Header.Get("Cookie"))
				}
			})
			check := func(who, want string) {
				t.Helper()
				res := s.get("http://a/p", "Cookie", who).Result()
				var names []string
				for name, values := range res.Trailer {
					if names = append(names, name); values[0] != "first" {
						t.Errorf("%s got %s: %q", who, name, values)
					}
				}
				slices.Sort(names)
				if got := strings.Join(names, " "); got != want {
					t.Errorf("%s got %s (prefix %q), want %s", who, got, prefix, want)
				}
				if got := strings.Join(res.Header["Trailer"], ", "); prefix == "" && strings.Contains(got, "X-Me") != (who == "first") {
					t.Errorf("%s was announced %q", who, got)
				}
			}
			var wg sync.WaitGroup
			wg.Go(func() { check("first", "Set-Cookie X-All X-Me X-Mine") })
			synctest.Wait()
			wg.Go(func() { check("other", "X-All") })
			wg.Wait()
			s.wantCalls(t, 1)
		})
	}
}

// Cache-Status says what was done for each request (RFC 9211).
func TestReply_CacheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxBody: 1 << 10}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			h := w.Header()
			h.Set("Cache-Control", "max-age=60")
			switch r.URL.Path {
			case "/private":
				h.Set("Cache-Control", "private")
			case "/vary":
				h.Set("Vary", "X-Lang")
			case "/behind":
				h.Set("Cache-Status", "Other; fwd=miss")
			}
			h.Set("ETag", `"e"`)
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			io.WriteString(w, "page")
		})
		for _, tt := range []struct {
			path   string
			fields []string
			after  time.Duration
			want   string
		}{
			{"/p", []string{"Cache-Control", "only-if-cached"}, 0, "Bellwether;detail=only-if-cached"},
			{"/p", nil, 0, `Bellwether;fwd=uri-miss;fwd-status=200;ttl=60;stored;key="a/p"`},
			{"/p", nil, 9 * time.Second, "Bellwether;hit;ttl=51"},
			{"/p", []string{"If-None-Match", `"e"`}, 0, "Bellwether;hit;ttl=51"},
			{"/p", []string{"Cache-Control", "no-cache"}, 0, `Bellwether;fwd=request;fwd-status=304;ttl=60;stored;key="a/p"`},
			{"/p", nil, 2 * time.Minute, `Bellwether;fwd=stale;fwd-status=304;ttl=60;stored;key="a/p"`},
			{"/p", []string{"Cache-Control", "no-store"}, 0, `Bellwether;fwd=bypass;detail="request no-store"`},
			{"/p", []string{"Upgrade", "x"}, 0, "Bellwether;fwd=bypass;detail=upgrade"},
			{"/private", nil, 0, `Bellwether;fwd=uri-miss;fwd-status=200;key="a/private";detail=private`},
			{"/private", nil, 0, "Bellwether;fwd=bypass;detail=private"},
			{"/vary", []string{"X-Lang", "de"}, 0, `Bellwether;fwd=uri-miss;fwd-status=200;ttl=60;stored;key="a/vary"`},
			{"/behind", nil, 0, `Other; fwd=miss, Bellwether;fwd=uri-miss;fwd-status=200;ttl=60;stored;key="a/behind"`},
			{"/behind", nil, time.Second, `Other; fwd=miss, Bellwether;hit;ttl=59`},
		} {
			time.Sleep(tt.after)
			w := s.get("http://a"+tt.path, tt.fields...)
			if got := strings.Join(w.Header()["Cache-Status"], ", "); got != tt.want {
				t.Errorf("%s %q after %v: %s\nwant %s", tt.path, tt.fields, tt.after, got, tt.want)
			}
			synctest.Wait()
		}
		if status := s.get("http://a/vary", "X-Lang", "en").Header().Get("Cache-Status"); status != "Bellwether;fwd=vary-miss;fwd-status=200;ttl=60;stored" {
			t.Errorf("another variant, whose key cannot be printed: %s", status)
		}
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				got := s.get("http://a/new").Header().Get("Cache-Status")
				if want := `Bellwether;fwd=uri-miss;fwd-status=200;ttl=60;stored;collapsed;key="a/new"`; i > 0 && got != want {
					t.Errorf("a client that waited: %s\nwant %s", got, want)
				}
			})
		}
		wg.Wait()
	})
}

// A request that Key refuses has the client's own ResponseWriter.
func TestPass_RefusedByKey(t *testing.T) {
	for name, key := range map[string]func(*http.Request) (bellwether.Key, bool){
		"refused":  func(*http.Request) (bellwether.Key, bool) { return bellwether.Key{URL: "http://a/p"}, false },
		"nonsense": func(*http.Request) (bellwether.Key, bool) { return bellwether.Key{URL: "nonsense"}, true },
	} {
		client := httptest.NewRecorder()
		s := newSite(t, bellwether.HTTPOptions{Key: key}, func(w http.ResponseWriter, r *http.Request) {
			if w != http.ResponseWriter(client) {
				t.Errorf("%s: the handler writes to a %T", name, w)
			}
			page(0, "page")(w, r)
		})
		for range 2 {
			s.handler.ServeHTTP(client, request("GET", "http://a/p"))
		}
		s.wantCalls(t, 2)
	}
}

// The first client gets the type that everybody gets, also if it asks for a range.
func TestReply_TypeOfTheFirstRange(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusNotFound} {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.WriteHeader(status) // as http.TimeoutHandler does, before what it writes
			io.WriteString(w, "<html><p>page</p></html>")
		})
		addr := serve(t, s.handler).Listener.Addr().String() // whose net/http guesses the types of what is live
		for _, ifRange := range []string{"", "If-Range: \"other\"\r\n"} {
			for _, when := range []string{"first", "next"} {
				got, body, h := raw(t, addr, fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: a\r\nRange: bytes=0-3\r\n%s\r\n", len(ifRange), ifRange))
				if h.Get("Content-Type") != "text/html; charset=utf-8" {
					t.Errorf("%d, %s, %q: %d %q with type %q", status, when, ifRange, got, body, h["Content-Type"])
				}
			}
		}
	}
}

// What is empty has no parts, and no last one either.
func TestReply_RangesOfNothing(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
	})
	for _, ranges := range []string{"-5", "-5", "0-", "-0", "0-0,-1"} {
		if w := s.get("http://a/", "Range", "bytes="+ranges); w.Code != http.StatusOK || w.Header()["Content-Range"] != nil {
			t.Errorf("%s: %d with Content-Range %q", ranges, w.Code, w.Header()["Content-Range"])
		}
	}
}
