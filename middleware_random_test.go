package bellwether_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// Random clients, held against what no client may get.

// Parts of what is not kept are exactly those parts, over HTTP/1.1 and HTTP/2.
func TestRandom_Ranges(t *testing.T) {
	whole := make([]byte, 300_000)
	for i := range whole {
		whole[i] = byte(i*7 + i>>8)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }
	h := func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.Query().Get("n"))
		w.Header().Set("Cache-Control", r.URL.Query().Get("cc"))
		w.Header().Set("Etag", `"v"`)
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Digest", "sha-256=:x:")
		if r.URL.Query().Get("cl") != "" {
			w.Header().Set("Content-Length", fmt.Sprint(size))
		}
		if r.URL.Query().Get("tr") != "" {
			w.Header().Set("Trailer", "X-Sum")
			defer w.Header().Set("X-Sum", "sum")
		}
		body := whole[:size]
		for len(body) > 0 {
			n := min(len(body), 1+roll(70_000))
			if _, err := w.Write(body[:n]); err != nil {
				return
			}
			body = body[n:]
			if roll(10) == 0 {
				w.(http.Flusher).Flush()
			}
		}
	}
	s := newSite(t, bellwether.HTTPOptions{MaxBody: 100_000}, h)
	h2 := serveHTTP2(t, s.handler)
	h1 := httptest.NewServer(s.handler)
	defer h1.Close()
	for i := range 1500 {
		server := []*httptest.Server{h1, h2}[i%2]
		size := []int{0, 1, 500, 5000, 99_999, 100_001, 300_000}[roll(7)]
		cc := []string{"private", "no-store", "max-age=60", "public,max-age=60", ""}[roll(5)]
		url := fmt.Sprintf("%s/p?i=%d&n=%d&cc=%s", server.URL, i, size, cc)
		if roll(4) > 0 {
			url += "&cl=1"
		}
		if roll(5) == 0 {
			url += "&tr=1"
		}
		at := func() string { return fmt.Sprint(roll(size + 10)) }
		rg := "bytes=" + []string{at() + "-1" + at(), "-1" + at(), at() + "-", at() + "-1" + at() + "," + at() + "-", "0-0", "x", "5-2", "0-" + at(), " 0-1", "0-1 "}[roll(10)]
		method := "GET"
		if roll(6) == 0 {
			method = "HEAD"
		}
		for range 1 + roll(2) {
			r, _ := http.NewRequest(method, url, nil)
			r.Header.Set("Range", rg)
			switch roll(6) {
			case 0:
				r.Header.Set("If-Range", `"v"`)
			case 1:
				r.Header.Set("If-Range", `"w"`)
			case 2:
				r.Header.Set("If-Range", `W/"v"`)
			}
			res, err := server.Client().Do(r)
			if err != nil {
				t.Errorf("%s %s %s: %v", method, url, rg, err)
				continue
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil {
				t.Errorf("%s %s %s: %d, body %v", method, url, rg, res.StatusCode, err)
				continue
			}
			if method == "HEAD" {
				if len(body) > 0 {
					t.Error("HEAD with a body")
				}
				continue
			}
			if ir := r.Header.Get("If-Range"); ir != "" && ir != `"v"` && res.StatusCode == 206 {
				t.Errorf("206 in spite of If-Range %s", ir)
			}
			switch res.StatusCode {
			case 200:
				if !bytes.Equal(body, whole[:size]) {
					t.Errorf("%s %s: 200 with %d bytes", url, rg, len(body))
				}
			case 206:
				if res.Header.Get("Content-Digest") != "" {
					t.Errorf("%s %s: a digest of the whole in a 206", url, rg)
				}
				if mt, p, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); mt == "multipart/byteranges" {
					m := multipart.NewReader(bytes.NewReader(body), p["boundary"])
					for {
						part, err := m.NextPart()
						if err == io.EOF {
							break
						}
						if err != nil {
							t.Fatal(err)
						}
						b, _ := io.ReadAll(part)
						checkPart(t, url+" "+rg, part.Header.Get("Content-Range"), b, whole[:size])
					}
					break
				}
				checkPart(t, url+" "+rg, res.Header.Get("Content-Range"), body, whole[:size])
			case 416:
			default:
				t.Errorf("%s %s: %d", url, rg, res.StatusCode)
			}
		}
	}
}

func checkPart(t *testing.T, what, cr string, b, whole []byte) {
	t.Helper()
	var from, to, of int
	if n, err := fmt.Sscanf(cr, "bytes %d-%d/%d", &from, &to, &of); n != 3 || err != nil || of != len(whole) || to >= of || from > to || !bytes.Equal(b, whole[from:to+1]) {
		t.Errorf("%s: %q with %d bytes", what, cr, len(b))
	}
}

// A response made for one client reaches another only if it says so.
func TestRandom_Privacy(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		for _, ttl := range []time.Duration{0, time.Minute} {
			inBubble(t, fmt.Sprint(seed, " ", ttl), func(t *testing.T) { fuzzPrivacy(t, seed, ttl) })
		}
	}
}

func fuzzPrivacy(t *testing.T, seed uint64, ttl time.Duration) {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 3))
	roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }
	ccs := []string{"", "private", "no-store", "max-age=5", "max-age=5, stale-if-error=60, stale-while-revalidate=20", "public, max-age=3", "s-maxage=4", "max-age=3, must-revalidate", "no-cache", "public, no-cache", "max-age=0"}
	var id atomic.Int64
	h := func(w http.ResponseWriter, r *http.Request) {
		who := r.Header.Get("Authorization")
		cc := ccs[roll(len(ccs))]
		if roll(3) == 0 {
			time.Sleep(time.Duration(roll(1500)) * time.Millisecond)
		}
		w.Header().Set("X-For", who+"|"+cc)
		if cc != "" {
			w.Header().Set("Cache-Control", cc)
		}
		if roll(3) == 0 {
			w.Header().Set("Etag", `"v"`)
			if r.Header.Get("If-None-Match") == `"v"` && roll(2) == 0 {
				w.Header().Del("X-For") // a 304's fields become those of the stored response
				w.WriteHeader(304)
				return
			}
		}
		switch roll(12) {
		case 0:
			w.WriteHeader([]int{500, 503, 404, 403, 301}[roll(5)])
		case 1:
			panic("for " + who)
		case 2:
			w.Header().Set("Set-Cookie", "of="+who)
		}
		fmt.Fprintf(w, "%s|%s|%d|", who, cc, id.Add(1))
		if roll(3) == 0 {
			w.(http.Flusher).Flush()
			time.Sleep(time.Duration(roll(1500)) * time.Millisecond)
			if roll(4) == 0 {
				panic(http.ErrAbortHandler)
			}
		}
		fmt.Fprint(w, "end")
	}
	store, locker := memstore.New(), locallock.New()
	o := bellwether.HTTPOptions{CredentialFields: []string{"X-Key"}, Options: bellwether.Options{TTL: ttl, Store: store, Locker: locker}}
	sites := []*site{newSite(t, o, h), newSite(t, o, h)}
	time.Sleep(2 * time.Second)
	var wg sync.WaitGroup
	for c := range 12 {
		wg.Go(func() {
			for range 60 {
				time.Sleep(time.Duration(roll(800)) * time.Millisecond)
				who := ""
				var fields []string
				if c%2 == 0 {
					who = fmt.Sprint("u", c)
					fields = append(fields, "Authorization", who)
				}
				switch roll(8) {
				case 0:
					fields = append(fields, "Cache-Control", []string{"no-cache", "no-store", "max-stale", "stale-if-error=100", "only-if-cached"}[roll(5)])
				case 1:
					fields = append(fields, "If-None-Match", `"v"`)
				case 2:
					fields = append(fields, "Range", "bytes=0-")
				}
				r := request([]string{"GET", "GET", "GET", "HEAD"}[roll(4)], fmt.Sprint("http://a/", roll(3)), fields...)
				ctx, cancel := context.WithCancel(t.Context())
				if roll(10) == 0 {
					time.AfterFunc(time.Duration(roll(1000))*time.Millisecond, cancel)
				}
				w := sites[roll(2)].do(r.WithContext(ctx))
				cancel()
				for _, said := range []string{w.Header().Get("X-For"), w.Body.String()} {
					parts := strings.Split(said, "|")
					if len(parts) < 2 || parts[0] == who || strings.Contains(said, "Bad Gateway") {
						continue
					}
					says := parts[1]
					if parts[0] == "" { // a 304 may have made it a response for all
						says += w.Header().Get("Cache-Control")
					}
					open := strings.Contains(says, "public") || strings.Contains(says, "s-maxage") || strings.Contains(says, "must-revalidate")
					if strings.Contains(w.Header().Get("Cache-Status"), "fwd-status=304") && parts[0] == "" {
						continue // validated for this client
					}
					if !open && (parts[0] != "" || who != "") {
						t.Errorf("%q got %d %q: %v", who, w.Code, said, w.Header())
					}
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(time.Minute)
}

// What is older than an unsafe request, or an invalidation, and counts as
// fresh after it.
func TestRandom_NothingOlderIsFresh(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		for _, kind := range []bellwether.Invalidation{bellwether.HardInvalidation, bellwether.SoftInvalidation} {
			for _, far := range []bool{false, true} {
				inBubble(t, fmt.Sprint(seed, " ", kind, " ", far), func(t *testing.T) { fuzzFresh(t, seed, kind, far) })
			}
		}
	}
}

func fuzzFresh(t *testing.T, seed uint64, kind bellwether.Invalidation, far bool) {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 7))
	roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }
	var version atomic.Int64
	vary := roll(2) == 0
	ccs := []string{"public, max-age=60", "public, max-age=2, stale-while-revalidate=60", "max-age=60", "s-maxage=60", "private"}
	cc := ccs[roll(3)]
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "GET" && r.Method != "HEAD" {
			version.Add(1)
			if roll(2) == 0 {
				time.Sleep(time.Duration(roll(1500)) * time.Millisecond)
			}
			return
		}
		v := version.Load()
		time.Sleep(time.Duration(roll(2000)) * time.Millisecond)
		c := cc
		if roll(6) == 0 {
			c = ccs[roll(len(ccs))]
		}
		w.Header().Set("Cache-Control", c)
		w.Header().Set("Surrogate-Key", "tag")
		if vary {
			w.Header().Set("Vary", "X-V")
		}
		w.Header().Set("X-Version", fmt.Sprint(v))
		if roll(2) == 0 {
			io.WriteString(w, "page ")
			w.(http.Flusher).Flush()
			time.Sleep(time.Duration(roll(2500)) * time.Millisecond)
		}
		fmt.Fprint(w, v)
	}
	o := bellwether.HTTPOptions{UnsafeInvalidation: kind}
	store, locker := bellwether.Store(memstore.New()), bellwether.Locker(locallock.New())
	if far {
		store, locker = farStore(store), farLocker()
	}
	o.Store, o.Locker = store, locker
	sites := []*site{newSite(t, o, h), newSite(t, o, h)}
	time.Sleep(2 * time.Second)
	var done atomic.Int64      // the version that the latest finished unsafe request made sure of
	var doneAt [2]atomic.Int64 // per process: of its own
	lag := map[int64]time.Time{}
	var wg sync.WaitGroup
	end := time.Now().Add(60 * time.Second)
	for c := range 12 {
		wg.Go(func() {
			for time.Now().Before(end) {
				time.Sleep(time.Duration(roll(900)) * time.Millisecond)
				i := roll(2)
				s := sites[i]
				fields := []string{"X-V", fmt.Sprint(roll(2))}
				if c%3 == 0 {
					fields = append(fields, "Authorization", fmt.Sprint("u", c))
				}
				if roll(8) == 0 {
					fields = append(fields, "Cache-Control", []string{"no-store", "no-cache", "max-age=1"}[roll(3)])
				}
				// what must be seen
				mu.Lock()
				least := doneAt[i].Load()
				for v, at := range lag {
					if time.Since(at) > 1200*time.Millisecond {
						least = max(least, v)
					}
				}
				mu.Unlock()
				method := "GET"
				if roll(5) == 0 {
					method = "HEAD"
				}
				began := time.Now()
				w := s.do(request(method, "http://a/p", fields...))
				if w.Code != 200 {
					continue
				}
				got, err := strconv.ParseInt(w.Header().Get("X-Version"), 10, 64)
				status := w.Header().Get("Cache-Status")
				if err != nil || got >= least {
					continue
				}
				if kind == bellwether.SoftInvalidation && strings.Contains(status, "ttl=-") {
					continue // stale, and says so
				}
				t.Errorf("%s in process %d at %v got version %d, and %d was done: %s (%v)", method, i, began, got, least, status, fields)
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(end) {
			time.Sleep(time.Duration(1000+roll(5000)) * time.Millisecond)
			i := roll(2)
			var v int64
			switch roll(4) {
			case 0: // by the operator
				v = version.Add(1)
				m := []bellwether.Match{{URLs: []string{"http://a/p"}}, {Prefixes: []string{"http://a/"}}, {Tags: []string{"tag"}}}[roll(3)]
				m.Soft = kind == bellwether.SoftInvalidation
				if err := sites[i].mw.InvalidateMatching(t.Context(), m); err != nil {
					continue
				}
			default:
				v = version.Load() + 1
				sites[i].do(request("PUT", "http://a/p"))
			}
			mu.Lock()
			doneAt[i].Store(v)
			lag[v] = time.Now()
			mu.Unlock()
			done.Store(v)
		}
	})
	wg.Wait()
	time.Sleep(time.Minute)
}
