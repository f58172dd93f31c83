package bellwether_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
)

// HTTPOptions.Freshness changes the lifetime of shareable responses, and makes none shareable.
func TestMiddleware_Freshness(t *testing.T) {
	hour := func(_ *http.Request, _ int, _ http.Header, said bellwether.Freshness) bellwether.Freshness {
		said.TTL = time.Hour
		return said
	}
	least := func(_ *http.Request, _ int, _ http.Header, said bellwether.Freshness) bellwether.Freshness {
		said.TTL = min(said.TTL, 10*time.Second)
		return said
	}
	fromNow := func(_ *http.Request, _ int, _ http.Header, said bellwether.Freshness) bellwether.Freshness {
		return bellwether.Freshness{TTL: said.Age + 10*time.Second}
	}
	none := func(*http.Request, int, http.Header, bellwether.Freshness) bellwether.Freshness {
		return bellwether.Freshness{TTL: -1, StaleIfError: -1}
	}
	windows := func(_ *http.Request, _ int, _ http.Header, said bellwether.Freshness) bellwether.Freshness {
		return bellwether.Freshness{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour}
	}
	own := func(r *http.Request, _ int, h http.Header, said bellwether.Freshness) bellwether.Freshness {
		if r.URL.RawQuery == "id=1" && h.Get("X-Time") == "long" {
			said.TTL = time.Hour
		}
		return said
	}
	type rule = func(*http.Request, int, http.Header, bellwether.Freshness) bellwether.Freshness
	for name, test := range map[string]struct {
		rule   rule
		status int
		fields []string
		after  time.Duration // of the second request
		hit    bool
	}{
		"nothing said":            {hour, 200, nil, 30 * time.Minute, true},
		"and over":                {hour, 200, nil, 61 * time.Minute, false},
		"max-age=0":               {hour, 200, []string{"Cache-Control", "max-age=0"}, 30 * time.Minute, true},
		"a redirect":              {hour, 302, nil, 30 * time.Minute, true},
		"not found":               {hour, 404, nil, 30 * time.Minute, true},
		"a bound":                 {least, 200, []string{"Cache-Control", "max-age=600"}, 11 * time.Second, false},
		"within it":               {least, 200, []string{"Cache-Control", "max-age=600"}, 9 * time.Second, true},
		"a bound, nothing said":   {least, 200, nil, time.Second, false},
		"an age":                  {least, 200, []string{"Cache-Control", "max-age=600", "Age", "9"}, 2 * time.Second, false},
		"from now":                {fromNow, 200, []string{"Cache-Control", "max-age=600", "Age", "900"}, 9 * time.Second, true},
		"from now, and over":      {fromNow, 200, []string{"Cache-Control", "max-age=600", "Age", "900"}, 11 * time.Second, false},
		"none":                    {none, 200, []string{"Cache-Control", "max-age=600"}, time.Second, false},
		"windows":                 {windows, 200, nil, time.Minute, true},
		"must-revalidate":         {windows, 200, []string{"Cache-Control", "max-age=600, must-revalidate"}, time.Minute, false},
		"request and header":      {own, 200, []string{"X-Time", "long"}, time.Minute, true},
		"private":                 {hour, 200, []string{"Cache-Control", "private, max-age=600"}, time.Second, false},
		"no-cache":                {hour, 200, []string{"Cache-Control", "no-cache"}, time.Second, false},
		"forbidden":               {hour, 403, nil, time.Second, false},
		"an error":                {hour, 503, nil, 2 * time.Second, false},
		"an error with a max-age": {hour, 503, []string{"Cache-Control", "max-age=60"}, 2 * time.Minute, false},
	} {
		inBubble(t, name, func(t *testing.T) {
			o := bellwether.HTTPOptions{Freshness: test.rule, StoreSetCookie: true, Key: bellwether.Keys(bellwether.OnlyQuery("id"))}
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				for i := 0; i < len(test.fields); i += 2 {
					w.Header().Set(test.fields[i], test.fields[i+1])
				}
				w.WriteHeader(test.status)
			})
			first := s.get("http://a/p?id=1&x=2")
			time.Sleep(test.after)
			s.calls.Store(0)
			second := s.get("http://a/p?id=1&x=3")
			if hit := s.calls.Load() == 0; hit != test.hit && name != "windows" {
				t.Errorf("hit %t, want %t: %v", hit, test.hit, second.Header())
			}
			if name == "windows" && second.Header().Get("Age") != "60" {
				t.Errorf("not served stale: %v", second.Header())
			}
			for i := 0; i < len(test.fields); i += 2 {
				if name := test.fields[i]; name != "Age" && first.Header().Get(name) != test.fields[i+1] {
					t.Errorf("the client gets %v", first.Header())
				}
			}
		})
	}
}

// After a panic of Freshness, a middleware that recovers the handler's panics answers, as after a panic of the handler.
func TestFreshness_PanicRecoveredInside(t *testing.T) {
	for name, write := range map[string]func(w http.ResponseWriter){
		"header": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
		"typed body": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "page")
		},
		"untyped body": func(w http.ResponseWriter) { io.WriteString(w, "a page") },
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{
				Freshness: func(_ *http.Request, status int, _ http.Header, said bellwether.Freshness) bellwether.Freshness {
					if status < 300 {
						panic("no rule")
					}
					return said
				},
			}, func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if p := recover(); p != "no rule" {
						t.Errorf("the handler's panic is %v", p)
					}
					http.Error(w, "failed", http.StatusInternalServerError)
				}()
				w.Header().Set("Cache-Control", "max-age=60")
				write(w)
			})
			if w := s.get("http://a/p"); w.Code != http.StatusInternalServerError || w.Body.String() != "failed\n" {
				t.Errorf("%d %q, want the handler's error", w.Code, w.Body)
			}
			s.wantCalls(t, 1)
		})
	}
}

// Freshness gets the request that the handler has had, with the pattern of a mux inside.
func TestFreshness_SeesTheHandlersRequest(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		pattern := ""
		mux := http.NewServeMux()
		mux.HandleFunc("/p", page(0, "page"))
		s := newSite(t, bellwether.HTTPOptions{
			Freshness: func(r *http.Request, _ int, _ http.Header, said bellwether.Freshness) bellwether.Freshness {
				pattern = r.Pattern
				return said
			},
		}, mux.ServeHTTP)
		r := request(method, "http://a/p")
		s.do(r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, new(http.Server))))
		if pattern != "/p" {
			t.Errorf("%s: Freshness sees the pattern %q", method, pattern)
		}
	}
}

// A POST whose handler has written nothing has its header only when the handler has returned. Freshness may fail then,
// but what the handler has done stays done.
func TestFreshness_FailsBehindAPost(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("no rule") }, "Goexit": runtime.Goexit} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{
				TTL: time.Minute,
				Freshness: func(r *http.Request, _ int, _ http.Header, said bellwether.Freshness) bellwether.Freshness {
					if r.Method == http.MethodPost {
						fail()
					}
					return said
				},
			}, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					io.WriteString(w, "page")
				}
			})
			s.get("http://a/p")
			var post sync.WaitGroup
			post.Go(func() { s.do(request(http.MethodPost, "http://a/p")) })
			if post.Wait(); s.hits("http://a/p") {
				t.Error("the page outlives a POST")
			}
		})
	}
}

// Freshness is asked about a hijacked response too. The handler does not get the connection if Freshness fails, and the
// server no longer has it.
func TestFreshness_FailsAtAHijack(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{
		TTL: time.Minute,
		Freshness: func(*http.Request, int, http.Header, bellwether.Freshness) bellwether.Freshness {
			panic("no rule")
		},
	}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Connection-Wanted") == "" {
			w.Header().Set("Cache-Control", "private")
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		t.Errorf("the handler got the connection %v, and the error %v", conn, err)
	})
	s.get("http://a/p") // from here on, requests go past the cache
	server := serve(t, s.handler)
	conn := dial(t, server.Listener.Addr().String())
	io.WriteString(conn, "GET /p HTTP/1.1\r\nHost: a\r\nConnection-Wanted: yes\r\n\r\n")
	if reply, err := io.ReadAll(conn); len(reply) > 0 || err != nil {
		t.Errorf("got %q, %v, want the end of the connection", reply, err)
	}
}

// A new visitor's session in a response without a time is for this visitor alone.
func TestFreshness_CookieWithoutTime(t *testing.T) {
	for name, header := range map[string]http.Header{
		"max-age=0":         {"Cache-Control": {"max-age=0"}},
		"public, max-age=0": {"Cache-Control": {"public, max-age=0"}},
		"expired":           {"Expires": {"0"}},
		"unreadable":        {"Cache-Control": {"max-age=soon"}},
	} {
		inBubble(t, name, func(t *testing.T) {
			var sessions atomic.Int32
			s := newSite(t, bellwether.HTTPOptions{StoreSetCookie: true}, func(w http.ResponseWriter, r *http.Request) {
				session := fmt.Sprint(sessions.Add(1))
				time.Sleep(time.Second)
				maps.Copy(w.Header(), header)
				w.Header().Set("Set-Cookie", "session="+session)
				io.WriteString(w, session)
			})
			if got := s.burst(5, same("http://a/p")); len(got) != 5 {
				t.Errorf("5 visitors got %v, want a session for each", got)
			}
			s.wantBody(t, "6", "http://a/p", "Cache-Control", "max-stale")
		})
	}
}
