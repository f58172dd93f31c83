package bellwether_test

import (
	"fmt"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests replies from stored responses: ranges, shared fields, and Cache-Status.

// Ranges are answered from the stored response, after one call of the handler.
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
			switch r.URL.Path {
			case "/empty":
				return
			case "/none":
				w.WriteHeader(http.StatusNotFound)
			}
			io.WriteString(w, "0123456789")
		})
		for _, path := range []string{"/p", "/weak", "/none", "/empty"} {
			s.get("http://a" + path)
		}
		synctest.Wait()
		s.wantCalls(t, 4)
		for _, tt := range []struct {
			path, ranges, ifRange string
			status                int
			body, contentRange    string
		}{
			{"/p", "bytes=2-4", "", 206, "234", "bytes 2-4/10"},
			{"/p", "bytes=7-", "", 206, "789", "bytes 7-9/10"},
			{"/p", "bytes=-1", "", 206, "9", "bytes 9-9/10"},
			{"/p", "bytes=8-99", "", 206, "89", "bytes 8-9/10"},
			// RFC 9110 section 14.1.1: no position is too large.
			{"/p", "bytes=2-99999999999999999999", "", 206, "23456789", "bytes 2-9/10"},
			{"/p", "bytes=-99999999999999999999", "", 206, "0123456789", "bytes 0-9/10"},
			{"/p", "bytes=99999999999999999999-", "", 416, "invalid range: failed to overlap\n", "bytes */10"},
			{"/p", "bytes=10-", "", 416, "invalid range: failed to overlap\n", "bytes */10"},
			{"/p", "bytes=-0", "", 200, "0123456789", ""}, // RFC 9110 section 14.1.2
			{"/empty", "bytes=-5", "", 200, "", ""},
			{"/p", "lines=1-2", "", 200, "0123456789", ""}, // RFC 9110 section 14.2
			{"/none", "bytes=2-4", "", 404, "0123456789", ""},
			// RFC 9110 section 13.1.5: the whole body, unless If-Range matches.
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

		// RFC 9111 section 4.3.2: the origin evaluates these conditions.
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

// A part does not have the digest of the whole body, and a 416 has no field that makes it cacheable.
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

// Fields for one client or connection reach no other client. Their own client gets them, also from a 304.
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
			wg.Go(func() { check("the first client", s.get("http://a/p", "Cookie", "first"), true) })
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

// Trailers for one client, and cookies in trailers, reach no other client.
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

func TestReply_CacheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 1 << 10}, func(w http.ResponseWriter, r *http.Request) {
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

func TestReply_AgeOfWhoJoinsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=20")
			w.Header().Set("ETag", `"e"`)
			io.WriteString(w, "a")
			time.Sleep(30 * time.Second)
			io.WriteString(w, "b")
		})
		go s.get("http://a/p")
		time.Sleep(25 * time.Second)
		if w := s.get("http://a/p", "If-None-Match", `"e"`); w.Code != 304 || w.Header().Get("Age") != "25" {
			t.Errorf("joined with the page's ETag: %d %v", w.Code, w.Header())
		}
		w := s.get("http://a/p")
		s.wantCalls(t, 1)
		if h := w.Header(); h.Get("Age") != "25" || !strings.Contains(h.Get("Cache-Status"), "ttl=-15") {
			t.Errorf("joined 25 s after the header: Age %q, %s", h.Get("Age"), h.Get("Cache-Status"))
		}
	})
}

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
				t.Errorf("%s %v: Age %q of a response for this client", r.Method, r.Header, w.Header()["Age"])
			}
		})
	}
}

// writeOn writes until an error, at most a gigabyte, and counts the bytes. The error comes with the context's end.
func writeOn(t *testing.T, w http.ResponseWriter, r *http.Request, written *atomic.Int64) {
	for range 1 << 15 {
		if _, err := w.Write(make([]byte, 1<<15)); err != nil {
			if r.Context().Err() == nil {
				t.Errorf("the context has not ended after %v", err)
			}
			return
		}
		written.Add(1 << 15)
	}
}

// The handler of a HEAD for a private page is stopped if it writes without end, also if it copies a body, as a proxy does.
func TestReply_HeadOfALongPrivateBody(t *testing.T) {
	copyOn := func(_ *testing.T, w http.ResponseWriter, _ *http.Request, written *atomic.Int64) {
		n, _ := io.Copy(w, struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 8<<20))})
		written.Add(n)
	}
	for way, handle := range map[string]func(*testing.T, http.ResponseWriter, *http.Request, *atomic.Int64){"write": writeOn, "copy": copyOn} {
		for _, fields := range [][]string{nil, {"Cookie", "x"}, {"Authorization", "x"}} {
			inBubble(t, fmt.Sprint(way, fields), func(t *testing.T) {
				var written atomic.Int64
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "private")
					handle(t, w, r, &written)
				})
				for _, which := range []string{"first", "known"} {
					r := request("HEAD", "http://a/p", fields...)
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
	}
}

// The handler of a HEAD past a stored page is stopped too, after a no-store or for the page's validation.
func TestReply_HeadOfALongBodyPastAPage(t *testing.T) {
	for stored, fields := range map[string][]string{"max-age=60": {"Cache-Control", "no-store"}, "no-cache": nil} {
		inBubble(t, stored, func(t *testing.T) {
			var written atomic.Int64
			first := true
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", stored)
				w.Header().Set("ETag", `"1"`)
				if first {
					first = false
					fmt.Fprint(w, "page")
					return
				}
				w.Header().Set("ETag", `"2"`)
				writeOn(t, w, r, &written)
			})
			s.get("http://a/p")
			if w := s.do(request("HEAD", "http://a/p", fields...)); w.Code != 200 || w.Header().Get("ETag") != `"2"` {
				t.Errorf("status %d, header %v", w.Code, w.Header())
			}
			if n := written.Load(); n == 0 || n > 256<<10 {
				t.Errorf("%d bytes were written for a HEAD", n)
			}
		})
	}
}

// An error page keeps its status: a long one from the cache, and one client's beside a Range.
func TestReply_ErrorPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", r.URL.RawQuery)
			w.Header().Set("Content-Length", "100000")
			w.WriteHeader(http.StatusNotFound)
			w.Write(make([]byte, 100_000))
		})
		for range 2 {
			for _, url := range []string{"http://a/p?max-age=60", "http://a/p?private"} {
				for _, fields := range [][]string{nil, {"Range", "bytes=0-9"}} {
					if w := s.get(url, fields...); w.Code != http.StatusNotFound || w.Body.Len() != 100_000 {
						t.Errorf("%s %v: %d with %d bytes (%s)", url, fields, w.Code, w.Body.Len(), w.Header().Get("Cache-Status"))
					}
					synctest.Wait()
				}
			}
			time.Sleep(time.Minute)
		}
		if w := s.get("http://a/q?private", "Range", "bytes=0-9"); w.Code != http.StatusNotFound {
			t.Errorf("a first private page: %d", w.Code)
		}
	})
}

// A HEAD past the cache gets the header of the whole page from net/http, whatever the handler does when it is stopped.
func TestReply_HeadOfALongPage(t *testing.T) {
	stopped := map[string]func(w http.ResponseWriter){
		"no look at errors": func(http.ResponseWriter) {},
		"an error page":     func(w http.ResponseWriter) { http.Error(w, "broken", http.StatusInternalServerError) },
		"an abort":          func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}
	for name, stop := range stopped {
		for cacheControl, fields := range map[string][]string{"private": nil, "max-age=60": {"Authorization", "x"}, "max-age=61": {"Cache-Control", "no-store"}} {
			t.Run(fmt.Sprint(name, " ", cacheControl), func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", cacheControl)
					io.WriteString(w, "<html>")
					if _, err := w.Write(make([]byte, 100<<10)); err != nil {
						stop(w)
					}
				})
				for protocol, server := range map[string]*httptest.Server{"HTTP/1.1": serve(t, s.handler), "HTTP/2": serveHTTP2(t, s.handler)} {
					for which := range 3 {
						r := request("HEAD", server.URL+"/p", fields...)
						r.RequestURI = ""
						res, err := server.Client().Do(r)
						if err != nil {
							t.Errorf("%s, request %d: %v", protocol, which, err)
							continue
						}
						res.Body.Close()
						if res.StatusCode != 200 || res.ContentLength != -1 || res.Header.Get("Content-Type") != "text/html; charset=utf-8" {
							t.Errorf("%s, request %d: status %d, length %d, %v", protocol, which, res.StatusCode, res.ContentLength, res.Header)
						}
					}
				}
			})
		}
	}
}

// A range of an unstored response of known length is cut from one run. Otherwise the client gets the whole.
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
		for kind, o := range map[string]bellwether.HTTPOptions{"private": {}, "max-age=60": {MaxBodyBytes: 100}} {
			inBubble(t, name+" "+kind, func(t *testing.T) {
				s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", kind)
					w.Header().Set("ETag", `"e"`)
					w.Header().Set("Content-Digest", "of the whole")
					if tt.length {
						w.Header().Set("Content-Length", "200")
					}
					for range 10 {
						io.WriteString(w, body[:20])
					}
				})
				w := s.get("http://a/p", tt.fields...)
				digest := w.Header().Get("Content-Digest") != ""
				if w.Code != tt.status || digest == (w.Code == 206) || w.Header().Get("Content-Range") != tt.contentRange || w.Body.String() != tt.body {
					t.Errorf("%d %q %q, want %d %q %q", w.Code, w.Header().Get("Content-Range"), w.Body, tt.status, tt.contentRange, tt.body)
				}
				if n := w.Header().Get("Content-Length"); n != "" && n != fmt.Sprint(len(tt.body)) {
					t.Errorf("Content-Length %s of %d bytes", n, len(tt.body))
				}
				s.wantCalls(t, 1)
			})
		}
	}
}

// A softly invalidated page is stale since the invalidation, also for max-stale.
func TestReply_MaxStaleOfSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
		})
		s.get("http://a/p")
		synctest.Wait() // until it is stored
		sweep(t, s, bellwether.Match{Keys: []string{"http://a/p"}, Soft: true})
		time.Sleep(100 * time.Second)
		s.get("http://a/p", "Cache-Control", "max-stale=200")
		s.wantCalls(t, 1)
		s.get("http://a/p", "Cache-Control", "max-stale=5")
		s.wantCalls(t, 1)
	})
}

// Clients of one response have separate Trailer fields. A failure shows as a data race.
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

// A field may be in the header and in the trailer, as net/http sends it. Neither part gets into the other.
func TestReply_FieldInHeaderAndTrailer(t *testing.T) {
	for _, control := range []string{"private", "max-age=60"} {
		t.Run(control, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					h := w.Header()
					h.Set("Cache-Control", control)
					h.Set("Trailer", "Server-Timing")
					h.Set("Server-Timing", "db")
					io.WriteString(w, "page")
					w.(http.Flusher).Flush()
					time.Sleep(time.Second)
					h.Set("Server-Timing", "total")
				})
				inner := s.handler
				s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Server-Timing", "outer")
					inner.ServeHTTP(w, r)
				})
				check := func(who string, trailers ...string) {
					t.Helper()
					res := s.get("http://a/p").Result()
					if got := res.Header["Server-Timing"]; !slices.Equal(got, []string{"outer", "db"}) {
						t.Errorf("%s got the field %q, want outer and db", who, got)
					}
					if got := res.Trailer["Server-Timing"]; !slices.Equal(got, trailers) {
						t.Errorf("%s got the trailer %q, want %q", who, got, trailers)
					}
				}
				var wg sync.WaitGroup
				wg.Go(func() { check("the first client", "total") })
				synctest.Wait()
				if control != "private" {
					wg.Go(func() { check("a client that joins", "total") })
					wg.Wait()
					synctest.Wait() // the page is stored
					check("a later client")
				}
				wg.Wait()
				s.wantCalls(t, 1)
			})
		})
	}
}

type addsTrailer struct{ http.ResponseWriter }

func (w addsTrailer) WriteHeader(status int) {
	w.Header().Add("Trailer", "D")
	w.ResponseWriter.WriteHeader(status)
}

// The Content-Type is net/http's guess, whichever kind of request comes first. An outer middleware's wins.
func TestReply_GuessedType(t *testing.T) {
	const html, plain = "[text/html; charset=utf-8]", "[text/plain; charset=utf-8]"
	const page = "<!DOCTYPE html><html>hi</html>"
	inPieces := func(pieces ...string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			for _, p := range pieces {
				io.WriteString(w, p)
			}
		}
	}
	for name, c := range map[string]struct {
		write func(w http.ResponseWriter)
		want  string
	}{
		"a template":         {inPieces("\n ", "<", "!DOC", "TYPE html>", "<p>"), html},
		"XML":                {inPieces("<?x", "ml version='1.0'?>"), "[text/xml; charset=utf-8]"},
		"no tag":             {inPieces("<", "3 of you"), plain},
		"an image":           {inPieces("RIFF", "....", "WEBPVP8"), "[image/webp]"},
		"a tag too late":     {inPieces(strings.Repeat(" ", 300), strings.Repeat("\n", 300), page), plain},
		"blank":              {inPieces("\n"), plain},
		"much that is blank": {inPieces(strings.Repeat("\n", 600), page), plain},
		"flushed when blank": {func(w http.ResponseWriter) {
			io.WriteString(w, "\n")
			w.(http.Flusher).Flush()
			io.WriteString(w, page)
		}, plain},
		"empty":                {inPieces(), "[]"},
		"behind a WriteHeader": {func(w http.ResponseWriter) { w.WriteHeader(200); inPieces("<!DOC", "TYPE html>")(w) }, html},
		"an error":             {func(w http.ResponseWriter) { w.WriteHeader(404); inPieces("\n", page)(w) }, html},
		"changed too late": {func(w http.ResponseWriter) {
			io.WriteString(w, "\n")
			w.Header().Set("Content-Type", "a/b")
			io.WriteString(w, page)
		}, html},
		"none": {func(w http.ResponseWriter) { w.Header()["Content-Type"] = nil; io.WriteString(w, page) }, "[]"},
		"encoded": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			io.WriteString(w, "\x1f\x8b\x08\x00")
		}, "[]"},
	} {
		for first, requests := range map[string][]string{
			"page": {"GET", "GET", "HEAD", "GET bytes=0-1"}, "range": {"GET bytes=0-3", "GET bytes=0-3"}, "if-range": {`GET bytes=0-3 "other"`, "GET"},
		} {
			inBubble(t, name+", first "+first, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					c.write(w)
				})
				transport := &http.Transport{DialContext: overPipes(t, s.handler).dial, DisableCompression: true}
				defer transport.CloseIdleConnections()
				for i, ask := range requests {
					parts := append(strings.Fields(ask), "", "")
					r, _ := http.NewRequest(parts[0], "http://a/p", nil)
					for k, field := range []string{"Range", "If-Range"} {
						if parts[k+1] != "" {
							r.Header.Set(field, parts[k+1])
						}
					}
					res, err := transport.RoundTrip(r)
					if err != nil {
						t.Fatal(err)
					}
					body, _ := io.ReadAll(res.Body)
					res.Body.Close()
					if got := fmt.Sprint(res.Header["Content-Type"]); got != c.want && !(len(body) == 0 && r.Method == "GET") {
						t.Errorf("%d: %s: %s, want %s (%q)", i, ask, got, c.want, body)
					}
					synctest.Wait()
				}
				for _, fields := range [][]string{nil, {"Range", "bytes=0-1"}, {"Cache-Control", "no-cache"}} {
					w := httptest.NewRecorder()
					outer("Content-Type", "application/json")(s.handler).ServeHTTP(w, request("GET", "http://a/p", fields...))
					if c.want != "[]" && w.Header().Get("Content-Type") != "application/json" {
						t.Errorf("%v, with a type outside: %v", fields, w.Header())
					}
				}
			})
		}
	}
}

// The first client of an unstored response gets the handler's answer to its own condition or range.
func TestReply_FirstOfWhatIsNotKept(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private")
		if r.URL.Path == "/426" {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "HTTP/3")
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		w.Header().Set("ETag", `"e"`)
		http.ServeContent(w, r, "p.txt", time.Time{}, strings.NewReader("0123456789"))
	})
	for _, tt := range []struct {
		path, field, value string
		status, length     int
	}{
		{"/private", "If-None-Match", `"e"`, 304, 0},
		{"/private-range", "Range", "bytes=2-4", 206, 3},
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

// A range is cut from a whole body that waits for its commit.
func TestReply_RangeOfAFinishedLiveBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.set(on(takes(time.Second), "commit"))
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store.full(), EngineTimeout: time.Minute}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "0123456789")
		})
		s.get("http://a/p")
		synctest.Wait() // the handler has returned
		w := s.get("http://a/p", "Range", "bytes=2-4")
		if w.Code != 206 || w.Body.String() != "234" || !strings.Contains(w.Header().Get("Cache-Status"), "collapsed") {
			t.Errorf("status %d, body %q, header %v", w.Code, w.Body, w.Header())
		}
		s.wantCalls(t, 1)
	})
}

// A remembered failure has a Retry-After in each process, and the handler runs again after it.
func TestReply_RetryAfter(t *testing.T) {
	for name, fail := range map[string]func(http.ResponseWriter){
		"panic":      func(http.ResponseWriter) { panic("down") },
		"short body": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "10") },
	} {
		t.Run(name, func(t *testing.T) {
			o := bellwether.HTTPOptions{TTL: time.Minute, ErrorTTL: 20 * time.Second, MaxErrorTTL: time.Minute}
			h := func(w http.ResponseWriter, r *http.Request) { fail(w) }
			inPairs(t, o, h, func(t *testing.T, p pair) {
				p.first.get("http://a/p")
				p.calls()
				time.Sleep(1500 * time.Millisecond)
				w := p.second.get("http://a/p")
				retry, err := strconv.Atoi(w.Header().Get("Retry-After"))
				if w.Code != 502 || err != nil || retry < 9 || retry > 19 {
					t.Fatalf("%d %v, want 502 with the rest of a pause of 10 to 20 s", w.Code, w.Header())
				}
				if n := p.calls(); n != 0 {
					t.Errorf("%d runs of the handler within the pause", n)
				}
				time.Sleep(time.Duration(retry) * time.Second)
				p.second.get("http://a/p")
				if n := p.calls(); n != 1 {
					t.Errorf("%d runs of the handler after it, want 1", n)
				}
			})
		})
	}
}

type endlessPause struct{}

func (endlessPause) Error() string             { return "down for ever" }
func (endlessPause) RetryAfter() time.Duration { return math.MaxInt64 }

// The longest pause is in whole seconds too, also in the cache's first second.
func TestReply_RetryAfterForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{TTL: time.Minute}, func(http.ResponseWriter, *http.Request) { panic(endlessPause{}) })
		s.get("http://a/p") // gets the panic
		w := s.get("http://a/p")
		if retry, err := strconv.ParseInt(w.Header().Get("Retry-After"), 10, 64); w.Code != 502 || err != nil || retry < 1 {
			t.Errorf("%d %v, want 502 with a long Retry-After", w.Code, w.Header())
		}
	})
}

func TestReply_HeadRangeAndConditions(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "GET" || r.Header.Get("Range") != "" || r.Header.Get("If-None-Match") != "" {
			t.Errorf("the handler was asked for one client's view: %s %v", r.Method, r.Header)
		}
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("ETag", `"e"`)
		io.WriteString(w, "0123456789")
	})
	for i := range 2 { // the miss, then the hit
		if w := s.do(request("HEAD", "http://a/h")); w.Code != 200 || w.Body.Len() != 0 || w.Header().Get("ETag") != `"e"` {
			t.Errorf("HEAD %d: %d %q %v", i, w.Code, w.Body, w.Header())
		}
		if w := s.get("http://a/n", "If-None-Match", `"e"`); w.Code != 304 || w.Body.Len() != 0 {
			t.Errorf("If-None-Match %d: %d %q", i, w.Code, w.Body)
		}
	}
	s.wantCalls(t, 2)
	eventually(t, func() bool { return s.hits("http://a/h") }) // the flight has landed
	if w := s.get("http://a/h", "Range", "bytes=2-4"); w.Code != 206 || w.Body.String() != "234" {
		t.Errorf("Range: %d %q", w.Code, w.Body)
	}
	s.wantCalls(t, 0)
}

// tenBytes returns a site whose page http://a/p is stored, with ten bytes and the ETag "e".
func tenBytes(t *testing.T, lastModified string) *site {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=1000")
		w.Header().Set("Last-Modified", lastModified)
		w.Header().Set("ETag", `"e"`)
		io.WriteString(w, "0123456789")
	})
	s.get("http://a/p")
	synctest.Wait()
	return s
}

// RFC 9110 section 13.1.3: a recipient MUST ignore If-Modified-Since if its value is not a valid HTTP-date, or if
// the field has more than one member. With a Range too.
func TestReply_InvalidConditionsWithARange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tenBytes(t, "Fri, 01 Jan 1999 00:00:00 GMT")
		for _, f := range [][]string{
			{"If-Modified-Since", "Fri, 01 Jan 1999 0:00:00 GMT"},
			{"If-Modified-Since", "Fri, 01 Jan 1999 00:00:00 GMT", "If-Modified-Since", "Thu, 01 Jan 1998 00:00:00 GMT"},
			{"If-None-Match", `"e"x`},
		} {
			if w := s.get("http://a/p", f...); w.Code != 200 {
				t.Errorf("%q: %d", f, w.Code)
			}
			if w := s.get("http://a/p", append(f, "Range", "bytes=0-3")...); w.Code != 206 {
				t.Errorf("%q with a Range: %d, want 206", f, w.Code)
			}
		}
	})
}

// RFC 9110 section 13.1.5: an If-Range date that is no exact match of a strong validator is false. The Last-Modified
// is of the same second as Date: weak (section 8.8.2.2).
func TestReply_IfRangeThatIsNoDateOrTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tenBytes(t, "Sat, 01 Jan 2000 00:00:00 GMT") // the bubble's now
		for _, f := range [][]string{
			{"If-Range", "Sat, 01 Jan 2000 00:00:00 GMT"}, // right: 200
			{"If-Range", "Sat, 01 Jan 2000 0:00:00 GMT"},
			{"If-Range", "Sat, 01 Jan 2000 00:00:00 GMT", "If-Range", `"x"`},
			{"If-Range", `"e", "f"`},
			{"If-Range", `"e"`, "If-Range", `"f"`},
		} {
			if w := s.get("http://a/p", append(f, "Range", "bytes=0-3")...); w.Code != 200 {
				t.Errorf("%q with a Range: %d, want the whole (200)", f, w.Code)
			}
		}
	})
}

// A 416 has a Content-Range (RFC 9110 section 15.5.17).
func TestReply_ContentRangeOf416(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tenBytes(t, "Fri, 01 Jan 1999 00:00:00 GMT")
		for _, r := range []string{"bytes=10-", "bytes=3-1", "bytes=0-3;x"} {
			if w := s.get("http://a/p", "Range", r); w.Code != 416 || w.Header().Get("Content-Range") != "bytes */10" {
				t.Errorf("%s: %d %q", r, w.Code, w.Header().Get("Content-Range"))
			}
		}
	})
}

// A Content-Length that is no number is not forwarded (RFC 9110 section 8.6).
func TestReply_ContentLengthThatIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Length", "+4")
			w.(http.Flusher).Flush()
			time.Sleep(time.Second)
			io.WriteString(w, "body")
		})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if w := s.get("http://a/p"); w.Header().Get("Content-Length") == "+4" {
					t.Errorf("Content-Length: +4 (%s)", w.Header().Get("Cache-Status"))
				}
			})
			synctest.Wait()
		}
		wg.Wait()
	})
}

// docs/http.md: "fwd=method: a POST or another method that the cache does not answer". RFC 9211 section 2.2: "method:
// The request method's semantics require the request to be forwarded".
func TestStatus_MethodsThatTheCacheDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "x") }
		for name, s := range map[string]*site{
			"a key": newSite(t, bellwether.HTTPOptions{}, h),
			"no key": newSite(t, bellwether.HTTPOptions{
				Key: func(*http.Request) (key bellwether.Key, ok bool) { return key, false },
			}, h),
		} {
			for _, m := range []string{"POST", "OPTIONS", "TRACE", "PROPFIND", "QUERY"} {
				if got := s.do(request(m, "http://a/p")).Header().Get("Cache-Status"); got != "Bellwether;fwd=method" {
					t.Errorf("%s with %s: %s", m, name, got)
				}
			}
		}
	})
}

// A failed validation of a stored page has fwd=stale, and an error without a run of the handler no fwd (RFC 9211
// section 2.2).
func TestStatus_Failures(t *testing.T) {
	for _, how := range []string{"timeout", "panic"} {
		inBubble(t, how, func(t *testing.T) {
			var fail, conditional atomic.Bool
			s := newSite(t, bellwether.HTTPOptions{RebuildTimeout: time.Second}, func(w http.ResponseWriter, r *http.Request) {
				conditional.Store(r.Header.Get("If-None-Match") != "")
				if fail.Load() && how == "panic" {
					panic("x")
				}
				if fail.Load() {
					time.Sleep(10 * time.Second)
					return
				}
				w.Header().Set("Cache-Control", "max-age=10")
				w.Header().Set("ETag", `"e"`)
				io.WriteString(w, "page")
			})
			s.get("http://a/p")
			time.Sleep(20 * time.Second)
			fail.Store(true)
			w := s.get("http://a/p")
			if got := w.Header().Get("Cache-Status"); how != "panic" && (!conditional.Load() || !strings.Contains(got, "fwd=stale")) {
				t.Errorf("%s: the validation (conditional %t) of the stored page: %d %s, want fwd=stale", how, conditional.Load(), w.Code, got)
			}
			s.calls.Store(0)
			w = s.get("http://a/p")
			got := w.Header().Get("Cache-Status")
			if s.calls.Load() == 0 && strings.Contains(got, "fwd=") {
				t.Errorf("%s: in the pause, without a run of the handler: %d %s, want no fwd", how, w.Code, got)
			}
			time.Sleep(time.Minute)
		})
	}
}

// A request past a response that needs validation has the reason.
func TestStatus_PastANoCacheResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("ETag", `"e"`)
			io.WriteString(w, "page")
		})
		s.get("http://a/p")
		synctest.Wait()
		if got := s.get("http://a/p", "Cookie", "u=1").Header().Get("Cache-Status"); got != "Bellwether;fwd=bypass;detail=not-fresh" {
			t.Errorf("%s, want Bellwether;fwd=bypass;detail=not-fresh", got)
		}
	})
}

// A 204 has no Content-Length, neither the handler's nor an outer middleware's (RFC 9110 section 8.6).
func TestReply_NoContentLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(http.StatusNoContent)
		})
		for range 3 {
			if w := s.get("http://a/p"); w.Code != 204 || w.Header()["Content-Length"] != nil {
				t.Errorf("%d with Content-Length %q (%s)", w.Code, w.Header()["Content-Length"], w.Header().Get("Cache-Status"))
			}
		}
		s.wantCalls(t, 1)
	})
}
