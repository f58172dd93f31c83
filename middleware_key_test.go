package bellwether_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

func TestKey_Option(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
			q := r.URL.Query()
			q.Del("utm_source")
			scheme := "http"
			if r.Header.Get("X-Tls") == "on" {
				scheme = "https"
			}
			u := scheme + "://" + r.Host + r.URL.EscapedPath()
			if len(q) > 0 {
				u += "?" + q.Encode()
			}
			switch r.URL.Path {
			case "/refused":
				return bellwether.Key{URL: u}, false
			case "/nonsense":
				return bellwether.Key{URL: "nonsense"}, true
			case "/fragment":
				return bellwether.Key{URL: u + "#f"}, true
			}
			return bellwether.Key{URL: u}, true
		}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
			fmt.Fprint(w, r.Header.Get("X-Tls"))
		})
		s.get("http://a/p?utm_source=x&b=2&a=1")
		synctest.Wait() // the page is stored just after the answer
		w := s.get("http://A/p?a=1&b=2&utm_source=y")
		if !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
			t.Errorf("one URL by Key: %v", w.Header())
		}
		s.wantCalls(t, 1)
		s.wantBody(t, "on", "http://a/p?a=1&b=2", "X-Tls", "on") // another scheme by Key
		s.wantCalls(t, 1)
		for _, path := range []string{"/refused", "/nonsense", "/fragment"} {
			for range 2 {
				if w := s.get("http://a" + path); w.Code != 200 || !strings.Contains(w.Header().Get("Cache-Status"), "fwd=bypass") {
					t.Errorf("%s: %d %v", path, w.Code, w.Header())
				}
			}
			s.wantCalls(t, 2)
		}
		for name, invalidate := range map[string]func(){
			"by URL":               func() { s.mw.Invalidate(t.Context(), "http://a/p?a=1&b=2") },
			"by an unsafe request": func() { s.do(request("POST", "http://a/p?b=2&a=1&utm_source=z")) },
		} {
			s.get("http://a/p?a=1&b=2")
			s.calls.Store(0)
			invalidate()
			synctest.Wait()
			s.calls.Store(0)
			s.get("http://a/p?a=1&b=2")
			if s.calls.Swap(0) != 1 {
				t.Errorf("%s: the page is still stored", name)
			}
		}
	})
}

// A Key without an http URL with a host bypasses the cache. OnError gets only faults that no client causes.
func TestKey_NoURLIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := "http://a/" + strings.Repeat("x", 10<<10)
		for url, want := range map[string]bool{
			"/p": true, "p": true, "": false, "a/p": true, "//a/p": true, "http:///p": true, "ftp://a/p": true, "http://a:b:c/p": true, "%": true,
			"http://a/p": false, "https://a/p": false, "http://user@a/p": false, "http://a/p#part": false, long: false,
		} {
			var told []string
			o := bellwether.HTTPOptions{Key: func(*http.Request) (bellwether.Key, bool) { return bellwether.Key{URL: url}, true }}
			o.OnError = func(key string, err error) { told = append(told, key+": "+err.Error()) }
			s := newSite(t, o, page(0, "page"))
			if w := s.get("http://example.com/p"); w.Code != 200 {
				t.Errorf("%.20q: status %d", url, w.Code)
			}
			switch {
			case !want && len(told) > 0:
				t.Errorf("%.20q: OnError is told %q", url, told)
			case want && (len(told) != 1 || !strings.HasPrefix(told[0], "example.com/p: ") || !strings.Contains(told[0], "Key") ||
				!strings.Contains(told[0], strconv.Quote(url)) || !strings.Contains(told[0], "http://shop.example/")):
				t.Errorf("%.20q: OnError is told %q, want the request, the URL and one that is good", url, told)
			}
		}
		o := bellwether.HTTPOptions{Key: func(*http.Request) (bellwether.Key, bool) { return bellwether.Key{URL: "/p"}, false }}
		o.OnError = func(key string, err error) { t.Errorf("OnError is told %v", err) }
		newSite(t, o, page(0, "page")).get("http://example.com/p")
	})
}

// The handler of a shared page sees the key's host and query, and the path of outer routers.
func TestKey_HandlerSeesTheKeysURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := func(r *http.Request) (bellwether.Key, bool) {
			u := url.URL{Scheme: "http", Host: "shop.example", Path: "/app" + r.URL.Path}
			switch id := r.FormValue("id"); id { // it parses the form
			case "":
			case "none":
				u.ForceQuery = true
			default:
				u.RawQuery = "id=" + id
			}
			return bellwether.Key{URL: u.String()}, true
		}
		s := newSite(t, bellwether.HTTPOptions{Key: key}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, r.Host, " ", r.URL, " ", r.RequestURI, " ", r.FormValue("utm"), r.FormValue("id"))
		})
		s.handler = http.StripPrefix("/mount", s.handler)
		for _, url := range []string{
			"http://evil.example/mount/p?utm=evil&id=1", "http://shop.example:80/mount/p?id=1", "http://shop.example/mount/p?id=1&utm=x",
		} {
			s.wantBody(t, "shop.example /p?id=1 /mount/p?id=1 1", url)
			synctest.Wait()
		}
		s.wantCalls(t, 1)
		s.wantBody(t, "shop.example /p /mount/p ", "http://evil.example/mount/p?utm=evil") // without a parameter that Key keeps
		s.wantBody(t, "shop.example /p? /mount/p? ", "http://evil.example/mount/p?id=none")
	})
}

// Key.Variant separates variants of one URL. An invalidation of the URL drops all of them.
func TestKey_Variant(t *testing.T) {
	key := func(r *http.Request) (bellwether.Key, bool) {
		return bellwether.Key{URL: "http://a" + r.URL.RequestURI(), Variant: r.Header.Get("X-Lang")}, true
	}
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		theme := ""
		if r.URL.Path == "/vary" {
			w.Header().Set("Vary", "X-Theme")
			theme = r.Header.Get("X-Theme")
		}
		fmt.Fprintf(w, "%s %q %q", r.URL.Path, r.Header.Get("X-Lang"), theme)
	}
	inPairs(t, bellwether.HTTPOptions{Key: key}, h, func(t *testing.T, p pair) {
		for path, themes := range map[string][]string{"/p": {""}, "/vary": {"", "dark"}} {
			all := func() {
				for _, theme := range themes {
					for _, lang := range []string{"", "de", "d;e", "d; e"} {
						for _, s := range []*site{p.first, p.second} {
							want := fmt.Sprintf("%s %q %q", path, lang, theme)
							s.wantBody(t, want, "http://a"+path, "X-Lang", lang, "X-Theme", theme)
							synctest.Wait() // the page is stored just after the answer
						}
					}
				}
			}
			all()
			p.calls()
			all()
			if n := p.calls(); n > 0 {
				t.Errorf("%s: %d handler calls for stored pages", path, n)
			}
			p.first.mw.Invalidate(t.Context(), "http://a"+path)
			time.Sleep(2 * time.Second)
			all()
			if n := p.calls(); int(n) < 4*len(themes) {
				t.Errorf("%s: %d calls after an invalidation of the URL", path, n)
			}
		}
	})
}

// A first request with a retargeting field, or with a Variant, does not displace the page without.
func TestKey_WhatIsToldApartDisplacesNothing(t *testing.T) {
	variant := func(r *http.Request) (bellwether.Key, bool) {
		return bellwether.Key{URL: "http://a" + r.URL.RequestURI(), Variant: r.Header.Get("X-Variant")}, true
	}
	for name, tt := range map[string]struct {
		field   string
		vary    string
		control string
	}{
		"retargeted":                 {"X-Forwarded-Host", "", "max-age=600"},
		"retargeted, stale":          {"X-Forwarded-Host", "", "max-age=1, stale-while-revalidate=600"},
		"retargeted, a page by Vary": {"X-Forwarded-Host", "Accept-Encoding", "max-age=600"},
		"retargeted, and told":       {"X-Forwarded-Host", "X-Forwarded-Host", "max-age=600"},
		"a variant":                  {"X-Variant", "", "max-age=600"},
	} {
		t.Run(name, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", tt.control)
				if tt.vary != "" && (tt.vary != tt.field || r.Header.Get(tt.field) != "") {
					w.Header().Set("Vary", tt.vary)
				}
				fmt.Fprint(w, "page of ", r.Header.Get(tt.field))
			}
			inPairs(t, bellwether.HTTPOptions{Key: variant}, h, func(t *testing.T, p pair) {
				for _, encoding := range []string{"gzip", "br"} {
					p.first.get("http://a/p", "Accept-Encoding", encoding)
					p.second.get("http://a/p", "Accept-Encoding", encoding)
				}
				p.calls()
				for i := range 5 {
					name := fmt.Sprint("evil", i)
					p.first.wantBody(t, "page of "+name, "http://a/p", tt.field, name) // a request with the field
					time.Sleep(2 * time.Second)
					p.calls()
					for _, encoding := range []string{"gzip", "br"} {
						for _, s := range []*site{p.first, p.second} {
							s.wantBody(t, "page of ", "http://a/p", "Accept-Encoding", encoding) // without the field
						}
					}
					if !strings.Contains(tt.control, "stale") {
						if n := p.calls(); n > 0 {
							t.Errorf("after %d requests with the field: %d handler calls for requests without it", i+1, n)
						}
					}
				}
			})
		})
	}
}

// fromWire parses a request as a server does. Lines of head end in \n.
func fromWire(t *testing.T, head string) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A target with user information or an opaque target makes no page for its key's URL.
func TestKey_OddTargetMakesNoPage(t *testing.T) {
	path := func(r *http.Request) string { return r.URL.EscapedPath() }
	requestURI := func(r *http.Request) string { return r.URL.RequestURI() }
	for name, tt := range map[string]struct {
		target string
		key    func(r *http.Request) string
		next   string // the target of the next client
	}{
		"user information": {"http://evil.example@a/", path, "/"},
		"opaque":           {"x:javascript:alert(1)", path, "/"},
		"opaque, a port":   {"x::80/cart", requestURI, "/cart"}, // its key is http://a:80/cart
		"another scheme":   {"ftp://a/", path, "/"},
	} {
		inBubble(t, name, func(t *testing.T) {
			o := bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
				return bellwether.Key{URL: "http://a" + tt.key(r)}, true
			}}
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				fmt.Fprintf(w, "page of %s, URL %s, target %s", r.URL.Path, r.URL, r.RequestURI)
			})
			s.do(fromWire(t, "GET "+tt.target+" HTTP/1.1\nHost: a"))
			want := fmt.Sprintf("page of %s, URL %[1]s, target %[1]s", tt.next)
			if got := s.do(fromWire(t, "GET "+tt.next+" HTTP/1.1\nHost: a")).Body.String(); got != want {
				t.Errorf("the next client got %q, want %q", got, want)
			}
		})
	}
}

// A page does not validate a variant of its URL: a 304 to its Last-Modified does not apply to the variant.
func TestKey_VariantIsNotValidatedByTheURLsPage(t *testing.T) {
	variant := func(r *http.Request) (bellwether.Key, bool) {
		return bellwether.Key{URL: "http://a" + r.URL.EscapedPath(), Variant: r.Header.Get("X-Tenant")}, true
	}
	for _, control := range []string{"max-age=600", "max-age=1", "no-cache"} {
		for _, field := range []string{"X-Tenant", "X-Forwarded-Proto"} {
			t.Run(control+" "+field, func(t *testing.T) {
				h := func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", control)
					w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT") // of a deployment
					if r.Header.Get("If-Modified-Since") != "" {
						w.WriteHeader(http.StatusNotModified)
						return
					}
					io.WriteString(w, "page of "+r.Header.Get(field))
				}
				inPairs(t, bellwether.HTTPOptions{Key: variant}, h, func(t *testing.T, p pair) {
					for _, s := range []*site{p.first, p.first, p.second, p.first} {
						time.Sleep(2 * time.Second)
						s.wantBody(t, "page of ", "http://a/p")
						time.Sleep(2 * time.Second) // the page is stored
						s.wantBody(t, "page of one", "http://a/p", field, "one")
					}
				})
			})
		}
	}
}

func TestKey_RetargetingFloodLeavesThePage(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond)
		w.Header().Set("Cache-Control", "max-age=600")
		io.WriteString(w, "page")
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		for i := range 1100 {
			p.first.get("http://a/p", "X-Forwarded-Host", fmt.Sprint("evil", i))
		}
		p.calls()
		wantBurst(t, p.first.burst(100, same("http://a/p")), 100, "200 page 100ms")
		wantBurst(t, p.first.burst(100, same("http://a/p")), 100, "200 page 0s")
		if n := p.calls(); n != 1 {
			t.Errorf("%d calls for 200 requests without a retargeting field, want 1", n)
		}
	})
}

// A herd with one value of a retargeting field has its own load, also beside a request without it.
func TestKey_RetargetedHerdBehindOneWithoutTheField(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=600")
			io.WriteString(w, "page")
		}
		s := newSite(t, bellwether.HTTPOptions{Limits: bellwether.Limits{MaxRebuilds: 1}}, h)
		var wg sync.WaitGroup
		wg.Go(func() { s.get("http://a/other") })
		time.Sleep(10 * time.Millisecond)
		wg.Go(func() { s.get("http://a/p") })
		time.Sleep(10 * time.Millisecond)
		s.burst(100, func(int) *http.Request { return request("GET", "http://a/p", "X-Forwarded-Proto", "https") })
		wg.Wait()
		if n := s.calls.Load(); n > 4 {
			t.Errorf("%d calls for 100 requests with one X-Forwarded-Proto and two without, want 4 at most", n)
		}
	})
}

func TestKey_NobodyIsServedAnothersRequest(t *testing.T) {
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
	host := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintf(w, "host %q", r.Host)
	}
	get := func(fields ...string) *http.Request { return request("GET", "http://a/", fields...) }
	absolute, made := get(), get()
	absolute.Host, absolute.RequestURI = "", "http://a/" // as net/http reads such a target without ":authority" over HTTP/2
	made.Host, made.RequestURI = "", ""                  // a program's own request
	for name, c := range map[string]struct {
		handler        http.HandlerFunc
		attack, victim *http.Request
		want           string
	}{
		"Connection names a field":      {lang("X-Lang"), get("X-Lang", "de", "Connection", "X-Lang"), get("X-Lang", "de"), "in English, auf Deutsch"},
		"among others, in another case": {lang("X-Lang"), get("X-Lang", "de", "Connection", "close, x-lang"), get("X-Lang", "de"), "in English, auf Deutsch"},
		"no path":                       {path, request("GET", "http://a"), get(), `path "/"`},
		"no host, an absolute target":   {host, absolute, get(), `host "a"`},
		"no host, of a program":         {host, made, get(), `host "a"`},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, c.handler)
			s.do(c.attack)
			synctest.Wait()
			if w := s.do(c.victim); w.Body.String() != c.want {
				t.Errorf("%q, want %q", w.Body, c.want)
			}
		})
	}
}

// quote is a cacheable handler that answers with every field that frameworks trust.
func quote(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "max-age=60")
	fmt.Fprintf(w, "%s %s %s %s|", r.Method, r.Host, r.URL, r.RequestURI)
	for _, name := range poisons {
		fmt.Fprint(w, r.Header.Values(name))
	}
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "|%s", body)
}

// poisons are request fields by which frameworks choose another host, scheme, path or method.
var poisons = []string{
	"X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Scheme", "X-Forwarded-Port", "X-Forwarded-Prefix",
	"X-Forwarded-Server", "X-Forwarded-Ssl", "X-Forwarded-Uri", "X-Forwarded-Path", "X-Forwarded-Method",
	"X-Host", "X-Original-Host", "X-Http-Host-Override",
	"X-Original-Url", "X-Rewrite-Url", "X-Original-Uri", "X-Scheme", "X-Url-Scheme", "Front-End-Https",
	"X-Envoy-Original-Path", "X-Replaced-Path", "X-Arr-Ssl", "Cf-Visitor", "Cloudfront-Forwarded-Proto",
	"X-Envoy-Original-Host", "X-Original-Path", "X-Ingress-Path", "X-Forwarded-Pathbase", "X-Base-Url", "X-External-Url",
	"X-Proxycontextpath", "X-Matched-Path", "$wssn", "X-My-Host",
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "Forwarded",
}

func TestKey_FieldsThatChangeTheTarget(t *testing.T) {
	for _, name := range poisons {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{RetargetingFields: []string{"x-my-host"}}, quote)
			evil := "evil"
			if name == "Forwarded" {
				evil = "for=192.0.2.1;host=evil"
			}
			check := func(when string, w *httptest.ResponseRecorder) {
				t.Helper()
				if w.Code != 200 || strings.Contains(w.Body.String(), "evil") {
					t.Errorf("%s a client got %d %q", when, w.Code, w.Body)
				}
			}
			if w := s.get("http://a/p", name, evil); !strings.Contains(w.Body.String(), "evil") {
				t.Fatalf("the handler did not see %s: %q", name, w.Body)
			}
			check("after the attacker", s.get("http://a/p"))
			check("from the cache", s.get("http://a/p"))
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					if i%2 == 0 {
						s.get("http://a/together", name, evil)
					} else {
						check("beside the attacker", s.get("http://a/together"))
					}
				})
			}
			wg.Wait()
		})
	}
}

// A herd collapses behind a proxy that sends such fields with each request.
func TestKey_ForwardedFieldsOfOneProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, page(time.Second, "page"))
		client := func(i int) *http.Request {
			ip := fmt.Sprint("192.0.2.", i)
			return request("GET", "http://a/p", "X-Forwarded-Host", "www.example.com", "X-Forwarded-Proto", "https",
				"X-Forwarded-For", ip, "X-Real-Ip", ip, "Forwarded", "for="+ip+`;Proto=https; host="www.example.com"`)
		}
		wantBurst(t, s.burst(50, client), 50, "200 page 1s")
		wantBurst(t, s.burst(50, client), 50, "200 page 0s")
		s.wantCalls(t, 1)
		invalidate(t, s.mw, "http://a/p")
		wantBurst(t, s.burst(50, client), 50, "200 page 1s")
		s.wantCalls(t, 1)
	})
}

// Key sees the fields as the handler of a shared page does. Otherwise one client's page could get the key of others.
func TestKey_SeesTheHandlersFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown := func(r *http.Request) string {
			language, _, _ := strings.Cut(r.Header.Get("Accept-Language"), ",")
			return r.Header.Get("X-Tenant") + " " + language
		}
		key := func(r *http.Request) (bellwether.Key, bool) { return bellwether.Key{Variant: shown(r)}, true }
		s := newSite(t, bellwether.HTTPOptions{Key: key, AnyLanguageOrder: true}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, shown(r))
		})
		two := request("GET", "http://a/p", "X-Tenant", "shop", "Accept-Language", "en")
		two.Header.Add("X-Tenant", "evil")
		if w := s.do(two); w.Body.String() != "shop, evil en" {
			t.Errorf("two lines of a field: the page %q", w.Body)
		}
		if len(two.Header["X-Tenant"]) != 2 {
			t.Error("the client's own header has changed")
		}
		synctest.Wait()
		s.wantBody(t, "shop en", "http://a/p", "X-Tenant", "shop", "Accept-Language", "en")
		synctest.Wait()
		s.wantBody(t, "shop de", "http://a/p", "X-Tenant", "shop", "Accept-Language", "en, de")
		synctest.Wait()
		s.wantCalls(t, 3)
		s.wantBody(t, "shop de", "http://a/p", "X-Tenant", "shop", "Accept-Language", "de")
		s.wantCalls(t, 0)
	})
}

// Each byte of a Variant counts, also a space at an end, which has no meaning in a field.
func TestKey_VariantBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		variants := []string{"", " ", "a", "a ", "\ta", "A", "a,b", "a, b", "\x00", "\xff", "\"", "(key)", strings.Repeat("a", 1<<20)}
		variant := func(r *http.Request) (i int) {
			i, _ = strconv.Atoi(r.Header.Get("X-Variant"))
			return i
		}
		s := newSite(t, bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
			return bellwether.Key{Variant: variants[variant(r)]}, true
		}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, variant(r))
		})
		for range 2 {
			for i := range variants {
				s.wantBody(t, strconv.Itoa(i), "http://a/p", "X-Variant", strconv.Itoa(i))
				synctest.Wait()
			}
		}
		s.wantCalls(t, int32(len(variants)))
	})
}

// A panic for one variant is not the answer to a request of another variant that waits for the same run.
func TestKey_PanicOfAnotherVariant(t *testing.T) {
	for _, field := range []string{"X-Variant", "X-Forwarded-Host"} {
		inBubble(t, field, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
				return bellwether.Key{Variant: r.Header.Get("X-Variant")}, true
			}}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				if r.Header.Get(field) == "evil" {
					panic("planned")
				}
				w.Header().Set("Cache-Control", "max-age=60")
				fmt.Fprint(w, r.Header.Get(field))
			})
			var evil sync.WaitGroup
			evil.Go(func() { s.get("http://a/p", field, "evil") })
			time.Sleep(time.Millisecond)
			var others sync.WaitGroup
			for _, value := range []string{"", "honest"} {
				others.Go(func() {
					if value == "" {
						s.wantBody(t, "", "http://a/p")
					} else {
						s.wantBody(t, value, "http://a/p", field, value)
					}
				})
			}
			others.Wait()
			evil.Wait()
			synctest.Wait()
		})
	}
}

// A page that a client with credentials gets straight from the handler is kept only if Key saw the fields as sent.
func TestKey_CredentialsWithAnotherSpelling(t *testing.T) {
	language := func(r *http.Request) string {
		first, _, _ := strings.Cut(r.Header.Get("Accept-Language"), ",")
		return first
	}
	key := func(r *http.Request) (bellwether.Key, bool) {
		return bellwether.Key{URL: "http://a/" + language(r) + r.URL.Path}, true
	}
	for sent, kept := range map[string]bool{"en, de": false, "de, en": true, "de,en": false} {
		inBubble(t, sent, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{Key: key, AnyLanguageOrder: true}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=60")
				fmt.Fprint(w, language(r))
			})
			s.get("http://a/p", "Accept-Language", sent, "Authorization", "Bearer 1")
			synctest.Wait()
			s.calls.Store(0)
			s.wantBody(t, "de", "http://a/p", "Accept-Language", "de")
			if again := s.calls.Load() == 1; again == kept {
				t.Errorf("the page is kept: %v, want %v", !again, kept)
			}
		})
	}
}

// A form that Key has parsed is the handler's too, whatever fields Connection names: a body can be read once.
func TestKey_ParsesTheFormOfABody(t *testing.T) {
	for method, form := range map[string]struct{ mime, body string }{
		"POST": {"application/x-www-form-urlencoded", "id=42"},
		"GET":  {"multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\n42\r\n--b--\r\n"},
	} {
		s := newSite(t, bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
			return bellwether.Key{URL: "http://a/users/" + r.FormValue("id")}, true
		}}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.FormValue("id")) })
		r := httptest.NewRequest(method, "http://a/users", strings.NewReader(form.body))
		r.Header.Set("Content-Type", form.mime)
		r.Header.Set("X-Hop", "1")
		r.Header.Set("Connection", "X-Hop")
		if w := s.do(r); w.Body.String() != "42" {
			t.Errorf("%s: the handler has got the form value %q, want 42", method, w.Body)
		}
	}
}

// The handler sees the scheme that an outer middleware has read from a proxy's fields, and each scheme has its page. A
// client's absolute-form target gives no scheme.
func TestKey_SchemeOfAnOuterMiddleware(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, r.URL)
	})
	for _, test := range []struct{ target, scheme, host, want string }{
		{"/p", "https", "", "https:///p"}, // as by gorilla's ProxyHeaders
		{"/p", "", "", "/p"},
		{"/p", "https", "A", "https:///p"},
		{"https://a/p", "https", "a", "/p"}, // as net/http reads a client's
		{"/q", "", "", "/q"},
		{"/q", "https", "A.", "https://a/q"},
		{"/r", "https", "b", "https:///r"},
	} {
		r := request("GET", "http://a/"+test.target[len(test.target)-1:])
		r.RequestURI, r.URL.Scheme, r.URL.Host = test.target, test.scheme, test.host
		if w := s.do(r); w.Body.String() != test.want {
			t.Errorf("%+v: %d %q (%s)", test, w.Code, w.Body, w.Header().Get("Cache-Status"))
		}
	}
	if n := s.calls.Load(); n != 5 {
		t.Errorf("%d runs of the handler, want one for each page and scheme", n)
	}
}
