package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// Each test here makes a fleet answer one client with something that is for that
// client alone. The answer neither reaches other clients nor sends them to the
// origin, in the process that has seen it and in the others.

// A scriptedOrigin has a handler for each path, and counts the requests.
type scriptedOrigin struct {
	*httptest.Server

	mu       sync.Mutex // guards the others
	handlers map[string]http.HandlerFunc
	asked    map[string][]identity // the clients that have asked for a path, in their order
}

func newScriptedOrigin(t *testing.T) *scriptedOrigin {
	o := &scriptedOrigin{handlers: map[string]http.HandlerFunc{}, asked: map[string][]identity{}}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		answer := o.handlers[r.URL.Path]
		o.asked[r.URL.Path] = append(o.asked[r.URL.Path], identityOf(r))
		o.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *scriptedOrigin) on(path string, answer http.HandlerFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.handlers[path] = answer
}

// calls returns how many requests for a path the origin has had from some clients.
func (o *scriptedOrigin) calls(path string, from func(identity) bool) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, client := range o.asked[path] {
		if from(client) {
			n++
		}
	}
	return n
}

func anyone(identity) bool           { return true }
func anonymous(client identity) bool { return client.account() == 0 }

// The clients. The account of broken is one that fails.
var (
	broken   = identity{Client: "5", Cookie: "sid=5"}
	well     = identity{Client: "7", Cookie: "sid=7"}
	bearer   = identity{Client: "8", Authorization: "Bearer 8"}
	nameless = identity{Client: "0"}
)

// say answers with a body that names the client.
func say(w http.ResponseWriter, r *http.Request, status int) {
	w.WriteHeader(status)
	fmt.Fprint(w, said(identityOf(r)))
}

// said is the body that say makes for a client.
func said(client identity) string { return "made for " + client.String() }

// saying returns a handler that says the status.
func saying(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { say(w, r, status) }
}

// with returns the handler with a field in its answers.
func with(name, value string, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(name, value)
		answer(w, r)
	}
}

// A gate holds requests in the origin until it is opened.
type gate struct {
	reached, opened chan struct{}
	reach           func()
}

func newGate() *gate {
	g := &gate{reached: make(chan struct{}), opened: make(chan struct{})}
	g.reach = sync.OnceFunc(func() { close(g.reached) })
	return g
}

// hold returns the handler behind the gate. A request whose server has gone is held
// no longer.
func (g *gate) hold(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g.reach()
		select {
		case <-g.opened:
			answer(w, r)
		case <-r.Context().Done():
		}
	}
}

// ask makes a request as a client.
func (p *process) ask(client identity, path string, fields ...string) answer {
	fields = append(fields, "X-Client", client.Client)
	if client.Cookie != "" {
		fields = append(fields, "Cookie", client.Cookie)
	}
	if client.Authorization != "" {
		fields = append(fields, "Authorization", client.Authorization)
	}
	return do(http.MethodGet, "http://"+p.addr+path, fields...)
}

// crowd makes n requests to each process at one time, and returns a channel of the
// answers, which is closed after the last.
func crowd(n int, client identity, path string, fleet ...*process) <-chan answer {
	answers := make(chan answer, n*len(fleet))
	var wg sync.WaitGroup
	for _, p := range fleet {
		for range n {
			wg.Go(func() { answers <- p.ask(client, path) })
		}
	}
	go func() {
		wg.Wait()
		close(answers)
	}()
	return answers
}

// joined is how many calls of the processes have begun a flight or come to one.
func joined(t *testing.T, fleet ...*process) (n int) {
	t.Helper()
	for _, p := range fleet {
		s := p.stats(t)
		n += int(s.Misses + s.Collapsed)
	}
	return n
}

// expect fails the test unless a client got a status and a body.
func expect(t *testing.T, when string, client identity, got answer, status int, body string) {
	t.Helper()
	if got.err != nil || got.status != status || got.body != body {
		t.Errorf("%s, %s got %v, Cache-Status %q; want %d %q", when, client, got, got.header.Get("Cache-Status"), status, body)
	}
}

// overRedis starts processes over one Redis, which has time to answer however busy
// the machine is.
func overRedis(t *testing.T, n int, o *scriptedOrigin, flags ...string) (fleet []*process) {
	t.Helper()
	flags = append([]string{"-upstream", o.URL, "-store", "redis", "-redis", testserver.Redis(t).Addr, "-engine-timeout", "10s"}, flags...)
	for range n {
		fleet = append(fleet, startProgram(t, "both protocols", flags...))
	}
	return fleet
}

// TestServer_FailureIsItsClientsAlone is a page without freshness that fails for one
// client's account, in one process. Clients with other credentials ask both
// processes while the failure is made, and after it. All of them get the page.
func TestServer_FailureIsItsClientsAlone(t *testing.T) {
	for _, errorTTL := range []string{"1s", "0s"} {
		t.Run(errorTTL, func(t *testing.T) {
			t.Parallel()
			o := newScriptedOrigin(t)
			fleet := overRedis(t, 2, o, "-error-ttl", errorTTL)
			for _, failure := range []struct {
				name string
				fail http.HandlerFunc
			}{
				{"500", saying(http.StatusInternalServerError)},
				{"503", saying(http.StatusServiceUnavailable)},
				{"private-500", with("Cache-Control", "private", saying(http.StatusInternalServerError))},
				{"dropped", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
				{"too-short", with("Content-Length", "100", func(w http.ResponseWriter, _ *http.Request) {
					io.WriteString(w, "the first twenty-five byt")
					panic(http.ErrAbortHandler)
				})},
				{"panics", saying(http.StatusOK)}, // and then panicByCookie panics
			} {
				t.Run(failure.name, func(t *testing.T) {
					path := fmt.Sprint(unique, "/alone/", errorTTL, "/", failure.name, "/page")
					gate := newGate()
					fail := gate.hold(failure.fail)
					o.on(path, func(w http.ResponseWriter, r *http.Request) {
						if identityOf(r) == broken {
							fail(w, r)
							return
						}
						say(w, r, http.StatusOK)
					})

					// The others have joined a flight, or have their answers, before
					// the failure is told.
					const each = 5
					others := []identity{well, bearer, nameless}
					before := joined(t, fleet...)
					failed := crowd(1, broken, path, fleet[0])
					<-gate.reached
					var waiting []<-chan answer
					for _, client := range others {
						waiting = append(waiting, crowd(each, client, path, fleet...))
					}
					eventually(t, 20*time.Second, "the others wait or are answered", func() bool {
						n := joined(t, fleet...) - before - 1
						for _, answers := range waiting {
							n += len(answers)
						}
						return n >= len(others)*each*len(fleet)
					})
					close(gate.opened)
					for i, answers := range waiting {
						for got := range answers {
							expect(t, "at the same time", others[i], got, http.StatusOK, said(others[i]))
						}
					}
					<-failed

					for range 5 {
						if got := fleet[0].ask(broken, path); got.status == http.StatusOK && got.err == nil {
							t.Errorf("the client whose account is broken got %v", got)
						}
						for _, p := range []*process{fleet[1], fleet[0]} {
							for _, client := range others {
								expect(t, "right after", client, p.ask(client, path), http.StatusOK, said(client))
							}
						}
					}
				})
			}
		})
	}
}

// unshareable are answers for one client alone, of its session or of its address.
var unshareable = map[string]http.HandlerFunc{
	"private":    with("Cache-Control", "private", saying(http.StatusOK)),
	"Set-Cookie": with("Set-Cookie", "seen=yes", saying(http.StatusOK)),
	"400":        saying(http.StatusBadRequest),
	"403":        saying(http.StatusForbidden),
	"429":        saying(http.StatusTooManyRequests),
}

// publicPage is the body that publicUnless has for anonymous clients.
const publicPage = "the public page"

// publicUnless returns a handler with a page that is fresh for ten minutes for
// anonymous clients, and with another answer for the rest.
func publicUnless(known http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !anonymous(identityOf(r)) {
			known(w, r)
			return
		}
		w.Header().Set("Cache-Control", "max-age=600")
		io.WriteString(w, publicPage)
	}
}

// TestServer_PublicPageOutlivesOneClientsAnswer is a page with ten minutes of
// freshness, and a client that reloads it and gets an unshareable answer. In both
// processes, the other clients' requests cause no origin calls.
func TestServer_PublicPageOutlivesOneClientsAnswer(t *testing.T) {
	const nearTTL = 200 * time.Millisecond
	o := newScriptedOrigin(t)
	fleet := overRedis(t, 2, o, "-near-ttl", nearTTL.String())
	public := func(t *testing.T, answers <-chan answer) {
		t.Helper()
		for got := range answers {
			expect(t, "within the freshness", nameless, got, http.StatusOK, publicPage)
		}
	}
	known := func(t *testing.T, path string) {
		t.Helper()
		for _, p := range fleet {
			public(t, crowd(1, nameless, path, p))
		}
		if n := o.calls(path, anyone); n != 1 {
			t.Fatalf("%d origin calls until both processes had the page, want 1", n)
		}
	}
	for name, answer := range unshareable {
		t.Run(name, func(t *testing.T) {
			path := unique + "/outlives/" + name
			o.on(path, publicUnless(answer))
			known(t, path)
			if got := fleet[0].ask(well, path, "Cache-Control", "no-cache"); got.body != said(well) {
				t.Errorf("the client that reloads got %v", got)
			}
			// At once, and when the near tiers have to ask the store again.
			for range 2 {
				public(t, crowd(50, nameless, path, fleet...))
				time.Sleep(2 * nearTTL)
			}
			if n := o.calls(path, anonymous) - 1; n > 1 {
				t.Errorf("200 anonymous requests caused %d origin calls, want at most 1", n)
			}
		})
	}
	t.Run("again and again", func(t *testing.T) {
		const reloads = 8
		path := unique + "/outlives/reloads"
		o.on(path, publicUnless(unshareable["private"]))
		known(t, path)
		for i := range reloads {
			if got := fleet[i%2].ask(well, path, "Cache-Control", "no-cache"); got.body != said(well) {
				t.Errorf("the client that reloads got %v", got)
			}
			for range 4 {
				public(t, crowd(2, nameless, path, fleet...))
				time.Sleep(100 * time.Millisecond)
			}
		}
		if n := o.calls(path, anonymous) - 1; n > 0 {
			t.Errorf("anonymous requests beside %d reloads caused %d origin calls, want none", reloads, n)
		}
	})
}

// TestServer_ExpiryWithAnUnshareableAnswerFirst is a page that has expired. A client
// that gets an unshareable answer asks for it first, and a hundred anonymous ones
// wait in two processes. They do not all go to the origin.
func TestServer_ExpiryWithAnUnshareableAnswerFirst(t *testing.T) {
	const each = 50
	o := newScriptedOrigin(t)
	fleet := overRedis(t, 2, o)
	prefix := unique + "/expiry/"
	for name := range unshareable {
		o.on(prefix+name, with("Cache-Control", "max-age=1", saying(http.StatusOK)))
		for _, p := range fleet {
			expect(t, "before the expiry", nameless, p.ask(nameless, prefix+name), http.StatusOK, said(nameless))
		}
	}
	time.Sleep(1500 * time.Millisecond) // all pages expire
	for name, answer := range unshareable {
		t.Run(name, func(t *testing.T) {
			path := prefix + name
			gate := newGate()
			o.on(path, publicUnless(gate.hold(answer)))
			calls, before := o.calls(path, anyone), joined(t, fleet...)
			first := crowd(1, well, path, fleet[0])
			select {
			case <-gate.reached:
			case got := <-first:
				t.Fatalf("the first client got %v without the origin", got)
			}
			waiting := crowd(each, nameless, path, fleet...)
			eventually(t, 20*time.Second, "the anonymous clients wait or are answered", func() bool {
				return joined(t, fleet...)-before-1+len(waiting) >= each*len(fleet)
			})
			close(gate.opened)
			if got := <-first; got.body != said(well) {
				t.Errorf("the first client got %v", got)
			}
			for got := range waiting {
				expect(t, "after the expiry", nameless, got, http.StatusOK, publicPage)
			}
			if n := o.calls(path, anyone) - calls; n > 4 {
				t.Errorf("%d origin calls for %d requests, want at most 4", n, 1+each*len(fleet))
			}
		})
	}
}

// TestServer_ValidationIsItsClientsAlone is a page by credentials that has to be
// validated for each request. Its Last-Modified is the deployment's, so the origin
// answers each validation with 304, whichever client's. Each client gets its own
// page, in both processes.
func TestServer_ValidationIsItsClientsAlone(t *testing.T) {
	o := newScriptedOrigin(t)
	fleet := overRedis(t, 2, o)
	clients := []identity{well, broken, bearer, nameless}
	for _, first := range clients {
		t.Run("first "+first.Client, func(t *testing.T) {
			path := unique + "/validated/" + first.Client
			o.on(path, with("Cache-Control", "no-cache", with("Last-Modified", deployment, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("If-Modified-Since") == deployment {
					w.WriteHeader(http.StatusNotModified)
					return
				}
				say(w, r, http.StatusOK)
			})))
			expect(t, "first", first, fleet[0].ask(first, path), http.StatusOK, said(first))
			for range 3 {
				for _, p := range []*process{fleet[1], fleet[0]} {
					for _, client := range clients {
						expect(t, "after "+first.Client, client, p.ask(client, path), http.StatusOK, said(client))
					}
				}
			}
		})
	}
}

// TestServer_FailingOriginAndAColdHerd is 600 anonymous clients at three processes,
// in front of an origin that fails without a word about freshness. The herd shares a
// handful of failures.
func TestServer_FailingOriginAndAColdHerd(t *testing.T) {
	const each = 200
	o := newScriptedOrigin(t)
	fleet := overRedis(t, 3, o)
	path := unique + "/failing/herd"
	gate := newGate()
	o.on(path, gate.hold(saying(http.StatusInternalServerError)))
	before := joined(t, fleet...)
	waiting := crowd(each, nameless, path, fleet...)
	eventually(t, 20*time.Second, "the herd waits", func() bool { return joined(t, fleet...)-before >= each*len(fleet) })
	close(gate.opened)
	for got := range waiting {
		expect(t, "in the herd", nameless, got, http.StatusInternalServerError, said(nameless))
	}
	n := o.calls(path, anyone)
	t.Logf("%d origin calls", n)
	if n > 6 {
		t.Errorf("%d origin calls for a herd of %d, want at most 6", n, each*len(fleet))
	}
}
