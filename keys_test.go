package bellwether_test

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// shopKey uses each kind of rule.
var shopKey = bellwether.Keys(bellwether.WithoutQuery("utm_*", "ref"), bellwether.SortedQuery(), bellwether.WithCookies("lang", "theme"))

func TestKeys_Query(t *testing.T) {
	drop := bellwether.WithoutQuery("utm_*", "ref")
	only := bellwether.OnlyQuery("id", "page*")
	sorted := bellwether.SortedQuery()
	for _, test := range []struct {
		rules      []bellwether.KeyRule
		sent, want string
	}{
		{nil, "b=1&a=2", "b=1&a=2"},
		{[]bellwether.KeyRule{{}}, "b=1&a=2", "b=1&a=2"},
		{[]bellwether.KeyRule{drop}, "id=1", "id=1"},
		{[]bellwether.KeyRule{drop}, "id=1&utm_source=x&ref=y", "id=1"},
		{[]bellwether.KeyRule{drop}, "utm_=1&id=1", "id=1"},
		{[]bellwether.KeyRule{drop}, "utm=1&UTM_x=1&referer=y", "utm=1&UTM_x=1&referer=y"},
		{[]bellwether.KeyRule{drop}, "utm_source", ""},
		{[]bellwether.KeyRule{drop}, "%75tm%5Fsource=x&id=a%20b+c", "id=a%20b+c"},
		{[]bellwether.KeyRule{drop}, "ref=1&ref=2&id=1&ref", "id=1"},
		{[]bellwether.KeyRule{drop}, "ref=%zz&id=1", "id=1"},
		{[]bellwether.KeyRule{drop}, "ref%zz=1&utm_x=1;id=7&&id=%zz", "ref%zz=1&utm_x=1;id=7&&id=%zz"},
		{[]bellwether.KeyRule{drop}, "ref%zz=1&ref=1&&b", "ref%zz=1&&b"},
		{[]bellwether.KeyRule{bellwether.WithoutQuery()}, "a&b", "a&b"},
		{[]bellwether.KeyRule{bellwether.WithoutQuery("*")}, "a&b", ""},
		{[]bellwether.KeyRule{bellwether.WithoutQuery("*")}, "a&b;c&%zz", "b;c&%zz"},
		{[]bellwether.KeyRule{bellwether.OnlyQuery("*")}, "a&b;c&%zz", "a"},
		{[]bellwether.KeyRule{only}, "id=1&page=2&pages=3", "id=1&page=2&pages=3"},
		{[]bellwether.KeyRule{only}, "&x=1&id=1&id%zz=1&id=2;y=1&", "id=1"},
		{[]bellwether.KeyRule{only}, "x=%zz&id=%zz", "id=%zz"},
		{[]bellwether.KeyRule{only, bellwether.WithoutQuery("pages")}, "id=1&pages=2&page=3", "id=1&page=3"},
		{[]bellwether.KeyRule{only, bellwether.OnlyQuery("id")}, "id=1&pages=2", "id=1"},
		{[]bellwether.KeyRule{bellwether.OnlyQuery()}, "id=1", ""},
		{[]bellwether.KeyRule{sorted}, "b=1&a=2&c", "a=2&b=1&c"},
		{[]bellwether.KeyRule{sorted}, "a=2&%61=1&a=0", "a=2&%61=1&a=0"},
		{[]bellwether.KeyRule{sorted}, "b&a=2&%61=1&a=0", "a=2&%61=1&a=0&b"},
		{[]bellwether.KeyRule{sorted}, "b=1;a=2&a=1", "b=1;a=2&a=1"},
		{[]bellwether.KeyRule{sorted}, "b=1&b=2;a=3", "b=1&b=2;a=3"},
		{[]bellwether.KeyRule{sorted}, "b&%zz&a", "b&%zz&a"},
		{[]bellwether.KeyRule{sorted}, "b=%zz&a", "a&b=%zz"},
		{[]bellwether.KeyRule{sorted, drop}, "b=1&utm_x=1&a=2", "a=2&b=1"},
		{[]bellwether.KeyRule{only, sorted}, "page=1&%zz&id=2", "id=2&page=1"},
	} {
		key, ok := bellwether.Keys(test.rules...)(request("GET", "http://Shop.test:80/p?"+test.sent))
		want := bellwether.Key{URL: strings.TrimSuffix("http://shop.test/p?"+test.want, "?")}
		if test.want == test.sent {
			want.URL = "" // the request's own URL, which is not built
		}
		if !ok || key != want {
			t.Errorf("%q: %+v, %t; want %+v", test.sent, key, ok, want)
		}
	}
}

func TestKeys_Cookies(t *testing.T) {
	for _, test := range []struct {
		cookies []string
		want    string
	}{
		{nil, ""},
		{[]string{"session=1; Lang=de"}, ""},
		{[]string{"lang=de"}, `lang"=de"`},
		{[]string{"session=1; theme=dark;lang=de"}, `lang"=de"theme"=dark"`},
		{[]string{"theme=dark", "lang=de"}, `lang"=de"theme"=dark"`},
		{[]string{"lang=de; lang=en"}, `lang"=de"lang"=en"`},
		{[]string{"lang=en; lang=de"}, `lang"=en"lang"=de"`},
		{[]string{"lang"}, `lang""`},
		{[]string{"lang="}, `lang"="`},
		{[]string{`lang=de"theme=dark`}, `lang"=de\"theme=dark"`},
		{[]string{"lang=\xff"}, `lang"=\xff"`},
		{[]string{`lang=\xff`}, `lang"=\\xff"`},
		{[]string{`lang="de"`}, `lang"=\"de\""`},
		{[]string{`prefs={"a":1}; lang=de`}, `lang"=de"`},
		// Parsers disagree about the bytes after a quoted value without an end.
		{[]string{`x="a; lang=de; y=b"`}, `;"x=\"a; lang=de; y=b\""`},
		{[]string{`x="a\"; lang=de; y=b"`, "z"}, `;"x=\"a\\\"; lang=de; y=b\"";"z"`},
		{[]string{`prefs="{\"a\":1}"; session=1`}, `;"prefs=\"{\\\"a\\\":1}\"; session=1"`}, // also without lang and theme
	} {
		r := request("GET", "http://a/p")
		r.Header["Cookie"] = test.cookies
		if key, ok := shopKey(r); !ok || key != (bellwether.Key{Variant: test.want}) {
			t.Errorf("%q: %+v, %t; want the variant %s", test.cookies, key, ok, test.want)
		}
	}
}

// Rules leave the other parts of the default key as they are.
func TestKeys_DefaultRules(t *testing.T) {
	for target, want := range map[string]string{
		"http://Shop.TEST.:80/%7Ea%2fb|?ref=1&id=2":   "http://shop.test/~a%2Fb%7C?id=2",
		"https://shop.test:443?ref=1":                 "https://shop.test/",
		"http://[0:0::1]:8080/?id=1&ref=2":            "http://[::1]:8080/?id=1",
		"http://shop.test/?":                          "",
		"http://shop.test/?id":                        "",
		"http://shop.test/a?b?c&ref=1":                "http://shop.test/a?b?c",
		"http://user@shop.test/?ref=1":                "refused",
		"http://shop..test/?ref=1":                    "refused",
		"http://a/" + strings.Repeat("x", 9<<10) + "": "refused",
	} {
		key, ok := shopKey(request("GET", target))
		if want == "refused" && ok || want != "refused" && (!ok || key.URL != want) {
			t.Errorf("%.60q: %+v, %t; want %s", target, key, ok, want)
		}
	}
}

// A request with a rewritten path is stored under the URL that its client sent, as a variant.
func TestKeys_RewrittenPath(t *testing.T) {
	for _, test := range []struct {
		path, query string // set by the middleware around
		want        bellwether.Key
	}{
		{"/app/p", "id=1&ref=2", bellwether.Key{}},
		{"/p", "id=1&ref=2", bellwether.Key{URL: "http://a/app/p?id=1", Variant: `"/p"lang"=de"`}},
		{"/p", "", bellwether.Key{URL: "http://a/app/p", Variant: `"/p"lang"=de"`}},
		{"/app/p", "id=3", bellwether.Key{URL: "http://a/app/p?id=3", Variant: `lang"=de"`}},
	} {
		r := request("GET", "http://a/app/p?id=1&ref=2", "Cookie", "lang=de")
		r.URL.Path, r.URL.RawQuery = test.path, test.query
		if test.want.URL == "" {
			test.want = bellwether.Key{URL: "http://a/app/p?id=1", Variant: `lang"=de"`}
		}
		if key, ok := shopKey(r); !ok || key != test.want {
			t.Errorf("%s?%s: %+v, %t; want %+v", test.path, test.query, key, ok, test.want)
		}
	}
}

func TestKeys_BadRulesPanic(t *testing.T) {
	for name, build := range map[string]func() bellwether.KeyRule{
		`WithoutQuery is ""`:         func() bellwether.KeyRule { return bellwether.WithoutQuery("") },
		`WithoutQuery is "utm*_x"`:   func() bellwether.KeyRule { return bellwether.WithoutQuery("id", "utm*_x") },
		`OnlyQuery is "**"`:          func() bellwether.KeyRule { return bellwether.OnlyQuery("**") },
		`WithCookies is ""`:          func() bellwether.KeyRule { return bellwether.WithCookies("") },
		`WithCookies is "lang=de"`:   func() bellwether.KeyRule { return bellwether.WithCookies("lang=de") },
		`WithCookies is "lang;test"`: func() bellwether.KeyRule { return bellwether.WithCookies("lang;test") },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, name) || !strings.Contains(got, "such as") {
					t.Errorf("panic %q, want %q", got, name)
				}
			}()
			build()
		}()
	}
}

func TestKeys_UnchangedDoesNotAllocate(t *testing.T) {
	r := request("GET", "http://a/p?id=1&page=2&q=a%20b", "Cookie", "session=1; other=2")
	if n := testing.AllocsPerRun(100, func() { shopKey(r) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// The handler sees the key's parts, requests with one key share a page, and Invalidate drops all variants.
func TestKeys_Middleware(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		lang := "en"
		if c, err := r.Cookie("lang"); err == nil {
			lang = c.Value
		}
		fmt.Fprint(w, r.RequestURI, " ", r.URL.RawQuery, " ", lang)
	}
	inPairs(t, bellwether.HTTPOptions{Key: shopKey}, h, func(t *testing.T, p pair) {
		all := func() {
			for _, lang := range []string{"en", "de"} {
				for _, query := range []string{"b=1&a=2&utm_source=x", "a=2&b=1", "ref=y&a=2&b=1"} {
					for _, s := range []*site{p.first, p.second} {
						cookie := "session=" + query
						if lang != "en" {
							cookie += "; lang=" + lang
						}
						s.wantBody(t, "/p?a=2&b=1 a=2&b=1 "+lang, "http://a/p?"+query, "Cookie", cookie)
						synctest.Wait() // the page is stored just after the answer
					}
				}
			}
		}
		all()
		if n := p.calls(); n != 2 {
			t.Errorf("%d handler calls for two languages", n)
		}
		if err := p.first.mw.Invalidate(t.Context(), "http://a/p?a=2&b=1"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second) // NearTTL
		all()
		if n := p.calls(); n != 2 {
			t.Errorf("%d handler calls after an invalidation of two languages", n)
		}
	})
}

// A cookie that a Connection field removes from the request makes no variant.
func TestKeys_CookieOfOneConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{Key: shopKey}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprintf(w, "%q", r.Header["Cookie"])
		})
		s.get("http://a/p", "Cookie", "lang=de", "Connection", "Cookie")
		synctest.Wait()
		s.wantBody(t, `["lang=de"]`, "http://a/p", "Cookie", "lang=de")
		s.wantBody(t, `[]`, "http://a/p")
	})
}

// Handlers below different prefixes do not share pages, and a write to the client's URL drops the page.
func TestKeys_StripPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{Key: shopKey})
		defer mw.Close()
		calls := 0
		mux := http.NewServeMux()
		for _, prefix := range []string{"/a", "/b"} {
			mux.Handle(prefix+"/", http.StripPrefix(prefix, mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls++
				w.Header().Set("Cache-Control", "max-age=60")
				fmt.Fprint(w, prefix, r.URL.RequestURI())
			}))))
		}
		want := func(method, target, want string, n int) {
			t.Helper()
			calls = 0
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, request(method, target))
			synctest.Wait()
			if got := w.Body.String(); got != want || calls != n {
				t.Errorf("%s %s: %q after %d calls, want %q after %d", method, target, got, calls, want, n)
			}
		}
		want("GET", "http://h/a/p?ref=1", "/a/p", 1)
		want("GET", "http://h/b/p", "/b/p", 1)
		want("GET", "http://h/a/p", "/a/p", 0)
		want("GET", "http://h/b/p?ref=2", "/b/p", 0)
		want("POST", "http://h/a/p?utm_x=3", "/a/p?utm_x=3", 1)
		want("GET", "http://h/a/p", "/a/p", 1)
		want("GET", "http://h/b/p", "/b/p", 0)
		if err := mw.Invalidate(t.Context(), "http://h/b/p"); err != nil {
			t.Error(err)
		}
		want("GET", "http://h/b/p", "/b/p", 1)
	})
}

// FuzzKeys checks that requests with one key agree in the kept parts, as net/http parses them, and
// that a request's key is the default key of its Key.URL.
func FuzzKeys(f *testing.F) {
	f.Add("/p?a=1&utm_x=2", "lang=de", "/p?a=1", "lang=de; x=1", false)
	f.Add("/p?b&a=2&%61=1;", `lang=de"theme=x`, "/p?a=2&b&a=1", `lang="de"; theme=x`, true)
	f.Add("/%7e?%zz&ref=1", `x="; lang=de"`, "/~?%zz", "lang=de", false)
	f.Fuzz(func(t *testing.T, target, cookie, otherTarget, otherCookie string, stripped bool) {
		type reading struct {
			key     string
			variant string
			path    string
			query   url.Values
			cookies map[string][]string
		}
		read := func(target, cookie string) (got reading, ok bool) {
			u, err := url.ParseRequestURI(target)
			if err != nil || !strings.HasPrefix(target, "/") {
				return got, false
			}
			r := &http.Request{Method: "GET", URL: u, Host: "a", RequestURI: target, Header: http.Header{"Cookie": {cookie}}}
			if stripped {
				r.URL.Path, r.URL.RawPath = "/stripped", ""
				r.TLS = new(tls.ConnectionState)
			}
			key, ok := shopKey(r)
			own, keyed := httpcache.Key(r)
			if ok && !keyed {
				t.Fatalf("%q has the key %+v, and no default key", target, key)
			}
			if !ok {
				return got, false
			}
			seen := u.RawQuery
			if got.key = own; key.URL != "" {
				named, err := http.NewRequest("GET", key.URL, nil)
				if err != nil {
					t.Fatalf("%q has the URL %q: %v", target, key.URL, err)
				}
				if got.key, ok = httpcache.Key(named); !ok {
					t.Fatalf("%q has the URL %q without a key", target, key.URL)
				}
				seen = named.URL.RawQuery
			} else if stripped {
				t.Fatalf("%q was rewritten, and has its own URL", target)
			}
			// An unchanged query parses as the query without the dropped parameters.
			sent, _ := url.ParseQuery(u.RawQuery)
			maps.DeleteFunc(sent, func(name string, _ []string) bool { return strings.HasPrefix(name, "utm_") || name == "ref" })
			got.query, _ = url.ParseQuery(seen)
			if !maps.EqualFunc(sent, got.query, slices.Equal) {
				t.Fatalf("%q: the handler sees %q", target, seen)
			}
			got.path, got.variant, got.cookies = r.URL.Path, key.Variant, map[string][]string{}
			for _, name := range []string{"lang", "theme"} {
				for _, c := range r.CookiesNamed(name) {
					got.cookies[name] = append(got.cookies[name], c.Value)
				}
			}
			return got, true
		}
		one, ok := read(target, cookie)
		other, also := read(otherTarget, otherCookie)
		if !ok || !also || one.key != other.key || one.variant != other.variant {
			return
		}
		if one.path != other.path || !maps.EqualFunc(one.query, other.query, slices.Equal) || !maps.EqualFunc(one.cookies, other.cookies, slices.Equal) {
			t.Errorf("%q %q and %q %q have one key: %+v, %+v", target, cookie, otherTarget, otherCookie, one, other)
		}
	})
}
