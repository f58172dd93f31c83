package bellwether_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// Here somebody tries to have a response built that others then get: the
// handler quotes everything that a client can say, and no client may read what
// another has said.

// quote is a handler that trusts every field that frameworks trust, and has its
// answers cached.
func quote(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "max-age=60")
	fmt.Fprintf(w, "%s %s %s %s|", r.Method, r.Host, r.URL, r.RequestURI)
	for _, name := range poisons {
		fmt.Fprint(w, r.Header.Values(name))
	}
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "|%s", body)
}

// poisons are request fields by which frameworks choose another host, scheme,
// path or method than those of the request.
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

func TestSafety_FieldsThatChangeTheTarget(t *testing.T) {
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

// Behind a proxy that sends such fields with each request the herd is one herd
// still, whoever its clients are.
func TestSafety_ForwardedFieldsOfOneProxy(t *testing.T) {
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
		if err := s.mw.Invalidate(t.Context(), "http://a/p"); err != nil {
			t.Fatal(err)
		}
		wantBurst(t, s.burst(50, client), 50, "200 page 1s")
		s.wantCalls(t, 1)
	})
}

// An attacker who sends one such field after the other does not take the key
// out of the cache for those who send none.
func TestSafety_FieldsOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, page(0, "page"))
		for _, name := range poisons {
			s.get("http://a/p", name, "evil")
			time.Sleep(2 * time.Minute) // whatever is there has expired
		}
		s.get("http://a/p")
		s.calls.Store(0)
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 page 0s")
		s.wantCalls(t, 0)
	})
}

// A method override would have a GET stored that was none, and the next one not
// done.
func TestSafety_MethodOverrideIsNoGET(t *testing.T) {
	for _, name := range []string{"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"} {
		s := newSite(t, bellwether.HTTPOptions{}, quote)
		for range 3 {
			s.get("http://a/p", name, "DELETE")
		}
		s.wantCalls(t, 3)
	}
}

// A gateway to CGI tells "_" from "-" no more: by either one may not have a page made
// that others then get.
func TestSafety_AliasesBeforeAGateway(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		for _, name := range []string{"X_Forwarded_Host", "X-Forwarded_Host", "X_HTTP_Method_Override", "If_None_Match", "Host"} {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Location", "/p")
				for name, values := range r.Header {
					fmt.Fprint(w, strings.ToUpper(strings.ReplaceAll(name, "-", "_")), values)
				}
			})
			s.do(request(method, "http://a/p", name, "evil", "Api_Key", "k"))
			if w := s.get("http://a/p"); w.Code != 200 || strings.Contains(w.Body.String(), "evil") {
				t.Errorf("%s with %s: the next client got %d %q", method, name, w.Code, w.Body)
			}
			if w := s.get("http://a/q", "Api_Key", "k"); w.Body.String() != "API_KEY[k]" {
				t.Errorf("the handler saw of another field %q", w.Body)
			}
		}
	}
}

// raw sends bytes over a connection of their own and returns the answer.
func raw(t *testing.T, addr, message string) (status int, body string, header http.Header) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(conn, message)
	method, _, _ := strings.Cut(message, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", message, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%q: %v", message, err)
	}
	return res.StatusCode, string(b), res.Header
}

// Different spellings of one target have one response, and nothing of the
// spelling of whoever came first is in it.
func TestSafety_SpellingsOfOneTarget(t *testing.T) {
	spellings := []string{
		"GET /p?q HTTP/1.1\r\nHost: EVIL.example\r\n\r\n",
		"GET /p?q HTTP/1.1\r\nHost: evil.example.\r\n\r\n",
		"GET /p?q HTTP/1.1\r\nHost: evil.example:80\r\n\r\n",
		"GET /p?q HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
		"GET /p?q HTTP/1.1\r\nHost: evil.example:0080\r\n\r\n",
		"GET http://evil.example/p?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET http://Evil.Example.:80/p?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET https://evil.example/p?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET HTTP://evil.example/p?q HTTP/1.1\r\nHost: other\r\n\r\n", // RFC 9112 section 3.2.2: Host does not count
		"HEAD /p?q HTTP/1.1\r\nHost: evil.example:80\r\n\r\n",
		"GET /%70?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET http://evil.example/%70?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET /p?q HTTP/1.0\r\nHost: evil.example\r\n\r\n",
	}
	want := ""
	for first := range spellings {
		s := newSite(t, bellwether.HTTPOptions{}, quote)
		addr := serve(t, s.handler).Listener.Addr().String()
		for i := range spellings {
			spelling := spellings[(first+i)%len(spellings)]
			status, body, _ := raw(t, addr, spelling)
			if strings.HasPrefix(spelling, "HEAD") {
				continue
			}
			if want == "" {
				want = body
			}
			if status != 200 || body != want {
				t.Fatalf("first %q: %q got %d %q, want %q", spellings[first], spelling, status, body, want)
			}
		}
		s.wantCalls(t, 1)
	}
	if !strings.HasPrefix(want, "GET evil.example /p?q /p?q|") {
		t.Errorf("the handler saw %q", want)
	}
}

// Different targets have different responses, however alike they look.
func TestSafety_DifferentTargets(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, quote)
	addr := serve(t, s.handler).Listener.Addr().String()
	bodies := map[string]string{}
	targets := []string{
		"/p", "/P", "/p/", "//p", "/./p", "/x/../p", "/p%2F", "/p/q", "/p%2Fq", "/p;q", "/p%3Bq", "/p%3Fq", "/p%00", "/p%23",
		"/p?", "/p?a=1&b=2", "/p?b=2&a=1", "/p?a=1&b=2&a=1", "/p?a=1;b=2", "/p?a=%31", "/p?a=+1", "/p?a=%201", "/p??", "/p?utm_source=x",
	}
	for range 2 {
		for _, target := range targets {
			_, body, _ := raw(t, addr, "GET "+target+" HTTP/1.1\r\nHost: a\r\n\r\n")
			if !strings.Contains(body, " "+target+"|") {
				t.Errorf("%s got %q", target, body)
			}
			bodies[body] = target
		}
	}
	if len(bodies) != len(targets) {
		t.Errorf("%d bodies for %d targets", len(bodies), len(targets))
	}
	s.wantCalls(t, int32(len(targets)))
	for _, host := range []string{"a:8080", "b", "a.b", "[::1]"} {
		if _, body, _ := raw(t, addr, "GET /p HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); !strings.HasPrefix(body, "GET "+host+" ") {
			t.Errorf("%s got %q", host, body)
		}
	}
	s.wantCalls(t, 4)
}

// What no cache can give a key to is refused by net/http, or goes to the
// handler each time.
func TestSafety_OddRequestsAreNotKept(t *testing.T) {
	for name, tt := range map[string]struct {
		request string
		status  int
	}{
		"two hosts":               {"GET /p HTTP/1.1\r\nHost: a\r\nHost: evil\r\n\r\n", 400},
		"no host":                 {"GET /p HTTP/1.1\r\n\r\n", 400},
		"no host, 1.0":            {"GET /p HTTP/1.0\r\n\r\n", 200},
		"user information":        {"GET http://me@a/p HTTP/1.1\r\nHost: a\r\n\r\n", 200},
		"another scheme":          {"GET ftp://a/p HTTP/1.1\r\nHost: a\r\n\r\n", 200},
		"host with a slash":       {"GET /p HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
		"host with a parameter":   {"GET /p HTTP/1.1\r\nHost: a;b\r\n\r\n", 200},
		"fat GET":                 {"GET /p HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nq=evil", 200},
		"fat GET, chunked":        {"GET /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nq=evil\r\n0\r\n\r\n", 200},
		"fat HEAD":                {"HEAD /p HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nq=evil", 200},
		"longer than a key":       {"GET /" + strings.Repeat("p", 8<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", 200},
		"query longer than a key": {"GET /p?" + strings.Repeat("p", 8<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", 200},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, quote)
			server := serve(t, s.handler)
			for range 3 {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				io.WriteString(conn, tt.request)
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || res.StatusCode != tt.status {
					t.Errorf("got %v, %v, want status %d", res, err, tt.status)
				}
				if err == nil && strings.HasPrefix(name, "fat GET") {
					if body, _ := io.ReadAll(res.Body); !strings.HasSuffix(string(body), "|q=evil") {
						t.Errorf("the handler did not get the body: %q", body)
					}
				}
				conn.Close()
			}
			if tt.status == 200 {
				s.wantCalls(t, 3)
			} else {
				s.wantCalls(t, 0)
			}
			if _, body, _ := raw(t, server.Listener.Addr().String(), "GET /p HTTP/1.1\r\nHost: a\r\n\r\n"); !strings.HasPrefix(body, "GET a /p /p|") || strings.Contains(body, "evil") {
				t.Errorf("the plain request then got %q", body)
			}
		})
	}
}

func TestSafety_LongVaryIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 1000 {
			names = append(names, fmt.Sprint("X-Field-", i))
		}
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", strings.Join(names, ", "))
			io.WriteString(w, "page")
		})
		s.burst(10, same("http://a/p"))
		wantBurst(t, s.burst(10, same("http://a/p")), 10, "200 page 1s")
		s.wantCalls(t, 20)
	})
}

// A header is memory like a body: beyond a bound the response is its first
// client's alone.
func TestSafety_LargeHeaderIsNotKept(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		n := 60 << 10
		if r.URL.Path == "/large" {
			n = 70 << 10
		}
		for i := range n / 100 {
			w.Header().Add(fmt.Sprintf("X-%04d", i), strings.Repeat("v", 94))
		}
		io.WriteString(w, "page")
	})
	for path, calls := range map[string]int32{"/small": 1, "/large": 3} {
		for range 3 {
			if w := s.get("http://a" + path); w.Code != 200 || w.Body.String() != "page" || len(w.Header()) < 600 {
				t.Errorf("%s: %d, %d fields", path, w.Code, len(w.Header()))
			}
		}
		s.wantCalls(t, calls)
	}
}

// Vary on a field that anybody may fill as they like: the variants of one key
// are bounded, the store is not filled with them, those that are there stay,
// and nobody gets another's.
func TestSafety_ThousandsOfVariants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.busy = true
		s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{Store: store, NearTTL: time.Hour}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
			w.Header().Set("Vary", "User-Agent")
			io.WriteString(w, r.Header.Get("User-Agent"))
		})
		ask := func(agent string) string {
			w := s.get("http://a/p", "User-Agent", agent)
			if w.Body.String() != agent {
				t.Errorf("%s got %q", agent, w.Body)
			}
			return w.Header().Get("Cache-Status")
		}
		ask("honest")
		const most = 1024 // maxVariants
		for i := range 5000 {
			ask(fmt.Sprint("attacker", i))
		}
		if n := store.count("commit"); n > most+10 {
			t.Errorf("%d writes to the store, want at most one for each of %d variants", n, most)
		}
		s.wantCalls(t, 5001)
		if status := ask("honest"); !strings.Contains(status, "hit") {
			t.Errorf("the honest client's variant is gone: %s", status)
		}
		if status := ask("attacker4999"); !strings.Contains(status, "too many variants") {
			t.Errorf("a variant over the limit: %s", status)
		}
		// What has expired makes room.
		time.Sleep(2 * time.Hour)
		ask("late")
		s.calls.Store(0)
		synctest.Wait()
		if status := ask("late"); !strings.Contains(status, "hit") {
			t.Errorf("after the others have expired: %s", status)
		}
		s.wantCalls(t, 0)
	})
}
