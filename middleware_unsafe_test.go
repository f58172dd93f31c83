package bellwether_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// What unsafe requests do to stored responses (RFC 9111 section 4.4).

// An unsafe request that has succeeded invalidates its own URL, and the URLs that its
// response names on the same host if the option says so.
func TestUnsafe_Invalidates(t *testing.T) {
	for name, tt := range map[string]struct {
		status          int
		field, location string
		gone            string // the paths, with InvalidateLocations; without it the first
	}{
		"nothing named":                 {200, "", "", "/p"},
		"redirected":                    {303, "Location", "/q", "/p /q"},
		"Location":                      {201, "Location", "http://a/q", "/p /q"},
		"Content-Location":              {200, "Content-Location", "q", "/p /q"},
		"another host":                  {201, "Location", "http://b/q", "/p"},
		"another port":                  {201, "Content-Location", "http://a:81/q", "/p"},
		"refused":                       {403, "Location", "/q", ""},
		"failed":                        {500, "Content-Location", "/q", ""},
		"a Location that cannot be one": {200, "Location", "http://[/q", "/p"},
	} {
		for _, locations := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{InvalidateLocations: locations}, func(w http.ResponseWriter, r *http.Request) {
					if r.Method != "GET" {
						if tt.field != "" {
							w.Header().Set(tt.field, tt.location)
						}
						w.WriteHeader(tt.status)
						return
					}
					page(0, "page")(w, r)
				})
				want := tt.gone
				if !locations {
					want, _, _ = strings.Cut(want, " ")
				}
				all := []string{"http://a/p", "http://a/q", "http://b/q", "http://a:81/q"}
				for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
					for _, url := range all {
						s.get(url)
					}
					synctest.Wait()
					if w := s.do(request(method, "http://a/p")); w.Code != tt.status {
						t.Errorf("%s, %s: %d", name, method, w.Code)
					}
					synctest.Wait()
					var gone []string
					for _, url := range all {
						if w := s.get(url); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
							gone = append(gone, strings.TrimPrefix(url, "http://a"))
						}
					}
					if got := strings.Join(gone, " "); got != want {
						t.Errorf("%s, %s, locations %v: %q gone, want %q", name, method, locations, got, want)
					}
					synctest.Wait()
				}
			})
		}
	}
}

// A plain request says nothing about what is kept for TLS, since anybody on the way can
// send one. A request over TLS has changed the resource for both.
func TestUnsafe_Scheme(t *testing.T) {
	for name, tt := range map[string]struct {
		url, location string
		gone          string
	}{
		"plain":                  {"http://a/p", "", "http://a/p"},
		"plain, names https":     {"http://a/other", "https://a/p", "http://a/p"},
		"over TLS":               {"https://a/p", "", "http://a/p https://a/p"},
		"over TLS, names http":   {"https://a/other", "http://a/p", "http://a/p https://a/p"},
		"over TLS, names a path": {"https://a/other", "/p", "http://a/p https://a/p"},
	} {
		for _, o := range []bellwether.HTTPOptions{{}, {UnsafeInvalidation: bellwether.SoftInvalidation}} {
			o.InvalidateLocations = true
			t.Run(fmt.Sprint(name, " ", o.UnsafeInvalidation), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
						if r.Method == "POST" {
							if tt.location != "" {
								w.Header().Set("Location", tt.location)
							}
							return
						}
						secured(w, r)
					})
					both := []string{"http://a/p", "https://a/p"}
					for _, u := range both {
						s.get(u)
						synctest.Wait()
					}
					s.do(request("POST", tt.url))
					synctest.Wait()
					var gone []string
					for _, u := range both {
						s.calls.Store(0)
						s.get(u)
						synctest.Wait() // what is soft is rebuilt behind its client
						if s.calls.Load() > 0 {
							gone = append(gone, u)
						}
					}
					if got := strings.Join(gone, " "); got != tt.gone {
						t.Errorf("made anew: %q, want %q", got, tt.gone)
					}
				})
			})
		}
	}
}

// What Key refuses, or has no URL for, changes nothing that is kept.
func TestUnsafe_KeyRefused(t *testing.T) {
	for _, bad := range []string{"", "nonsense", "http:///p", "http://a/p#f", "http://u@a/p", "http://a:99999/p", "http://a b/p"} {
		for _, method := range []string{"PUT", "POST", "DELETE"} {
			s := newSite(t, bellwether.HTTPOptions{InvalidateLocations: true, Key: func(r *http.Request) (bellwether.Key, bool) {
				if r.Method != "GET" {
					return bellwether.Key{URL: bad}, bad != ""
				}
				return bellwether.Key{URL: "http://a" + r.URL.Path}, true
			}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Location", "/p")
			})
			s.get("http://a/p")
			if w := s.do(request(method, "http://a/p")); !strings.Contains(w.Header().Get("Cache-Status"), "fwd=method") {
				t.Errorf("%q: %v", bad, w.Header())
			}
			s.get("http://a/p")
			s.wantCalls(t, 2)
		}
	}
}

// With SoftInvalidation a page and its variants are stale after an unsafe request: each
// process serves them at once, and one rebuild follows.
func TestUnsafe_Soft(t *testing.T) {
	for _, vary := range []string{"", "Accept-Language"} {
		t.Run(vary, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				version := "old"
				h := func(w http.ResponseWriter, r *http.Request) {
					if r.Method == "PUT" {
						version = "new"
						return
					}
					if vary != "" {
						w.Header().Set("Vary", vary)
					}
					time.Sleep(100 * time.Millisecond)
					w.Header().Set("Cache-Control", "max-age=600, stale-while-revalidate=60")
					fmt.Fprint(w, version)
				}
				store, locker := memstore.New(), locallock.New()
				o := bellwether.HTTPOptions{UnsafeInvalidation: bellwether.SoftInvalidation, Options: bellwether.Options{Store: store, Locker: locker}}
				first, second := newSite(t, o, h), newSite(t, o, h)
				for _, s := range []*site{first, second} {
					time.Sleep(2 * time.Second)
					for _, language := range []string{"de", "en"} {
						s.get("http://a/p", "Accept-Language", language)
					}
				}
				time.Sleep(2 * time.Second)
				first.do(request("PUT", "http://a/p"))
				time.Sleep(2 * time.Second)
				for _, language := range []string{"de", "en"} {
					for _, s := range []*site{first, second} {
						began := time.Now()
						if w := s.get("http://a/p", "Accept-Language", language); w.Body.String() != "old" && language == "de" || time.Since(began) > 0 {
							t.Errorf("%s after the PUT: %q after %v", language, w.Body, time.Since(began))
						}
					}
					time.Sleep(2 * time.Second)
					for _, s := range []*site{first, second} {
						if w := s.get("http://a/p", "Accept-Language", language); w.Body.String() != "new" {
							t.Errorf("%s after its rebuild: %q", language, w.Body)
						}
					}
				}
			})
		})
	}
}

// However many unsafe requests there are, with SoftInvalidation too they invalidate their own
// URLs, and have the log forget nothing of before.
func TestUnsafe_SoftFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.HTTPOptions{UnsafeInvalidation: bellwether.SoftInvalidation, Options: bellwether.Options{Store: memstore.New(), Locker: locallock.New()}}
		s := newSite(t, o, page(0, "page"))
		s.get("http://a/popular")
		for i := range 1000 {
			url := fmt.Sprint("http://a/", i)
			s.get(url)
			s.do(request("POST", url))
			s.calls.Store(0)
			s.get(url)
			synctest.Wait()
			s.wantCalls(t, 1)
		}
		if w := s.get("http://a/popular"); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
			t.Errorf("another page after 1,000 unsafe requests: %v", w.Header())
		}
	})
}

func TestUnsafe_NoInvalidation(t *testing.T) {
	for _, store := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := bellwether.HTTPOptions{UnsafeInvalidation: bellwether.NoInvalidation, InvalidateLocations: true}
			if store {
				o.Store = memstore.New()
			}
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/q")
				page(0, r.Method)(w, r)
			})
			s.get("http://a/p")
			s.get("http://a/q")
			for _, method := range []string{"POST", "PUT", "DELETE"} {
				s.do(request(method, "http://a/p"))
			}
			s.calls.Store(0)
			for _, url := range []string{"http://a/p", "http://a/q"} {
				if w := s.get(url); w.Body.String() != "GET" {
					t.Errorf("%s: %q", url, w.Body)
				}
			}
			s.wantCalls(t, 0)
		})
	}
}
