//go:build !race

package bellwether_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
)

// pagesAtOnce requests n new pages whose handlers request parts, and returns the time for all.
func pagesAtOnce(t *testing.T, n int, shared bool, around func(http.Handler) http.Handler) time.Duration {
	t.Helper()
	inner := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	outer := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	var base string
	server := httptest.NewServer(around(selfAsking(inner, &base, shared)))
	base = server.URL
	defer server.Close()
	defer inner.CloseIdleConnections()
	defer outer.CloseIdleConnections()
	var wg sync.WaitGroup
	var wrong atomic.Int32
	var first atomic.Pointer[string]
	began := time.Now()
	for i := range n {
		wg.Go(func() {
			if status, body := fetchURL(outer, fmt.Sprint(base, "/page/", i)); status != http.StatusOK || body != "part in page" {
				wrong.Add(1)
				said := fmt.Sprint(status, " ", body)
				first.CompareAndSwap(nil, &said)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if k := wrong.Load(); k > 0 {
		t.Errorf("%d of %d pages were wrong, the first with %s", k, n, *first.Load())
	}
	return took
}

// Pages that fetch a part of their own site wait for slots of other pages, and all are answered.
func TestAsking_PagesThatFetchTheirOwnSite(t *testing.T) {
	for _, n := range []int{200, 2000} {
		if n > 200 && testing.Short() {
			continue
		}
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d pages, one part %t", n, shared), func(t *testing.T) {
				var times []float64 // with the cache, divided by the time without the cache
				for range 5 {
					without := pagesAtOnce(t, n, shared, func(h http.Handler) http.Handler { return h })
					mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
					with := pagesAtOnce(t, n, shared, mw.Handler)
					mw.Close()
					t.Logf("%v without the cache, %v with it", without, with)
					times = append(times, float64(with)/float64(without))
				}
				slices.Sort(times)
				if times[2] > 3 {
					t.Errorf("the cache makes it %.1f times as long, want 3 times at most", times[2])
				}
			})
		}
	}
}

// selfAsking is a handler whose pages fetch a part from their own site over HTTP.
func selfAsking(client *http.Client, base *string, shared bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		part, ok := strings.CutPrefix(r.URL.Path, "/page/")
		if !ok {
			time.Sleep(50 * time.Millisecond)
			fmt.Fprint(w, "part")
			return
		}
		if shared {
			part = "one"
		}
		status, body := fetchURL(client, *base+"/api/"+part)
		if status != http.StatusOK {
			w.WriteHeader(http.StatusBadGateway)
		}
		time.Sleep(50 * time.Millisecond)
		fmt.Fprint(w, body, " in page")
	}
}

func fetchURL(client *http.Client, url string) (status int, body string) {
	res, err := client.Get(url)
	if err != nil {
		return -1, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return -1, err.Error()
	}
	return res.StatusCode, string(b)
}
