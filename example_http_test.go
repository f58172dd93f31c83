package bellwether_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/bellwether-go/bellwether"
)

// get sends a request to a handler and prints the body of the response.
func get(h http.Handler, url string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	fmt.Println(strings.TrimSpace(w.Body.String()))
}

func getWith(h http.Handler, url, field, value string) {
	r := httptest.NewRequest(http.MethodGet, url, nil)
	r.Header.Set(field, value)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(strings.TrimSpace(w.Body.String()))
}

func ExampleMiddleware_Handler() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintln(w, "call", calls)
	}))
	get(h, "http://shop.test/")
	get(h, "http://shop.test/")
	get(h, "http://shop.test/?page=2")
	// Output:
	// call 1
	// call 1
	// call 2
}

// Compression belongs inside the cache. The outer middleware reduces Accept-Encoding to two variants.
// The inner one sets Vary on all responses, because chi's Compress sets it on compressed responses only.
func ExampleMiddleware_Handler_compression() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	r := chi.NewRouter()
	r.Use(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			encoding := "identity"
			if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				encoding = "gzip"
			}
			r = r.Clone(r.Context())
			r.Header.Set("Accept-Encoding", encoding)
			next.ServeHTTP(w, r)
		})
	})
	r.Use(mw.Handler, middleware.SetHeader("Vary", "Accept-Encoding"), middleware.Compress(5))
	calls := 0
	r.Get("/", func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintln(w, "a page")
	})
	for _, accepted := range []string{"", "gzip, deflate, br", "br, gzip", "deflate"} {
		req := httptest.NewRequest(http.MethodGet, "http://shop.test/", nil)
		req.Header.Set("Accept-Encoding", accepted)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		fmt.Printf("%q: %q after %d calls\n", accepted, w.Header().Get("Content-Encoding"), calls)
	}
	// Output:
	// "": "" after 1 calls
	// "gzip, deflate, br": "gzip" after 2 calls
	// "br, gzip": "gzip" after 2 calls
	// "deflate": "" after 2 calls
}

// TTL is for responses without a freshness of their own. Private responses stay private.
func ExampleHTTPOptions() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		if r.URL.Path == "/account" {
			w.Header().Set("Cache-Control", "private")
		}
		fmt.Fprintln(w, r.URL.Path, calls)
	}))
	for _, path := range []string{"/", "/", "/account", "/account"} {
		get(h, "http://shop.test"+path)
	}
	// Output:
	// / 1
	// / 1
	// /account 2
	// /account 3
}

// A tag drops all responses that bear it.
func ExampleMiddleware_InvalidateMatching() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Cache-Tag", "product-7, sale")
		fmt.Fprintln(w, "call", calls)
	}))
	get(h, "http://shop.test/products/7")
	fmt.Println(mw.InvalidateMatching(context.Background(), bellwether.Match{Tags: []string{"product-7"}}))
	get(h, "http://shop.test/products/7")
	// Output:
	// call 1
	// <nil>
	// call 2
}

// One function gives each response its time in this cache, by status and path and with a bound. The
// header for clients stays, and private responses stay private.
func ExampleHTTPOptions_freshness() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{
		Freshness: func(r *http.Request, status int, header http.Header, said bellwether.Freshness) bellwether.Freshness {
			switch {
			case status == http.StatusNotFound:
				said.TTL = 10 * time.Second
			case strings.HasPrefix(r.URL.Path, "/static/"):
				said.TTL = 24 * time.Hour
			}
			said.TTL = min(said.TTL, time.Hour)
			return said
		},
	})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		if r.URL.Path == "/account" {
			w.Header().Set("Cache-Control", "private, max-age=60")
		}
		if r.URL.Path == "/gone" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	for _, path := range []string{"/static/logo.svg", "/gone", "/account", "/other"} {
		calls = 0
		for range 2 {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://shop.test"+path, nil))
		}
		fmt.Println(path, calls)
	}
	// Output:
	// /static/logo.svg 1
	// /gone 1
	// /account 2
	// /other 2
}

// A purge of everything takes one place in the log.
func ExampleMatch_all() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		fmt.Fprintln(w, r.Host, calls)
	}))
	get(h, "http://a.test/")
	get(h, "http://b.test/")
	fmt.Println(mw.InvalidateMatching(context.Background(), bellwether.Match{All: true}))
	get(h, "http://a.test/")
	get(h, "http://b.test/")
	// Output:
	// a.test 1
	// b.test 2
	// <nil>
	// a.test 3
	// b.test 4
}

// Tags may be in the field of another cache, such as Varnish's xkey.
func ExampleHTTPOptions_tagFields() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute, TagFields: []string{"xkey"}})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("xkey", "product-7 sale")
		fmt.Fprintln(w, "call", calls)
	}))
	get(h, "http://shop.test/products/7")
	fmt.Println(mw.InvalidateMatching(context.Background(), bellwether.Match{Tags: []string{"sale"}}))
	get(h, "http://shop.test/products/7")
	// Output:
	// call 1
	// <nil>
	// call 2
}

// Cache-Status (RFC 9211) tells the client how the cache answered.
func ExampleHTTPOptions_uncacheableTTL() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{HitForMissTTL: time.Minute})
	defer mw.Close()
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=60")
		fmt.Fprintln(w, "for you alone")
	}))
	for range 2 { // the second request goes straight to the handler
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://shop.test/account", nil))
		fmt.Println(w.Header().Get("Cache-Status"))
	}
	// Output:
	// Bellwether;fwd=uri-miss;fwd-status=200;key="shop.test/account";detail=private
	// Bellwether;fwd=bypass;detail=private
}

// After MaxWait one request may ask the handler, and the others get 503 with Retry-After.
func ExampleHTTPOptions_passThrough() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{
		TTL: time.Minute, MaxWait: time.Millisecond,
		MaxPassThrough: 1,
	})
	defer mw.Close()
	hold, through := make(chan struct{}), make(chan bool, 1)
	var first sync.Once
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rebuild := false
		first.Do(func() { rebuild = true })
		if !rebuild {
			through <- true
		}
		<-hold
	}))
	ask := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://shop.test/", nil))
		return w.Code
	}
	var clients sync.WaitGroup
	clients.Go(func() { ask() })
	<-through // takes the place while the handler works
	fmt.Println(ask())
	close(hold)
	clients.Wait()
	// Output: 503
}

// A field of this cache's own sets other times than those of the caches behind it.
func ExampleHTTPOptions_targetedFields() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TargetedFields: []string{"Bellwether-Cache-Control", "CDN-Cache-Control"}})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Bellwether-Cache-Control", "max-age=60")
		fmt.Fprintln(w, "call", calls)
	}))
	get(h, "http://shop.test/")
	get(h, "http://shop.test/")
	// Output:
	// call 1
	// call 1
}

// A page without a freshness that has not changed for ten days is fresh for one day.
func ExampleHTTPOptions_heuristicFraction() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{HeuristicFraction: 0.1})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Last-Modified", time.Now().AddDate(0, 0, -10).UTC().Format(http.TimeFormat))
		fmt.Fprintln(w, "call", calls)
	}))
	get(h, "http://shop.test/")
	get(h, "http://shop.test/")
	// Output:
	// call 1
	// call 1
}

// A response with a cookie is shared only with StoreSetCookie and a lifetime of its own.
func ExampleHTTPOptions_setCookie() {
	for _, shared := range []bool{false, true} {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{StoreSetCookie: shared})
		calls := 0
		h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Set-Cookie", "theme=light")
			fmt.Fprintln(w, "call", calls)
		}))
		get(h, "http://shop.test/")
		get(h, "http://shop.test/")
		mw.Close()
	}
	// Output:
	// call 1
	// call 2
	// call 1
	// call 1
}

// Clients with the same languages in any order share a variant.
func ExampleHTTPOptions_anyLanguageOrder() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{AnyLanguageOrder: true})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Accept-Language")
		fmt.Fprintln(w, "call", calls)
	}))
	for _, languages := range []string{"de, en;q=0.5", "en;q=0.5, de", "fr"} {
		getWith(h, "http://shop.test/", "Accept-Language", languages)
	}
	// Output:
	// call 1
	// call 1
	// call 2
}

// A body larger than MaxBodyBytes reaches its client whole and is not stored.
func ExampleHTTPOptions_maxBody() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{MaxBodyBytes: 1 << 10})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, strings.Repeat("x", 5000))
	}))
	for range 2 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://shop.test/", nil))
		fmt.Println(w.Body.Len(), calls)
	}
	// Output:
	// 5000 1
	// 5000 2
}

// Tracking parameters and the order of parameters make no keys. A language makes a variant.
func ExampleKeys() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{Key: bellwether.Keys(
		bellwether.WithoutQuery("utm_*"),
		bellwether.SortedQuery(),
		bellwether.WithCookies("lang"),
	)})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintln(w, r.URL, r.CookiesNamed("lang"), "call", calls)
	}))
	ask := func(url, cookies string) {
		r := httptest.NewRequest(http.MethodGet, url, nil)
		r.Header.Set("Cookie", cookies)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Print(w.Body)
	}
	ask("http://shop.test/?size=8&color=red&utm_source=mail", "session=1; lang=de")
	ask("http://shop.test/?color=red&size=8", "session=2; lang=de")
	ask("http://shop.test/?color=red&size=8", "session=3; lang=fr")
	// Output:
	// /?color=red&size=8 [lang=de] call 1
	// /?color=red&size=8 [lang=de] call 1
	// /?color=red&size=8 [lang=fr] call 2
}

// Only the listed parameters reach the handler and the key.
func ExampleOnlyQuery() {
	key := bellwether.Keys(bellwether.OnlyQuery("id", "page"))
	fmt.Println(key(httptest.NewRequest(http.MethodGet, "http://shop.test/list?page=2&random=7", nil)))
	// Output: {http://shop.test/list?page=2 } true
}

// A key that the rules do not change has an empty URL: the request's own.
func ExampleWithoutQuery() {
	key := bellwether.Keys(bellwether.WithoutQuery("utm_*", "ref"))
	for _, query := range []string{"id=7&utm_source=mail&ref=x", "id=7"} {
		k, _ := key(httptest.NewRequest(http.MethodGet, "http://shop.test/list?"+query, nil))
		fmt.Printf("%q\n", k.URL)
	}
	// Output:
	// "http://shop.test/list?id=7"
	// ""
}

// Parameters of one name keep their order.
func ExampleSortedQuery() {
	key := bellwether.Keys(bellwether.SortedQuery())
	k, _ := key(httptest.NewRequest(http.MethodGet, "http://shop.test/list?tag=b&id=7&tag=a", nil))
	fmt.Println(k.URL)
	// Output: http://shop.test/list?id=7&tag=b&tag=a
}

// A function of your own refuses requests.
func ExampleWithCookies() {
	rules := bellwether.Keys(bellwether.WithCookies("lang"))
	key := func(r *http.Request) (bellwether.Key, bool) {
		k, ok := rules(r)
		return k, ok && !strings.HasPrefix(r.URL.Path, "/admin/")
	}
	for _, path := range []string{"/", "/admin/users"} {
		r := httptest.NewRequest(http.MethodGet, "http://shop.test"+path, nil)
		r.Header.Set("Cookie", "lang=de")
		k, ok := key(r)
		fmt.Printf("%q %t\n", k.Variant, ok)
	}
	// Output:
	// "lang\"=de\"" true
	// "lang\"=de\"" false
}

// A URL stands for its http and https forms and for all its variants.
func ExampleMiddleware_Invalidate() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		fmt.Fprintln(w, "call", calls)
	}))
	get(h, "http://shop.test/")
	fmt.Println(mw.Invalidate(context.Background(), "https://shop.test/"))
	get(h, "http://shop.test/")
	// Output:
	// call 1
	// <nil>
	// call 2
}

// The cache reads a hidden field, and clients do not get it.
func ExampleHTTPOptions_hiddenFields() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute, HiddenFields: []string{"Surrogate-Key"}})
	defer mw.Close()
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Surrogate-Key", "product-7")
	}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://shop.test/", nil))
	fmt.Printf("%q\n", w.Header().Get("Surrogate-Key"))
	// Output: ""
}

// With NoInvalidation a POST leaves the stored page.
func ExampleHTTPOptions_unsafeInvalidation() {
	for _, effect := range []bellwether.Invalidation{bellwether.HardInvalidation, bellwether.NoInvalidation} {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute, UnsafeInvalidation: effect})
		calls := 0
		h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			fmt.Fprintln(w, r.Method, "call", calls)
		}))
		get(h, "http://shop.test/")
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "http://shop.test/", nil))
		get(h, "http://shop.test/")
		mw.Close()
	}
	// Output:
	// GET call 1
	// GET call 3
	// GET call 1
	// GET call 1
}

// Clients with a credential field share only responses that say that they are for all.
func ExampleHTTPOptions_credentialFields() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute, CredentialFields: []string{"X-Api-Key"}})
	defer mw.Close()
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello", r.Header.Get("X-Api-Key"))
	}))
	for _, key := range []string{"alice", "bob"} {
		getWith(h, "http://shop.test/", "X-Api-Key", key)
	}
	// Output:
	// hello alice
	// hello bob
}

// Processes behind different host names share responses under a common one.
func ExampleKey() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute, Key: func(r *http.Request) (bellwether.Key, bool) {
		return bellwether.Key{URL: "http://shop.test" + r.URL.RequestURI()}, true
	}})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		fmt.Fprintln(w, r.Host, "call", calls)
	}))
	get(h, "http://a.test/page")
	get(h, "http://b.test/page")
	// Output:
	// shop.test call 1
	// shop.test call 1
}

// A framework takes the path from a field of the request. Each value of the field makes a variant, so
// no client decides the page of another client.
func ExampleHTTPOptions_retargetingFields() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute, RetargetingFields: []string{"X-Real-Path"}})
	defer mw.Close()
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "page", r.Header.Get("X-Real-Path"))
	}))
	for _, path := range []string{"/a", "/b"} {
		getWith(h, "http://shop.test/", "X-Real-Path", path)
	}
	// Output:
	// page /a
	// page /b
}

// A browser's reload sends no-cache. By default it reaches the handler.
func ExampleHTTPOptions_ignoreRequestDirectives() {
	for _, ignore := range []bool{false, true} {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute, IgnoreRequestDirectives: ignore})
		calls := 0
		h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { calls++ }))
		for range 3 {
			r := httptest.NewRequest(http.MethodGet, "http://shop.test/", nil)
			r.Header.Set("Cache-Control", "no-cache")
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		mw.Close()
		fmt.Println(ignore, calls)
	}
	// Output:
	// false 3
	// true 1
}
