package bellwether_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests requests with Authorization (RFC 9111 section 3.5).

// No other client, with or without credentials, waits for a slow request with credentials.
func TestCredentials_Slow(t *testing.T) {
	for _, control := range []string{"private", "max-age=60", "", "public, max-age=60"} {
		t.Run(control, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") == "slow" {
					time.Sleep(20 * time.Second)
				}
				if control != "" {
					w.Header().Set("Cache-Control", control)
				}
				io.WriteString(w, r.Header.Get("Authorization"))
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				var wg sync.WaitGroup
				wg.Go(func() {
					p.first.wantBody(t, "slow", "http://a/p", "Authorization", "slow") // the slow client
				})
				time.Sleep(time.Second)
				for _, s := range []*site{p.first, p.second} {
					for _, user := range []string{"", "other"} {
						began := time.Now()
						var fields []string
						if user != "" {
							fields = []string{"Authorization", user}
						}
						w := s.get("http://a/p", fields...)
						if took := time.Since(began); took > 100*time.Millisecond || w.Body.String() != user && !strings.HasPrefix(control, "public") {
							t.Errorf("%q got %q after %v", user, w.Body, took)
						}
					}
				}
				wg.Wait()
			})
		})
	}
}

// The first response to credentials that is for all is stored, unless it was invalidated meanwhile.
func TestCredentials_Kept(t *testing.T) {
	for _, invalidated := range []bool{false, true} {
		t.Run(fmt.Sprint("invalidated ", invalidated), func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=60")
				time.Sleep(5 * time.Second)
				io.WriteString(w, "page")
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				p.calls()
				var wg sync.WaitGroup
				wg.Go(func() { p.first.get("http://a/p", "Authorization", "one") })
				time.Sleep(2 * time.Second)
				if invalidated {
					p.second.mw.Invalidate(t.Context(), "http://a/p")
				}
				wg.Wait()
				time.Sleep(2 * time.Second)
				for _, s := range []*site{p.first, p.second} {
					s.get("http://a/p", "Authorization", "two")
					synctest.Wait() // the response is stored just after the answer
					s.get("http://a/p")
				}
				want := int32(1)
				if invalidated {
					want = 2
				}
				if n := p.calls(); n != want {
					t.Errorf("%d runs of the handler, want %d", n, want)
				}
			})
		})
	}
}

// Cache-Status says "stored" (RFC 9211 section 2.5) only of a first response whose announced length can be kept.
func TestCredentials_KeptByLength(t *testing.T) {
	for _, tt := range []struct {
		length int
		most   int64
		stored bool
	}{{64 << 10, 0, true}, {64<<10 + 1, 0, false}, {1 << 10, 1 << 10, true}, {1<<10 + 1, 1 << 10, false}} {
		inBubble(t, fmt.Sprint(tt.length, " of ", tt.most), func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: tt.most}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=60")
				w.Header().Set("Content-Length", strconv.Itoa(tt.length))
				io.WriteString(w, strings.Repeat("x", tt.length))
			})
			status := s.get("http://a/p", "Authorization", "one").Header().Get("Cache-Status")
			if strings.Contains(status, ";stored") != tt.stored {
				t.Errorf("Cache-Status %q, want stored to be %v", status, tt.stored)
			}
			synctest.Wait()
			if s.hits("http://a/p") != tt.stored {
				t.Errorf("the next client's hit is not %v", tt.stored)
			}
		})
	}
}

// A response for all is not kept if a response to a request without credentials would not be.
func TestCredentials_NotKept(t *testing.T) {
	for name, value := range map[string]string{"Content-Type": "text/event-stream", "X-Long": strings.Repeat("x", 64<<10)} {
		inBubble(t, name, func(t *testing.T) {
			var ways []observe.Way
			s := newSite(t, bellwether.HTTPOptions{Observers: noting(&ways)}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=60")
				w.Header().Set(name, value)
				io.WriteString(w, "page")
			})
			w := s.get("http://a/p", "Authorization", "one")
			synctest.Wait()
			if status := w.Header().Get("Cache-Status"); w.Body.String() != "page" || strings.Contains(status, ";stored") {
				t.Errorf("%q with Cache-Status %q, want a page that is not stored", w.Body, status)
			}
			if want := []observe.Way{observe.WayBypass}; !slices.Equal(ways, want) {
				t.Errorf("observers hear of %v, want %v", ways, want)
			}
			s.get("http://a/p")
			s.wantCalls(t, 2)
		})
	}
}

// RFC 9111 section 3.5.
func TestCredentials_ResponsesForAll(t *testing.T) {
	for cc, shared := range map[string]bool{
		"max-age=60":                  false,
		"max-age=60, public":          true,
		"s-maxage=60":                 true,
		"max-age=60, must-revalidate": true,
		"public, private":             false,
	} {
		inBubble(t, cc, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, numbered(cc))
			s.get("http://a/p", "Authorization", "u1")
			synctest.Wait()
			others, same := s.get("http://a/p"), s.get("http://a/p", "Authorization", "u2")
			if got := others.Body.String() == "1" && same.Body.String() == "1"; got != shared {
				t.Errorf("others got %s and %s of the first user's response: shared %v, want %v", others.Body, same.Body, got, shared)
			}
		})
	}
}

// An anonymous client's response is served with Authorization only if the response allows it.
func TestCredentials_AnonymousResponseIsNoAuthorizedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "for ", r.Header.Get("Authorization"))
		})
		s.get("http://a/p")
		synctest.Wait()
		for _, user := range []string{"u1", "u2", "u1"} {
			s.wantBody(t, "for "+user, "http://a/p", "Authorization", user)
			if w := s.get("http://a/p"); w.Body.String() != "for " || !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Errorf("an authorized request has taken the response from the others: %q %v", w.Body, w.Header())
			}
		}
	})
}

// Requests with Authorization collapse only after the page is known to be for all, and delay no others.
func TestCredentials_Herd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var public atomic.Bool
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			if public.Load() {
				w.Header().Set("Cache-Control", "max-age=10, public")
			}
			fmt.Fprint(w, "v")
		})
		user := func(i int) *http.Request {
			return request("GET", "http://a/p", "Authorization", fmt.Sprint("u", i))
		}
		for range 2 {
			wantBurst(t, s.burst(50, user), 50, "200 v 1s")
			s.wantCalls(t, 50)
		}
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 v 1s")
		s.wantCalls(t, 1)

		public.Store(true)
		time.Sleep(2 * time.Minute)
		wantBurst(t, s.burst(50, user), 50, "200 v 1s") // not known to be for all yet
		s.calls.Store(0)
		time.Sleep(11 * time.Second)
		wantBurst(t, s.burst(50, user), 50, "200 v 1s")
		s.wantCalls(t, 1)

		public.Store(false)
		time.Sleep(11 * time.Second)
		got := s.burst(50, user)
		if got["200 v 1s"] != 1 || got["200 v 2s"] != 1 || got["200 v 3s"] != 48 {
			t.Errorf("no longer for all: %v, want one more to try, and the others let go together", got)
		}
		s.wantCalls(t, 50)
		wantBurst(t, s.burst(50, user), 50, "200 v 1s")
	})
}

// Requests with Authorization do not wait for leases. Anonymous requests that join them still collapse.
func TestCredentials_Fleet(t *testing.T) {
	for _, stored := range []bool{false, true} { // a stale page that is not for clients with Authorization
		synctest.Test(t, func(t *testing.T) {
			const processes = 5
			o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()}}
			var anonymous atomic.Int32
			var fleet []*site
			for range processes {
				fleet = append(fleet, newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
					if r.Header["Authorization"] == nil {
						anonymous.Add(1)
					}
					time.Sleep(time.Second)
					w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=600")
					fmt.Fprint(w, r.Header.Get("Authorization"))
				}))
			}
			if stored {
				fleet[0].get("http://a/p")
				time.Sleep(2 * time.Minute)
				anonymous.Store(0)
			}
			start := time.Now()
			var wg sync.WaitGroup
			for i, s := range fleet {
				wg.Go(func() {
					user := fmt.Sprint("u", i)
					// A load takes a second. Beginning the log takes a few milliseconds.
					if got := s.get("http://a/p", "Authorization", user).Body.String(); got != user || time.Since(start) > 1100*time.Millisecond {
						t.Errorf("stored %v: process %d answered %q after %v, want %q after its own load of 1s", stored, i, got, time.Since(start), user)
					}
				})
				wg.Go(func() {
					time.Sleep(time.Millisecond)
					if w := s.get("http://a/p"); w.Code != 200 || w.Body.String() != "" || time.Since(start) > 2100*time.Millisecond {
						t.Errorf("stored %v: without Authorization process %d answered %d %q after %v", stored, i, w.Code, w.Body, time.Since(start))
					}
				})
			}
			wg.Wait()
			time.Sleep(5 * time.Second)
			if n := anonymous.Load(); n != 1 {
				t.Errorf("stored %v: %d loads for requests without Authorization, want 1", stored, n)
			}
		})
	}
}

func TestCredentials_ValidateNothingOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10")
			w.Header().Set("Last-Modified", lastYear) // the same for all clients
			if r.Header.Get("If-Modified-Since") == lastYear {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			fmt.Fprint(w, "for ", r.Header.Get("Authorization"))
		})
		s.get("http://a/p")
		time.Sleep(11 * time.Second)
		s.wantBody(t, "for u1", "http://a/p", "Authorization", "u1")
	})
}

// The stale windows of a response from the store also apply to a request with Authorization.
func TestCredentials_StoredWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: memstore.New()}}
		page := numbered("public, max-age=10, stale-while-revalidate=60")
		a := newSite(t, o, page)
		b := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			page(w, r)
		})
		time.Sleep(2 * time.Second) // without a Locker both begin the log of invalidations, and one loses its own
		a.get("http://a/p")
		time.Sleep(20 * time.Second)
		start := time.Now()
		w := b.get("http://a/p", "Authorization", "u1")
		if took := time.Since(start); w.Body.String() != "1" || took != 0 {
			t.Errorf("got %q after %v, want the stale response at once", w.Body, took)
		}
		time.Sleep(time.Second) // for the rebuild in the background
	})
}

// After a response to credentials for one client, the next requests with credentials ask no engine.
func TestCredentials_AskNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private")
		})
		s.get("http://a/p", "Authorization", "u1")
		store.reply.Store(int64(100 * time.Millisecond))
		began := time.Now()
		s.get("http://a/p", "Authorization", "u2")
		if took := time.Since(began); took != 0 {
			t.Errorf("the next client waited for the store for %v", took)
		}
		time.Sleep(time.Second)
	})
}

// A process that has nothing in memory finds the variant for all in the store.
func TestCredentials_StoredVariant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: memstore.New()}}
		page := func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "public, max-age=60")
			w.Header().Set("Vary", "Accept-Language")
		}
		a, b := newSite(t, o, page), newSite(t, o, page)
		time.Sleep(2 * time.Second) // without a Locker both begin the log of invalidations, and one loses its own
		a.get("http://a/p", "Accept-Language", "de")
		synctest.Wait()
		b.get("http://a/p", "Accept-Language", "de", "Authorization", "u1")
		b.wantCalls(t, 0)
	})
}

// A client whose credentials the handler refuses does not keep other clients' from the page for all.
func TestCredentials_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "wrong" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header().Set("Cache-Control", "public, max-age=60")
		})
		for _, user := range []string{"wrong", "u1", "u2"} {
			s.get("http://a/p", "Authorization", user)
			synctest.Wait()
		}
		s.wantCalls(t, 2)
	})
}

// The first response to credentials is not stored if it may depend on a field: by a Vary, also beside an
// outer middleware's such as CORS, or as a field that a rebuild removes from its request.
func TestCredentials_ResponseByAField(t *testing.T) {
	for _, field := range []string{"Origin", "Content-Type"} {
		for _, credentials := range [][]string{nil, {"Authorization", "one"}} {
			inBubble(t, fmt.Sprint(field, credentials), func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "public, max-age=600")
					if field == "Origin" {
						w.Header().Set("Vary", field)
					}
					fmt.Fprint(w, "for ", r.Header.Get(field))
				})
				if field == "Origin" {
					s.handler = outer("Vary", field)(s.handler)
				}
				s.get("http://a/p", append([]string{field, "evil"}, credentials...)...)
				synctest.Wait()
				s.wantBody(t, "for ", "http://a/p") // another client
			})
		}
	}
}

// A response to credentials that is an error, or is never fresh, does not replace a fresh page.
func TestCredentials_LeaveAFreshPage(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"503 public": func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "public, max-age=5"); w.WriteHeader(503) },
		"public, max-age=0": func(w http.ResponseWriter) {
			w.Header().Set("Cache-Control", "public, max-age=0")
			io.WriteString(w, "page")
		},
		"public": func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "public"); io.WriteString(w, "page") },
	} {
		t.Run(name, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "" {
					answer(w)
					return
				}
				w.Header().Set("Cache-Control", "max-age=600, stale-if-error=600")
				io.WriteString(w, "page")
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				p.first.get("http://a/p")
				p.second.get("http://a/p")
				time.Sleep(2 * time.Second)
				bad := 0
				p.calls()
				for range 20 {
					p.first.get("http://a/p", "Authorization", "x")
					synctest.Wait()
					p.calls()
					for _, s := range []*site{p.first, p.second} {
						if w := s.get("http://a/p"); w.Body.String() != "page" {
							bad++
						}
						synctest.Wait()
					}
					if n := p.calls(); n > 0 {
						bad += 1000
					}
					time.Sleep(11 * time.Second)
				}
				if bad > 0 {
					t.Errorf("a fresh page: %d replies to others without it, %d rounds in which it was built again", bad%1000, bad/1000)
				}
			})
		})
	}
}

// A page that is not for requests with credentials does not answer them in place of an error either.
func TestCredentials_FailureBesideAnothersPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		control, broken := "public, max-age=60", false
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			if broken {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Cache-Control", control)
			io.WriteString(w, control)
		})
		s.get("http://a/p", "Authorization", "me") // the URL's responses are for all
		time.Sleep(time.Second)
		control = "max-age=60"
		s.get("http://a/p", "Cache-Control", "no-cache") // but not this one
		time.Sleep(time.Second)
		broken = true
		if w := s.get("http://a/p", "Authorization", "me"); w.Body.String() == control {
			t.Errorf("a client with credentials: %d and the page of the others", w.Code)
		}
	})
}

// In an outage of a page for all, also requests with credentials share its errors and their pauses, after an error has
// taken the page's place.
func TestCredentials_ErrorsBehindAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{header: "public, max-age=1", fail: func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }}
		s := newSite(t, bellwether.HTTPOptions{}, f.ServeHTTP)
		s.get("http://a/p", "Authorization", "x")
		f.broken.Store(true)
		time.Sleep(5 * time.Second)
		s.get("http://a/p")
		time.Sleep(5 * time.Second)
		s.calls.Store(0)
		s.burst(50, func(int) *http.Request { return request("GET", "http://a/p", "Authorization", "x") })
		for range 50 {
			s.get("http://a/p", "Authorization", "y")
		}
		if n := s.calls.Load(); n > 5 {
			t.Errorf("%d runs of the handler for 100 requests", n)
		}
	})
}

// A failure that may be about its client answers no client with another Cookie or other credentials.
func TestCredentials_FailureOfOneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Cookie") == "u=bad" || r.Header.Get("Authorization") == "bad" {
				time.Sleep(time.Second)
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Cache-Control", "public, max-age=60")
		})
		for _, c := range [][2]string{{"Authorization", "bad"}, {"Cookie", "u=bad"}} {
			s.get("http://a/p", "Authorization", "me") // the URL's responses are for all
			s.mw.Invalidate(t.Context(), "http://a/p")
			time.Sleep(time.Nanosecond)
			client := func(name, value string) int {
				r := request("GET", "http://a/p", "Authorization", "me", "Cookie", "u=1")
				r.Header.Set(name, value)
				return s.do(r).Code
			}
			go client(c[0], c[1])
			synctest.Wait()
			if code := client(c[0], "good"); code != http.StatusOK {
				t.Errorf("beside the failure of another %s: %d", c[0], code)
			}
		}
	})
}

// A Key.Variant by the client certificate gives each certificate a page of its own, and the next request a hit.
func TestCredentials_CertificateAsAVariant(t *testing.T) {
	certificate := func(r *http.Request) string {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			return ""
		}
		return string(r.TLS.PeerCertificates[0].Raw)
	}
	o := bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
		return bellwether.Key{Variant: certificate(r)}, true
	}}
	s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=60")
		fmt.Fprint(w, "page of ", certificate(r))
	})
	for _, owner := range []string{"", "alice", "bob", "", "alice", "bob"} {
		status := ""
		for deadline := time.Now().Add(5 * time.Second); !strings.Contains(status, "hit") && time.Now().Before(deadline); {
			r := request("GET", "https://a/p")
			if owner != "" {
				r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Raw: []byte(owner)}}}
			}
			w := s.do(r)
			status = w.Header().Get("Cache-Status")
			if got := w.Body.String(); got != "page of "+owner {
				t.Fatalf("%q gets %q", owner, got)
			}
		}
		if !strings.Contains(status, "hit") {
			t.Errorf("%q gets no hit: %s", owner, status)
		}
	}
	if n := s.calls.Load(); n > 3*3 {
		t.Errorf("the handler ran %d times", n)
	}
}

// A request with credentials that waits for an anonymous client's run does not get a response that is not for all.
func TestCredentials_JoinARunForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var private atomic.Bool
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "public, max-age=1")
			if private.Load() {
				w.Header().Set("Cache-Control", "max-age=60")
			}
			time.Sleep(time.Second)
			fmt.Fprint(w, "page of ", r.Header.Get("Authorization"))
		})
		s.get("http://a/p", "Authorization", "me") // the URL's responses are for all
		private.Store(true)
		time.Sleep(time.Minute)
		var wg sync.WaitGroup
		wg.Go(func() { s.wantBody(t, "page of ", "http://a/p") })
		synctest.Wait()
		s.wantBody(t, "page of me", "http://a/p", "Authorization", "me")
		wg.Wait()
	})
}

// A handler that answers a client with credentials with an error keeps this error from others.
func TestCredentials_ErrorIsNotKept(t *testing.T) {
	for _, control := range []string{"private, max-age=60", "public, max-age=60"} {
		inBubble(t, control, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", control)
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, r.Header.Get("Authorization"))
			})
			s.get("http://a/p", "Authorization", "me")
			synctest.Wait()
			s.wantBody(t, "", "http://a/p")
		})
	}
}

// The handler is not asked about a page of others for a client with credentials: its 304 would be about its template.
func TestCredentials_ValidateNoPageOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var private atomic.Bool
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Last-Modified", lastYear)
			w.Header().Set("Cache-Control", "public, max-age=1")
			if private.Load() {
				w.Header().Set("Cache-Control", "max-age=1")
			}
			if r.Header.Get("If-Modified-Since") != "" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			fmt.Fprint(w, "page of ", r.Header.Get("Authorization"))
		})
		s.get("http://a/p", "Authorization", "me") // the URL's responses are for all
		private.Store(true)
		time.Sleep(time.Minute)
		s.mw.Invalidate(t.Context(), "http://a/p")
		s.get("http://a/p")
		time.Sleep(time.Minute)
		s.wantBody(t, "page of me", "http://a/p", "Authorization", "me")
	})
}

// A page for clients without credentials does not open its key to others: they still do not wait for each other.
func TestCredentials_BesideAPageForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=1")
			if r.Header.Get("Authorization") != "" {
				time.Sleep(time.Second)
			}
			io.WriteString(w, "page")
		})
		s.get("http://a/p")
		time.Sleep(2 * time.Second)
		wantBurst(t, s.burst(20, func(i int) *http.Request { return request("GET", "http://a/p", "Authorization", fmt.Sprint(i)) }), 20, "200 page 1s")
		s.wantCalls(t, 21)
	})
}

// A response to a part of the request that is not in its key is kept for no other client.
func TestCredentials_PartOutsideTheKey(t *testing.T) {
	o := bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
		return bellwether.Key{URL: "http://" + strings.TrimPrefix(r.Host, "www.") + r.URL.Path}, true
	}}
	for name, first := range map[string]*http.Request{
		"host":              request("GET", "http://www.a/p", "Authorization", "me"),
		"query":             request("GET", "http://a/p?evil", "Authorization", "me"),
		"a question mark":   request("GET", "http://a/p?", "Authorization", "me"),
		"connection field":  request("GET", "http://a/p", "Authorization", "me", "Connection", "X-Evil", "X-Evil", "evil"),
		"part":              request("GET", "http://a/p", "Authorization", "me", "Range", "items=1-2"),
		"hop's field":       request("GET", "http://a/p", "Authorization", "me", "TE", "evil"),
		"announced trailer": announcing("evil", request("GET", "http://a/p", "Authorization", "me")),
		"of an anonymous":   announcing("evil", request("GET", "http://a/p")),
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=60")
				r.Header.Del("Authorization")
				fmt.Fprint(w, r.Host, r.URL.RequestURI(), r.Header, len(r.Trailer))
			})
			s.do(first)
			synctest.Wait()
			s.wantBody(t, "a/pmap[] 0", "http://a/p")
		})
	}
}

// announcing returns r as net/http reads it over HTTP/2 if the client announces a trailer for a body without bytes.
func announcing(trailer string, r *http.Request) *http.Request {
	r.Trailer = http.Header{trailer: nil}
	return r
}
