package bellwether_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests the audience of private responses and of failures.

// A pair is a fleet of two processes, or one process twice.
type pair struct {
	first, second *site
}

func (p pair) calls() int32 {
	if p.first == p.second {
		return p.first.calls.Swap(0)
	}
	return p.first.calls.Swap(0) + p.second.calls.Swap(0)
}

func inPairs(t *testing.T, o bellwether.HTTPOptions, h http.HandlerFunc, test func(t *testing.T, p pair)) {
	inBubble(t, "alone", func(t *testing.T) {
		s := newSite(t, o, h)
		test(t, pair{s, s})
	})
	inBubble(t, "fleet", func(t *testing.T) {
		o := o
		o.Fleet.Store, o.Fleet.Locker = memstore.New(), locallock.New()
		p := pair{newSite(t, o, h), newSite(t, o, h)}
		time.Sleep(time.Second) // the log is read
		test(t, p)
	})
}

// own is a page that names the client's credentials, and fails for credentials with "bad".
func own(pause time.Duration, fail func(w http.ResponseWriter, name string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(pause)
		name := r.Header.Get("Cookie") + r.Header.Get("Authorization")
		if strings.Contains(name, "bad") {
			fail(w, name)
			return
		}
		fmt.Fprint(w, "page of ", name)
	}
}

var ownFailures = map[string]func(w http.ResponseWriter, name string){
	"500": func(w http.ResponseWriter, name string) {
		http.Error(w, "account of "+name, http.StatusInternalServerError)
	},
	"503": func(w http.ResponseWriter, name string) {
		http.Error(w, "account of "+name, http.StatusServiceUnavailable)
	},
	"panic": func(_ http.ResponseWriter, name string) { panic("account of " + name) },
	"exit":  func(http.ResponseWriter, string) { runtime.Goexit() },
	"cut": func(w http.ResponseWriter, name string) { // as of ReverseProxy when an upstream's body breaks off
		w.WriteHeader(http.StatusBadGateway)
		io.WriteString(w, "account of "+name)
		panic(http.ErrAbortHandler)
	},
	"short": func(w http.ResponseWriter, name string) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "account of "+name)
	},
}

// ownBreaks are failures after the header of a private page.
var ownBreaks = map[string]func(w http.ResponseWriter, name string){
	"cut after a private header": func(w http.ResponseWriter, name string) {
		writePrivate(w, name)
		panic(http.ErrAbortHandler)
	},
	"exit after a private header": func(w http.ResponseWriter, name string) {
		writePrivate(w, name)
		runtime.Goexit()
	},
}

func writePrivate(w http.ResponseWriter, name string) {
	w.Header().Set("Cache-Control", "private")
	io.WriteString(w, "account of "+name)
}

// A failure of one client's request reaches no other client of a page that is not known to be for all.
func TestAudience_FailureIsItsClients(t *testing.T) {
	failures := maps.Clone(ownFailures)
	maps.Copy(failures, ownBreaks)
	for name, fail := range failures {
		for _, errorTTL := range []time.Duration{0, -1} {
			t.Run(fmt.Sprint(name, errorTTL), func(t *testing.T) {
				o := bellwether.HTTPOptions{ErrorTTL: errorTTL}
				inPairs(t, o, own(time.Second, fail), func(t *testing.T, p pair) {
					var wg sync.WaitGroup
					ask := func(s *site, fields ...string) {
						wg.Go(func() {
							if w := s.get("http://a/p", fields...); w.Code != 200 || w.Body.String() != "page of "+strings.Join(fields[len(fields)/2:], "") {
								t.Errorf("%s of %v: %d %q", name, fields, w.Code, w.Body)
							}
						})
					}
					wg.Go(func() {
						if w := p.first.get("http://a/p", "Cookie", "bad=1"); w.Code == 200 && name != "short" {
							t.Errorf("the client whose request fails got %d %q", w.Code, w.Body)
						}
					})
					time.Sleep(time.Millisecond)
					for _, s := range []*site{p.first, p.second} {
						ask(s, "Cookie", "good=1")
						ask(s, "Authorization", "good")
						ask(s)
					}
					wg.Wait()
					for _, s := range []*site{p.first, p.second} { // later clients
						ask(s, "Cookie", "good=2")
						ask(s)
						wg.Wait()
					}
				})
			})
		}
	}
}

// A page for all that breaks off does so for the clients that read it meanwhile, and for no later client.
func TestAudience_PageForAllThatBreaksOff(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
		if r.Header.Get("Cookie") == "bad" {
			time.Sleep(time.Second)
			panic(http.ErrAbortHandler)
		}
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		for range 3 {
			if w := p.first.get("http://a/p", "Cookie", "bad"); w.Code != -1 {
				t.Errorf("the client whose page breaks off got %d %q", w.Code, w.Body)
			}
			for _, s := range []*site{p.second, p.first} {
				if w := s.get("http://a/p", "Cookie", "good"); w.Code != 200 || w.Body.String() != "page" {
					t.Errorf("the next client got %d %q", w.Code, w.Body)
				}
			}
			p.first.mw.Invalidate(t.Context(), "http://a/p")
		}
	})
}

// One failure per process answers an anonymous herd, and is not remembered (RFC 9111 section 4.2.2).
func TestAudience_FailureOfAnAnonymousHerd(t *testing.T) {
	for name, fail := range ownFailures {
		t.Run(name, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) { time.Sleep(time.Second); fail(w, "anybody") }
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				herd := func() {
					var wg sync.WaitGroup
					for _, s := range []*site{p.first, p.second} {
						wg.Go(func() { s.burst(100, same("http://a/p")) })
					}
					wg.Wait()
				}
				herd()
				most := int32(2)
				switch name {
				case "short":
					most = 300 // a 200 without freshness is for its own client
				case "cut":
					most = 4 // its readers ask once more
				}
				if n := p.calls(); n > most {
					t.Errorf("%d calls for a herd of 200", n)
				}
				synctest.Wait()
				for _, s := range []*site{p.first, p.second} {
					time.Sleep(time.Millisecond) // a client of the same instant would have joined the herd
					s.get("http://a/p")
				}
				if n := p.calls(); n != 2 {
					t.Errorf("%d calls for two requests that come later, want 2", n)
				}
			})
		})
	}
}

// Cookies share an error with TTL, with fields that allow it, or after a response for all, and never a panic.
func TestAudience_FailureOfAPageForAll(t *testing.T) {
	for name, tt := range map[string]struct {
		options bellwether.HTTPOptions
		control string // of the error
		page    string // Cache-Control of a page before the error, if there was one
		fail    func(w http.ResponseWriter)
		calls   int32 // at most, for a herd with 20 cookies
		later   int32 // for one more request
	}{
		"with TTL":      {options: bellwether.HTTPOptions{TTL: time.Minute}, calls: 1},
		"public":        {control: "public", calls: 1},
		"max-age":       {control: "max-age=5", calls: 1},
		"after a page":  {page: "max-age=10", calls: 1},
		"panic":         {page: "max-age=10", fail: func(http.ResponseWriter) { panic("origin") }, calls: 20, later: 1},
		"stale page":    {page: "max-age=10, stale-if-error=60", calls: 1},
		"without leave": {calls: 20, later: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var broken atomic.Bool
			h := func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(100 * time.Millisecond)
				switch {
				case !broken.Load():
					w.Header().Set("Cache-Control", tt.page)
					io.WriteString(w, "page")
				case tt.fail != nil:
					tt.fail(w)
				default:
					if tt.control != "" {
						w.Header().Set("Cache-Control", tt.control)
					}
					http.Error(w, "down", http.StatusServiceUnavailable)
				}
			}
			inPairs(t, tt.options, h, func(t *testing.T, p pair) {
				broken.Store(false)
				if tt.page != "" {
					p.first.get("http://a/p")
					p.second.get("http://a/p")
					time.Sleep(12 * time.Second)
				}
				broken.Store(true)
				p.calls()
				var wg sync.WaitGroup
				for i := range 20 {
					wg.Go(func() {
						[]*site{p.first, p.second}[i%2].get("http://a/p", "Cookie", fmt.Sprint("c=", i))
					})
				}
				wg.Wait()
				if n := p.calls(); n > tt.calls || tt.calls > 1 && n < tt.calls {
					t.Errorf("%d calls for a herd with 20 cookies, want %d", n, tt.calls)
				}
				p.second.get("http://a/p", "Cookie", "c=20")
				if n := p.calls(); n != tt.later {
					t.Errorf("%d calls for the next request, want %d", n, tt.later)
				}
			})
		})
	}
}

var unshareable = map[string]func(w http.ResponseWriter){
	"private": func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "private") },
	"set-cookie": func(w http.ResponseWriter) {
		w.Header().Set("Cache-Control", "max-age=600")
		w.Header().Set("Set-Cookie", "a=b")
	},
	"400": func(w http.ResponseWriter) { w.WriteHeader(400) },
	"403": func(w http.ResponseWriter) { w.WriteHeader(403) },
	"429": func(w http.ResponseWriter) { w.WriteHeader(429) },
	"500": func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "private"); w.WriteHeader(500) },
}

// unshared is a page for all clients without a cookie. Clients with a cookie get their own answers.
func unshared(pause time.Duration, control string, answer func(w http.ResponseWriter)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(pause)
		if cookie := r.Header.Get("Cookie"); cookie != "" {
			answer(w)
			io.WriteString(w, cookie)
			return
		}
		w.Header().Set("Cache-Control", control)
		io.WriteString(w, "page")
	}
}

func TestAudience_OneClientsAnswerLeavesThePage(t *testing.T) {
	for name, answer := range unshareable {
		for window, control := range map[string]string{"fresh": "max-age=600", "stale": "max-age=1, stale-while-revalidate=600"} {
			t.Run(name+" "+window, func(t *testing.T) {
				inPairs(t, bellwether.HTTPOptions{}, unshared(100*time.Millisecond, control, answer), func(t *testing.T, p pair) {
					wantPage := func(s *site) {
						t.Helper()
						s.wantBody(t, "page", "http://a/p") // without a cookie
					}
					wantPage(p.first)
					wantPage(p.second)
					time.Sleep(2 * time.Second)
					p.calls()
					if w := p.first.get("http://a/p", "Cookie", "u=1", "Cache-Control", "no-cache"); w.Body.String() != "u=1" && name != "500" {
						t.Errorf("a reload got %d %q", w.Code, w.Body)
					}
					if n := p.calls(); n != 1 {
						t.Errorf("%d calls for a reload", n)
					}
					if window == "stale" {
						// A refresh of the stale page may be begun by a client with a cookie.
						p.first.get("http://a/p", "Cookie", "u=1")
						time.Sleep(time.Second)
						p.calls()
					}
					for range 50 {
						wantPage(p.first)
						wantPage(p.second)
					}
					time.Sleep(time.Second) // for a refresh in the background
					if n := p.calls(); n > 0 && window == "fresh" || n > 1 {
						t.Errorf("%d calls for 100 clients without a cookie", n)
					}
				})
			})
		}
	}
}

// If the first response at an expiry is private, one waiting client runs the handler and the others wait.
func TestAudience_OneMoreTriesAtAnExpiry(t *testing.T) {
	for name, answer := range unshareable {
		t.Run(name, func(t *testing.T) {
			inPairs(t, bellwether.HTTPOptions{}, unshared(200*time.Millisecond, "max-age=1", answer), func(t *testing.T, p pair) {
				p.first.get("http://a/p")
				p.second.get("http://a/p")
				time.Sleep(2 * time.Second)
				p.calls()
				var wg sync.WaitGroup
				wg.Go(func() {
					p.first.wantBody(t, "u=1", "http://a/p", "Cookie", "u=1") // the first
				})
				time.Sleep(time.Millisecond)
				for _, s := range []*site{p.first, p.second} {
					wg.Go(func() {
						for o, n := range s.burst(100, same("http://a/p")) {
							if !strings.HasPrefix(o, "200 page ") {
								t.Errorf("%d times %q", n, o)
							}
						}
					})
				}
				wg.Wait()
				if n := p.calls(); n != 2 {
					t.Errorf("%d calls at an expiry, want 2", n)
				}
			})
		})
	}
}

// A second private response releases all waiting clients of the fleet, and the next herd does not queue.
func TestAudience_SecondAnswerLetsTheOthersGo(t *testing.T) {
	page := unshared(200*time.Millisecond, "max-age=1", unshareable["private"])
	test := func(t *testing.T, p pair) {
		p.first.get("http://a/p")
		p.second.get("http://a/p")
		time.Sleep(2 * time.Second)
		herd := func(most time.Duration) {
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					began, cookie := time.Now(), fmt.Sprint("u=", i)
					if w := []*site{p.first, p.second}[i%2].get("http://a/p", "Cookie", cookie); w.Body.String() != cookie || time.Since(began) > most {
						t.Errorf("%s got %d %q after %v, want its own within %v", cookie, w.Code, w.Body, time.Since(began), most)
					}
				})
			}
			wg.Wait()
		}
		herd(700 * time.Millisecond)
		herd(210 * time.Millisecond)
	}
	inPairs(t, bellwether.HTTPOptions{}, page, test)

	// The clients of the first response begin a new flight at once. It must not find their own process's lease.
	inBubble(t, "slow release", func(t *testing.T) {
		locker, o := wiredLocks(locallock.New()), bellwether.HTTPOptions{}
		locker.set(on(takes(time.Millisecond), "release"))
		o.Fleet.Store, o.Fleet.Locker = memstore.New(), locker
		test(t, pair{newSite(t, o, page), newSite(t, o, page)})
	})
}

// A 304 does not make a page valid for a client with another cookie, unless the page is public.
func TestAudience_ValidationByCookie(t *testing.T) {
	for control, shared := range map[string]bool{"no-cache": false, "no-cache, must-revalidate": false, "public, no-cache": true} {
		t.Run(control, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", control)
				w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
				if r.Header.Get("If-Modified-Since") != "" {
					w.WriteHeader(304)
					return
				}
				io.WriteString(w, "page of "+r.Header.Get("Cookie"))
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				for _, s := range []*site{p.first, p.second, p.first} {
					for _, cookie := range []string{"u=1", "u=2", ""} {
						r := request("GET", "http://a/p")
						if cookie != "" {
							r.Header.Set("Cookie", cookie)
						}
						if got := s.do(r).Body.String(); got != "page of "+cookie && !shared {
							t.Errorf("a client with %q got %q", cookie, got)
						}
						synctest.Wait()
					}
				}
			})
		})
	}
}

// Client certificates and CredentialFields count as credentials, as Authorization does.
func TestAudience_Credentials(t *testing.T) {
	for _, control := range []string{"max-age=60", "max-age=60, public"} {
		for _, kind := range []string{"certificate", "Cookie", "X-Api-Key", "x-api-key"} {
			t.Run(control+" "+kind, func(t *testing.T) {
				var n atomic.Int32
				h := func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", control)
					fmt.Fprint(w, n.Add(1))
				}
				by := func(name string) *http.Request {
					r := httptest.NewRequest("GET", "http://a/p", nil)
					if kind == "certificate" {
						r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Raw: []byte(name)}}}
					} else {
						r.Header.Set(kind, name)
					}
					return r
				}
				o := bellwether.HTTPOptions{}
				if kind != "certificate" {
					o.CredentialFields = []string{kind}
				}
				inPairs(t, o, h, func(t *testing.T, p pair) {
					seen := map[string]bool{}
					for _, s := range []*site{p.first, p.second} {
						for _, name := range []string{"one", "two"} {
							seen[s.do(by(name)).Body.String()] = true
							synctest.Wait()
						}
					}
					if want := map[bool]int{true: 1, false: 4}[strings.Contains(control, "public")]; len(seen) != want {
						t.Errorf("%d pages for two clients, twice each: want %d", len(seen), want)
					}
				})
			})
		}
	}
}

func TestAudience_SlowErrorBodyHoldsUpNoOther(t *testing.T) {
	h := own(0, func(w http.ResponseWriter, name string) {
		w.WriteHeader(http.StatusInternalServerError)
		io.WriteString(w, "account of ")
		w.(http.Flusher).Flush()
		time.Sleep(20 * time.Second)
		io.WriteString(w, name)
	})
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		var wg sync.WaitGroup
		wg.Go(func() { p.first.get("http://a/p", "Cookie", "bad") })
		time.Sleep(time.Second)
		for _, s := range []*site{p.first, p.second} {
			wg.Go(func() {
				began := time.Now()
				w := s.get("http://a/p", "Cookie", "good")
				if took := time.Since(began); w.Body.String() != "page of good" || took > time.Second {
					t.Errorf("another client got %d %q after %v", w.Code, w.Body, took)
				}
			})
		}
		wg.Wait()
	})
}

func TestAudience_TimeoutIsItsClients(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		cookie := r.Header.Get("Cookie")
		if cookie == "bad" {
			<-r.Context().Done()
			panic(context.Cause(r.Context()))
		}
		fmt.Fprint(w, "page of ", cookie)
	}
	o := bellwether.HTTPOptions{RebuildTimeout: 10 * time.Second}
	inPairs(t, o, h, func(t *testing.T, p pair) {
		var wg sync.WaitGroup
		wg.Go(func() { p.first.get("http://a/p", "Cookie", "bad") })
		time.Sleep(9 * time.Second)
		for _, s := range []*site{p.first, p.second} {
			wg.Go(func() {
				s.wantBody(t, "page of good", "http://a/p", "Cookie", "good") // a client that came a second before the timeout
			})
		}
		wg.Wait()
	})
}

// A stale page answers in place of a time-out, also a client with a Cookie: as in place of a panic.
func TestAudience_StalePageInPlaceOfATimeout(t *testing.T) {
	for name, fail := range map[string]func(r *http.Request){
		"hangs":                    func(*http.Request) { time.Sleep(15 * time.Second) },
		"ends with its context":    func(r *http.Request) { <-r.Context().Done(); panic(http.ErrAbortHandler) },
		"panics by another's wait": func(*http.Request) { panic(fmt.Errorf("users: %w", bellwether.ErrRebuildTimeout)) },
	} {
		t.Run(name, func(t *testing.T) {
			expired := time.Time{}
			h := func(w http.ResponseWriter, r *http.Request) {
				if !expired.IsZero() {
					fail(r)
				}
				w.Header().Set("Cache-Control", "public, max-age=1, stale-if-error=3600")
				io.WriteString(w, "page")
			}
			inPairs(t, bellwether.HTTPOptions{RebuildTimeout: 10 * time.Second}, h, func(t *testing.T, p pair) {
				expired = time.Time{}
				p.first.get("http://a/p")
				time.Sleep(5 * time.Second)
				expired = time.Now()
				var wg sync.WaitGroup
				for _, s := range []*site{p.first, p.second} {
					wg.Go(func() { s.wantBody(t, "page", "http://a/p", "Cookie", "u=1") })
					wg.Go(func() { s.wantBody(t, "page", "http://a/p", "Cookie", "u=2") })
				}
				wg.Wait()
				time.Sleep(time.Minute) // the handlers return
			})
		})
	}
}

// A client whose requests hang, and come again and again, does not keep a stale page from being replaced for the others.
func TestAudience_TimeoutsOfOneClientKeepNoPageStale(t *testing.T) {
	var runs atomic.Int64
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Cookie") == "u=bad" {
			time.Sleep(15 * time.Second)
			return
		}
		w.Header().Set("Cache-Control", "public, max-age=1, stale-if-error=3600")
		fmt.Fprint(w, "run ", runs.Add(1))
	}
	o := bellwether.HTTPOptions{RebuildTimeout: 10 * time.Second}
	// others is when the other clients come, and fresh is when they get another page at the latest. The first time-out is
	// after ten seconds.
	test := func(others, fresh time.Duration) func(t *testing.T, p pair) {
		return func(t *testing.T, p pair) {
			first := p.first.get("http://a/p").Body.String()
			time.Sleep(5 * time.Second)
			var wg sync.WaitGroup
			began := time.Now()
			end := began.Add(2 * time.Minute)
			for _, s := range []*site{p.first, p.second} {
				wg.Go(func() {
					for time.Now().Before(end) {
						s.get("http://a/p", "Cookie", "u=bad")
						time.Sleep(20 * time.Millisecond)
					}
				})
				wg.Go(func() {
					time.Sleep(others)
					replaced := false
					for ; time.Now().Before(end); time.Sleep(time.Second) {
						switch got := s.get("http://a/p"); {
						case got.Code != 200:
							t.Errorf("a plain client gets %d %q", got.Code, got.Body)
						case got.Body.String() != first:
							replaced = true
						case !replaced && time.Since(began) > fresh:
							t.Errorf("after %v a plain client gets %q", time.Since(began), got.Body)
							return
						}
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Minute) // the handlers return
		}
	}
	atOnce := test(time.Second, 11*time.Second)
	t.Run("during the first run", func(t *testing.T) { inPairs(t, o, h, atOnce) })
	t.Run("during the second", func(t *testing.T) { inPairs(t, o, h, test(11500*time.Millisecond, time.Minute)) })

	// The flight of another client, begun at the time-out, must not find the lease of the hanging load.
	inBubble(t, "slow release", func(t *testing.T) {
		locker := wiredLocks(locallock.New())
		locker.set(on(takes(time.Millisecond), "release"))
		o := o
		o.Fleet.Store, o.Fleet.Locker = memstore.New(), locker
		atOnce(t, pair{newSite(t, o, h), newSite(t, o, h)})
	})
}

// One client's failures by reloads, or by a retargeting field, do not fail a fresh page at its expiry.
func TestAudience_FailuresOfAFreshPageEndNoPageAtItsExpiry(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter){
		"500":   func(w http.ResponseWriter) { http.Error(w, "bad request", http.StatusInternalServerError) },
		"panic": func(http.ResponseWriter) { panic("bad request") },
	} {
		for by, fields := range map[string][]string{
			"reloads":    {"Cookie", "bad", "Cache-Control", "no-cache"},
			"retargeted": {"X-Forwarded-Host", "bad"},
		} {
			t.Run(name+" "+by, func(t *testing.T) {
				h := func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get(fields[0]) == "bad" {
						fail(w)
						return
					}
					w.Header().Set("Cache-Control", "max-age=60")
					io.WriteString(w, "page")
				}
				inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
					p.first.get("http://a/p")
					for range 240 { // until just before the expiry
						p.first.get("http://a/p", fields...)
						time.Sleep(249 * time.Millisecond)
					}
					failed := 0
					for range 60 {
						time.Sleep(time.Second)
						for _, s := range []*site{p.first, p.second} {
							if w := s.get("http://a/p"); w.Body.String() != "page" {
								failed++
							}
						}
					}
					if failed > 0 {
						t.Errorf("%d of 120 requests of others failed", failed)
					}
				})
			})
		}
	}
}

func TestAudience_ErrorByCookieLeavesTheStalePage(t *testing.T) {
	answer := func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }
	h := unshared(0, "max-age=1, stale-while-revalidate=600", answer)
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		p.first.get("http://a/p")
		time.Sleep(5 * time.Second)
		p.first.get("http://a/p", "Cookie", "u=1")
		time.Sleep(100 * time.Millisecond)
		for _, s := range []*site{p.first, p.second} {
			s.wantBody(t, "page", "http://a/p") // within the window
		}
	})
}

func TestAudience_OneClientsAnswersLeaveTheStaleIfErrorPage(t *testing.T) {
	var down atomic.Bool
	healthy := unshared(100*time.Millisecond, "max-age=1, stale-if-error=600", unshareable["403"])
	h := func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		healthy(w, r)
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		down.Store(false)
		p.first.get("http://a/p")
		p.second.get("http://a/p")
		time.Sleep(5 * time.Second)
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() { p.first.get("http://a/p", "Cookie", fmt.Sprint("u=", i)) })
		}
		wg.Wait()
		time.Sleep(2 * time.Second)
		down.Store(true)
		for _, s := range []*site{p.first, p.second} {
			s.wantBody(t, "page", "http://a/p") // with the origin down
		}
	})
}

// If an early refresh panics for its client, one client of the herd runs the handler and the others wait.
func TestAudience_EarlyRefreshThatPanicsForItsClient(t *testing.T) {
	h := unshared(time.Second, "max-age=10", func(http.ResponseWriter) { panic("account") })
	o := bellwether.HTTPOptions{EarlyRefresh: 1e6}
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, o, h)
		s.get("http://a/p")
		time.Sleep(9500 * time.Millisecond)
		s.calls.Store(0)
		s.get("http://a/p", "Cookie", "u=1") // a hit, and a refresh that panics at 10.5 s
		time.Sleep(700 * time.Millisecond)
		for o, n := range s.burst(100, same("http://a/p")) {
			if !strings.HasPrefix(o, "200 page ") {
				t.Errorf("%d times %q", n, o)
			}
		}
		if n := s.calls.Load(); n > 3 {
			t.Errorf("%d calls for the herd at the expiry, want 3 at most", n)
		}
	})
}

// One client that asks two processes does not use up the tries of the second process's herd.
func TestAudience_OneClientInTwoProcessesLetsNoHerdGo(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"403":   unshareable["403"],
		"panic": func(http.ResponseWriter) { panic("bad") },
	} {
		inBubble(t, name, func(t *testing.T) {
			h := unshared(200*time.Millisecond, "max-age=1", answer)
			o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()}}
			p := pair{newSite(t, o, h), newSite(t, o, h)}
			time.Sleep(time.Second) // the log is read
			p.first.get("http://a/p")
			p.second.get("http://a/p")
			time.Sleep(2 * time.Second)
			p.calls()
			var wg sync.WaitGroup
			for _, s := range []*site{p.first, p.second} {
				wg.Go(func() { s.get("http://a/p", "Cookie", "u=1") })
				time.Sleep(time.Millisecond)
			}
			for o, n := range p.second.burst(100, same("http://a/p")) {
				if !strings.HasPrefix(o, "200 page ") {
					t.Errorf("%d times %q", n, o)
				}
			}
			wg.Wait()
			if n := p.calls(); n > 4 {
				t.Errorf("%d calls for a herd of 100, want 4 at most", n)
			}
		})
	}
}

// A client with credentials gets its own load's failure, and no stored page unless it is public.
func TestAudience_FailureBesideAPageForOthers(t *testing.T) {
	for _, cc := range []string{"max-age=60", "max-age=1, stale-if-error=60", "public, max-age=1, stale-if-error=60"} {
		for name, fail := range ownFailures {
			if name == "short" && strings.HasPrefix(cc, "public") || name == "exit" {
				continue // its client reads the page while it is written, or exits
			}
			t.Run(cc+" "+name, func(t *testing.T) {
				h := own(time.Second, fail)
				o := bellwether.HTTPOptions{}
				inPairs(t, o, func(w http.ResponseWriter, r *http.Request) {
					if !strings.Contains(r.Header.Get("Authorization"), "bad") {
						w.Header().Set("Cache-Control", cc)
					}
					h(w, r)
				}, func(t *testing.T, p pair) {
					p.first.get("http://a/p")
					time.Sleep(2 * time.Second)
					for _, s := range []*site{p.first, p.second} {
						w := s.get("http://a/p", "Authorization", "bad")
						if public := strings.HasPrefix(cc, "public"); (w.Body.String() == "page of ") != public {
							t.Errorf("the client whose request fails got %d %q, Cache-Status %s", w.Code, w.Body, w.Header()["Cache-Status"])
						}
						s.wantBody(t, "page of ", "http://a/p") // another client, afterwards
					}
				})
			})
		}
	}
}

// One client's refused token, range or 304 does not keep later clients with Authorization from collapsing.
func TestAudience_OneBadToken(t *testing.T) {
	for name, bad := range map[string][]string{
		"bad token": {"Authorization", "bad"},
		"range":     {"Authorization", "good", "Range", "bytes=0-1"},
		"304":       {"Authorization", "good", "If-None-Match", `"v"`},
	} {
		for _, learnt := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", known to be for all ", learnt), func(t *testing.T) {
				h := func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(100 * time.Millisecond)
					if r.Header.Get("Authorization") != "good" {
						w.WriteHeader(401)
						return
					}
					w.Header().Set("Cache-Control", "public, max-age=60")
					w.Header().Set("ETag", `"v"`)
					http.ServeContent(w, r, "x.txt", time.Time{}, strings.NewReader("page"))
				}
				inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
					if learnt {
						for range 2 {
							p.first.get("http://a/p", "Authorization", "good")
							synctest.Wait()
						}
						time.Sleep(2 * time.Hour)
					}
					p.first.get("http://a/p", bad...)
					synctest.Wait()
					p.calls()
					for range 10 {
						p.first.burst(100, func(int) *http.Request { return request("GET", "http://a/p", "Authorization", "good") })
						time.Sleep(500 * time.Millisecond)
					}
					if n := p.calls(); n > 110 {
						t.Errorf("%d runs of the handler for 10 herds of 100 with good tokens, of a page that is public, max-age=60", n)
					}
				})
			})
		}
	}
}

// While the origin fails, a herd with Authorization collapses, as a herd without.
func TestAudience_FailingOriginAndTheAuthorizedHerd(t *testing.T) {
	for _, fields := range [][]string{nil, {"Authorization", "good"}} {
		t.Run(fmt.Sprint(fields), func(t *testing.T) {
			var down atomic.Bool
			h := func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(100 * time.Millisecond)
				if down.Load() {
					w.WriteHeader(503)
					return
				}
				w.Header().Set("Cache-Control", "public, max-age=60")
				io.WriteString(w, "page")
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				down.Store(false)
				p.first.get("http://a/p", fields...)
				synctest.Wait()
				p.first.get("http://a/p", fields...)
				time.Sleep(65 * time.Second)
				down.Store(true)
				p.calls()
				for range 10 {
					p.first.burst(100, func(int) *http.Request { return request("GET", "http://a/p", fields...) })
					time.Sleep(500 * time.Millisecond)
				}
				if n := p.calls(); n > 20 {
					t.Errorf("%d runs of a failing handler for 1,000 requests in 6 s", n)
				}
			})
		})
	}
}

// A Cookie is no part of the key: the handler says whether clients share its page.
func TestAudience_Cookie(t *testing.T) {
	for field, want := range map[string]string{"": "user=ann", "Cache-Control: private": "user=bob", "Vary: Cookie": "user=bob"} {
		inBubble(t, field, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
				if name, value, ok := strings.Cut(field, ": "); ok {
					w.Header().Set(name, value)
				}
				io.WriteString(w, r.Header.Get("Cookie"))
			})
			s.wantBody(t, "user=ann", "http://a/p", "Cookie", "user=ann")
			s.wantBody(t, want, "http://a/p", "Cookie", "user=bob")
		})
	}
}

// Handlers send a lifetime of zero with pages that they do not want shared. A request with a Cookie gets no
// other client's page then, and no page that was made for another and confirmed by a 304.
func TestAudience_LifetimeOfZeroWithCookies(t *testing.T) {
	for said, shared := range map[string]bool{
		"Cache-Control: max-age=0": false, "Expires: 0": false,
		"Cache-Control: public, max-age=0": true, "Cache-Control: max-age=0, stale-while-revalidate=9": true,
	} {
		name, value, _ := strings.Cut(said, ": ")
		inPairs(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set(name, value)
			w.Header().Set("ETag", `"the template's"`)
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			fmt.Fprint(w, "page of ", r.Header.Get("Cookie"))
		}, func(t *testing.T, p pair) {
			p.first.get("http://a/p") // of nobody, kept for its validator
			time.Sleep(time.Minute)
			var wg sync.WaitGroup
			var others atomic.Int32
			for i := range 6 {
				wg.Go(func() {
					s, cookie := p.first, fmt.Sprint("u=", i)
					if i%2 == 0 {
						s = p.second
					}
					if w := s.get("http://a/p", "Cookie", cookie); w.Body.String() != "page of "+cookie {
						others.Add(1)
					}
				})
			}
			wg.Wait()
			if got := others.Load() > 0; got != shared {
				t.Errorf("%s: %d of 6 clients got another client's page", said, others.Load())
			}
		})
	}
}

// inFleets runs a test with a store and a locker, with one engine for both, and without notices of the store.
func inFleets(t *testing.T, test func(t *testing.T, process func(h http.HandlerFunc) *site)) {
	for name, fleet := range map[string]func() bellwether.Fleet{
		"two engines": func() bellwether.Fleet { return bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()} },
		"no notices": func() bellwether.Fleet {
			return bellwether.Fleet{Store: quiet{memstore.New()}, Locker: locallock.New()}
		},
		"one engine": func() bellwether.Fleet { return bellwether.Fleet{Engine: memstore.New()} },
	} {
		inBubble(t, name, func(t *testing.T) {
			o := bellwether.HTTPOptions{Fleet: fleet()}
			test(t, func(h http.HandlerFunc) *site {
				s := newSite(t, o, h)
				time.Sleep(time.Second) // the log is read
				return s
			})
		})
	}
}

// Failures that clients may not share do not queue: after the first one, no process waits for another's load.
func TestAudience_FailuresOfClientsDoNotQueue(t *testing.T) {
	for name, tt := range map[string]struct {
		cookie func(i int) string // of the ith client of 30
		pause  time.Duration      // of the handler
		loads  int32              // at most
		rounds time.Duration      // loads that the slowest client waits for
	}{
		"a cookie each":     {func(i int) string { return fmt.Sprint("c=", i) }, time.Second, 30, 4},
		"no cookies":        {func(int) string { return "" }, time.Second, 3, 2},
		"one with a cookie": {func(i int) string { return strings.Repeat("c", max(0, 1-i)) }, time.Second, 4, 2},
		"slowly":            {func(i int) string { return fmt.Sprint("c=", i) }, 8 * time.Second, 30, 4},
	} {
		for how, fail := range map[string]func(w http.ResponseWriter, cookie string){"503": ownFailures["503"], "panic": ownFailures["panic"]} {
			t.Run(name+" "+how, func(t *testing.T) {
				inFleets(t, func(t *testing.T, process func(h http.HandlerFunc) *site) {
					var fleet []*site
					for range 3 {
						fleet = append(fleet, process(func(w http.ResponseWriter, r *http.Request) {
							time.Sleep(tt.pause)
							fail(w, r.Header.Get("Cookie"))
						}))
					}
					var wg sync.WaitGroup
					began := time.Now()
					for i := range 30 {
						wg.Go(func() {
							var fields []string
							cookie := tt.cookie(i)
							if cookie != "" {
								fields = []string{"Cookie", cookie}
							}
							w := fleet[i%3].get("http://a/p", fields...)
							if how == "503" && (w.Code != 503 || w.Body.String() != "account of "+cookie+"\n") {
								t.Errorf("the client with the cookie %q got %d %q", cookie, w.Code, w.Body)
							}
							if took := time.Since(began); took > tt.rounds*tt.pause+tt.pause/2 {
								t.Errorf("a client waited for %v, with loads of %v", took, tt.pause)
							}
						})
						if i == 0 {
							synctest.Wait() // the first client's load is under way
						}
					}
					wg.Wait()
					loads := int32(0)
					for _, s := range fleet {
						loads += s.calls.Load()
					}
					if loads > tt.loads {
						t.Errorf("%d loads, want %d at most", loads, tt.loads)
					}
				})
			})
		}
	}
}

// After one client's failure the first page for all answers the waiting clients of its process, and the others from the store.
func TestAudience_PageForAllAfterOneClientsFailure(t *testing.T) {
	inFleets(t, func(t *testing.T, process func(h http.HandlerFunc) *site) {
		h := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			if r.Header.Get("Cookie") == "bad" {
				http.Error(w, "account of bad", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "page")
		}
		fleet := []*site{process(h), process(h)}
		var wg sync.WaitGroup
		wg.Go(func() { fleet[0].get("http://a/p", "Cookie", "bad") })
		synctest.Wait()
		for _, s := range fleet {
			for range 20 {
				wg.Go(func() { s.wantBody(t, "page", "http://a/p") })
			}
		}
		wg.Wait()
		fleet[0].wantCalls(t, 2)
		fleet[1].wantCalls(t, 1)
		time.Sleep(5 * time.Second)
		for range 20 { // the failing client gets the page, and brings the loads not back
			for _, s := range fleet {
				s.wantBody(t, "page", "http://a/p")
				s.get("http://a/p", "Cookie", "bad")
			}
			time.Sleep(500 * time.Millisecond)
		}
		fleet[0].wantCalls(t, 0)
		fleet[1].wantCalls(t, 0)
		late := process(h)
		late.wantBody(t, "page", "http://a/p")
		late.wantCalls(t, 0)
	})
}

// Failures without an election do not prolong the time without elections, and cost the store no writes.
func TestAudience_FailuresAreMarkedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locallock.New()}}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(10 * time.Millisecond)
			ownFailures["503"](w, r.Header.Get("Cookie"))
		})
		time.Sleep(time.Second) // the log is read
		store.reset()
		for i := range 20 {
			s.get("http://a/p", "Cookie", fmt.Sprint("c=", i))
		}
		s.wantCalls(t, 20)
		if n := store.count("commit"); n != 1 {
			t.Errorf("%d commits, want the first failure's", n)
		}
	})
}

// One client's error whose body does not end breaks off after RebuildTimeout, and so does its handler.
func TestAudience_ErrorBodyWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{RebuildTimeout: 10 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			io.WriteString(w, "account of ")
			<-r.Context().Done()
		})
		began := time.Now()
		if w := s.get("http://a/p", "Cookie", "bad"); w.Code != -1 || time.Since(began) != 10*time.Second {
			t.Errorf("%d %q after %v, want a break after RebuildTimeout", w.Code, w.Body, time.Since(began))
		}
	})
}
