package bellwether_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// An origin is a page with validators that records the conditions of its requests.
type origin struct {
	mu          sync.Mutex
	version     string // ETag, without quotes
	modified    string // Last-Modified, if not empty
	header      http.Header
	notModified http.Header // fields of 304s only
	delay       time.Duration
	asked       []string // by request: If-None-Match and If-Modified-Since
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(o.delay)
	o.mu.Lock()
	defer o.mu.Unlock()
	inm, ims := r.Header.Get("If-None-Match"), r.Header.Get("If-Modified-Since")
	o.asked = append(o.asked, inm+ims)
	h := w.Header()
	for name, values := range o.header {
		h[name] = values
	}
	if o.version != "" {
		h.Set("ETag", `"`+o.version+`"`)
	}
	if o.modified != "" {
		h.Set("Last-Modified", o.modified)
	}
	if inm != "" && inm == h.Get("ETag") || inm == "" && ims != "" && ims == o.modified {
		for name, values := range o.notModified {
			h[name] = values
		}
		w.WriteHeader(http.StatusNotModified)
		h.Set("X-After", "too late for the reply")
		return
	}
	io.WriteString(w, "page "+o.version+o.modified)
}

func (o *origin) wantAsked(t *testing.T, want ...string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if fmt.Sprint(o.asked) != fmt.Sprint(want) {
		t.Errorf("the handler was asked %q, want %q", o.asked, want)
	}
	o.asked = nil
}

const lastYear = "Fri, 01 Jan 1999 00:00:00 GMT" // a bubble's clock begins in 2000

func TestValidation_OnceForTheHerd(t *testing.T) {
	for name, test := range map[string]struct{ version, modified, condition string }{
		"etag":          {"1", "", `"1"`},
		"last-modified": {"", lastYear, lastYear},
		"both":          {"1", lastYear, `"1"` + lastYear},
	} {
		inBubble(t, name, func(t *testing.T) {
			o := &origin{
				version: test.version, modified: test.modified, delay: time.Second,
				header:      http.Header{"Cache-Control": {"max-age=10"}, "X-Old": {"old"}, "X-Kept": {"kept"}},
				notModified: http.Header{"X-Old": {"new"}},
			}
			s := newSite(t, bellwether.HTTPOptions{}, o.ServeHTTP)
			page := "page " + test.version + test.modified
			s.get("http://a/p")
			o.wantAsked(t, "")
			for range 2 { // the second validates a response that a 304 has freshened
				time.Sleep(11 * time.Second)
				wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 "+page+" 1s")
				o.wantAsked(t, test.condition)
			}
			w := s.get("http://a/p")
			if w.Body.String() != page || w.Header().Get("X-Old") != "new" || w.Header().Get("X-Kept") != "kept" {
				t.Errorf("after the validation: %q %v", w.Body, w.Header())
			}
			o.wantAsked(t) // fresh again
			time.Sleep(20 * time.Minute)
			w = s.get("http://a/p")
			if status := w.Header().Get("Cache-Status"); !strings.Contains(status, "fwd=stale;fwd-status=304") || !strings.Contains(status, "stored") {
				t.Errorf("Cache-Status %q of a validation", status)
			}
			o.wantAsked(t, test.condition)
			time.Sleep(11 * time.Second)
			if o.version != "" { // new content
				o.version = "2"
			} else {
				o.modified = "Fri, 01 Jan 1999 00:00:02 GMT"
			}
			wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 page "+o.version+o.modified+" 1s")
			o.wantAsked(t, test.condition)
			time.Sleep(2 * time.Hour)
			s.get("http://a/p")
			o.wantAsked(t, "") // not stored for ever
		})
	}
}

func TestValidation_ClientsConditionIsAnsweredAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{version: "1", header: http.Header{"Cache-Control": {"max-age=10"}}}
		s := newSite(t, bellwether.HTTPOptions{}, o.ServeHTTP)
		s.get("http://a/p")
		time.Sleep(11 * time.Second)
		if w := s.get("http://a/p", "If-None-Match", `"1"`); w.Code != 304 || w.Body.Len() != 0 {
			t.Errorf("the client's own tag: %d %q", w.Code, w.Body)
		}
		time.Sleep(11 * time.Second)
		if w := s.get("http://a/p", "If-None-Match", `"0"`); w.Code != 200 || w.Body.String() != "page 1" {
			t.Errorf("another tag: %d %q", w.Code, w.Body)
		}
		o.wantAsked(t, "", `"1"`, `"1"`)
	})
}

// After a 304 with another strong tag the handler is asked again (RFC 9111 section 4.3.4).
func TestValidation_NotModifiedAboutAnotherResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{version: "1", header: http.Header{"Cache-Control": {"max-age=10"}}, notModified: http.Header{"Etag": {`"2"`}}}
		s := newSite(t, bellwether.HTTPOptions{}, o.ServeHTTP)
		s.get("http://a/p")
		time.Sleep(11 * time.Second)
		if w := s.get("http://a/p"); w.Code != 200 || w.Body.String() != "page 1" {
			t.Errorf("%d %q, want the page", w.Code, w.Body)
		}
		o.wantAsked(t, "", `"1"`, "")
	})
}

func TestValidation_ForbidsSharing(t *testing.T) {
	for name, field := range map[string][2]string{
		"private":    {"Cache-Control", "private, max-age=10"},
		"no-store":   {"Cache-Control", "no-store"},
		"set-cookie": {"Set-Cookie", "session=1"},
	} {
		inBubble(t, name, func(t *testing.T) {
			o := &origin{version: "1", delay: time.Second, header: http.Header{"Cache-Control": {"max-age=10"}}}
			s := newSite(t, bellwether.HTTPOptions{}, o.ServeHTTP)
			s.get("http://a/p")
			time.Sleep(11 * time.Second)
			o.header = http.Header{field[0]: {field[1]}}
			got := s.burst(20, same("http://a/p"))
			if got["200 page 1 1s"] != 1 || got["200 page 1 2s"] != 1 || got["200 page 1 3s"] != 18 {
				t.Errorf("outcomes %v, want one answer from the validation, one from a second, the others by their own calls", got)
			}
			s.wantCalls(t, 21)
		})
	}
}

// A response that needs a validation for each request is validated by each, concurrently.
func TestValidation_NoCacheByEachRequest(t *testing.T) {
	for name, cc := range map[string]string{"no-cache": "no-cache", "stale from the start": "max-age=0, must-revalidate"} {
		inBubble(t, name, func(t *testing.T) {
			o := &origin{version: "1", delay: time.Second, header: http.Header{"Cache-Control": {cc}, "X-Old": {"old"}}, notModified: http.Header{"X-Old": {"new"}}}
			s := newSite(t, bellwether.HTTPOptions{}, o.ServeHTTP)
			s.get("http://a/p")
			o.wantAsked(t, "")
			synctest.Wait()
			wantBurst(t, s.burst(20, same("http://a/p")), 20, "200 page 1 1s")
			s.wantCalls(t, 21)
			w := s.get("http://a/p")
			if w.Header().Get("X-Old") != "new" || w.Header()["X-After"] != nil || w.Header().Get("Content-Length") != "6" || !strings.Contains(w.Header().Get("Cache-Status"), "fwd-status=304") {
				t.Errorf("validated: %v", w.Header())
			}
			if w := s.get("http://a/p", "If-None-Match", `"1"`); w.Code != 304 {
				t.Errorf("the client's own tag: %d", w.Code)
			}
			if w := s.do(request("HEAD", "http://a/p")); w.Code != 200 || w.Body.Len() != 0 || w.Header().Get("Content-Length") != "6" {
				t.Errorf("HEAD: %d %q %v", w.Code, w.Body, w.Header())
			}
			for _, asked := range o.asked {
				if asked != `"1"` {
					t.Errorf("the handler was asked %q, want conditions only", o.asked)
					break
				}
			}

			// The changed page goes to its client, and is not stored for validation.
			o.version, o.asked = "2", nil
			if w := s.get("http://a/p"); w.Code != 200 || w.Body.String() != "page 2" || !strings.Contains(w.Header().Get("Cache-Status"), "fwd=stale;fwd-status=200") {
				t.Errorf("changed: %d %q %v", w.Code, w.Body, w.Header())
			}
			synctest.Wait()
			s.get("http://a/p")
			o.wantAsked(t, `"1"`, "")

			// A shareable response ends the validations.
			o.header = http.Header{"Cache-Control": {"max-age=60"}}
			s.get("http://a/p")
			synctest.Wait()
			s.get("http://a/p")
			s.calls.Store(0)
			synctest.Wait()
			s.get("http://a/p")
			s.wantCalls(t, 0)
		})
	}
}

// validated returns a handler of a page that each request must validate, and whose ETag stays.
func validated(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", `"1"`)
		if r.Header.Get("If-None-Match") == `"1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		io.WriteString(w, body)
	}
}

// A long page that each request must validate is kept as well as a short one.
func TestValidation_LongPageByEachRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, validated(strings.Repeat("0", 200_000)))
		s.get("http://a/p")
		synctest.Wait()
		w := s.get("http://a/p")
		if status := w.Header().Get("Cache-Status"); w.Code != 200 || w.Body.Len() != 200_000 || !strings.Contains(status, "fwd-status=304") {
			t.Errorf("%d, %d bytes, %s; want the kept page", w.Code, w.Body.Len(), status)
		}
	})
}

// Observers hear of a request that is validated for its client alone as of a bypass.
func TestValidation_ByEachRequestIsObservedAsABypass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ways []observe.Way
		o := &origin{version: "1", header: http.Header{"Cache-Control": {"no-cache"}}}
		s := newSite(t, bellwether.HTTPOptions{Observers: noting(&ways)}, o.ServeHTTP)
		for range 3 {
			s.get("http://a/p")
			synctest.Wait()
		}
		o.wantAsked(t, "", `"1"`, `"1"`)
		if want := []observe.Way{observe.WayMiss, observe.WayBypass, observe.WayBypass}; !slices.Equal(ways, want) {
			t.Errorf("observers hear of %v, want %v", ways, want)
		}
	})
}

// A 304 to one client's condition applies to no other client and no other response.
func TestValidation_NotModifiedForOneClientsCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			user := r.Header.Get("Cookie")
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("ETag", `"`+user+`"`)
			if r.Header.Get("If-None-Match") == `"`+user+`"` {
				w.WriteHeader(304)
				return
			}
			time.Sleep(time.Second)
			fmt.Fprint(w, user)
		})
		for range 3 {
			got := s.burst(30, func(i int) *http.Request {
				return request("GET", "http://a/p", "Cookie", fmt.Sprint("u", i%3))
			})
			n := 0
			for o, times := range got {
				if strings.HasPrefix(o, "200 u") {
					n += times
				}
			}
			if n != 30 {
				t.Fatalf("outcomes %v", got)
			}
			for i := range 3 {
				user := fmt.Sprint("u", i)
				s.wantBody(t, user, "http://a/p", "Cookie", user)
			}
			time.Sleep(11 * time.Second)
		}
	})
}

// A process validates a response that another process has stored, also after its windows.
func TestValidation_OfAnotherProcessesResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{version: "1", modified: lastYear, header: http.Header{"Cache-Control": {"max-age=10"}}}
		store := memstore.New()
		var sites []*site
		for range 2 {
			sites = append(sites, newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}}, o.ServeHTTP))
			synctest.Wait() // without a Locker, two processes may both begin the log
		}
		sites[0].get("http://a/p")
		time.Sleep(10 * time.Minute)
		sites[1].wantBody(t, "page 1"+lastYear, "http://a/p")
		synctest.Wait()
		if w := sites[0].get("http://a/p"); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
			t.Errorf("the first process does not see the second's validation: %v", w.Header())
		}
		o.wantAsked(t, "", `"1"`+lastYear)
	})
}

func TestValidation_Variants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked sync.Map
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			lang := r.Header.Get("X-Lang")
			asked.Store(lang, r.Header.Get("If-None-Match"))
			w.Header().Set("Vary", "X-Lang")
			w.Header().Set("Cache-Control", "max-age=10")
			w.Header().Set("ETag", `"`+lang+`"`)
			if r.Header.Get("If-None-Match") == `"`+lang+`"` {
				w.WriteHeader(304)
				return
			}
			fmt.Fprint(w, lang)
		})
		for range 2 {
			for _, lang := range []string{"de", "fr"} {
				s.wantBody(t, lang, "http://a/p", "X-Lang", lang)
			}
			time.Sleep(11 * time.Second)
		}
		for _, lang := range []string{"de", "fr"} {
			if tag, _ := asked.Load(lang); tag != `"`+lang+`"` {
				t.Errorf("%s: the handler was asked %v", lang, tag)
			}
		}
	})
}

// An error with the page's validator is not validated with it (RFC 9110 section 13.2.1).
func TestValidation_NoneOfAnError(t *testing.T) {
	for _, status := range []int{301, 404, 410, 500, 503} {
		for _, lifetime := range []string{"", "max-age=10, stale-if-error=60", "no-cache"} {
			synctest.Test(t, func(t *testing.T) {
				o := &origin{version: "1", header: http.Header{"Cache-Control": {"max-age=10"}}}
				var there atomic.Bool
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					if !there.Load() {
						w.Header().Set("ETag", `"1"`)
						w.Header().Set("Cache-Control", lifetime)
						w.WriteHeader(status)
						return
					}
					o.ServeHTTP(w, r)
				})
				s.get("http://a/p")
				there.Store(true)
				time.Sleep(12 * time.Second)
				if w := s.get("http://a/p"); w.Code != 200 {
					t.Errorf("%d with %q, 12 s after: %d %v", status, lifetime, w.Code, w.Header())
				}
				o.wantAsked(t, "")
			})
		}
	}
}

// A HEAD's 200 drops the stored body only if its validator differs (RFC 9111 section 4.3.5).
func TestValidation_HeadOfTheResponse(t *testing.T) {
	for tag, asked := range map[string]string{`"1"`: `"1"`, `"2"`: ""} {
		synctest.Test(t, func(t *testing.T) {
			var condition string
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				condition = r.Header.Get("If-None-Match")
				w.Header().Set("Cache-Control", "no-cache")
				w.Header().Set("ETag", `"1"`)
				switch {
				case r.Method == http.MethodHead: // as a handler without conditions does
					w.Header().Set("ETag", tag)
				case condition == `"1"`:
					w.WriteHeader(http.StatusNotModified)
				default:
					io.WriteString(w, "page")
				}
			})
			s.get("http://a/p")
			synctest.Wait()
			if w := s.do(request("HEAD", "http://a/p")); w.Code != 200 || w.Header().Get("ETag") != tag {
				t.Errorf("HEAD: %d %v", w.Code, w.Header())
			}
			synctest.Wait()
			if w := s.get("http://a/p"); w.Body.String() != "page" || condition != asked {
				t.Errorf("after a HEAD with %s: %q, the handler was asked %q, want %q", tag, w.Body, condition, asked)
			}
		})
	}
}

// RFC 9111 section 4.3.4: a freshened response has the Age of the 304.
func TestValidation_AgeAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{version: "1", header: http.Header{"Cache-Control": {"max-age=10"}}, notModified: http.Header{"Age": {"7"}}}
		s := newSite(t, bellwether.HTTPOptions{}, o.ServeHTTP)
		s.get("http://a/p")
		time.Sleep(11 * time.Second)
		s.get("http://a/p")
		time.Sleep(2 * time.Second)
		if w := s.get("http://a/p"); w.Header().Get("Age") != "9" {
			t.Errorf("Age %v, want the 304's 7 and 2", w.Header()["Age"])
		}
		time.Sleep(2 * time.Second)
		s.get("http://a/p")
		o.wantAsked(t, "", `"1"`, `"1"`)
	})
}

// A never fresh response is kept for its validator in this process alone: waiting processes cannot use it.
func TestValidation_NeverFreshIsKeptInThisProcessAlone(t *testing.T) {
	for asked, store := range map[string]driver.Store{`"1"`: nil, "": memstore.New()} {
		synctest.Test(t, func(t *testing.T) {
			o := &origin{version: "1", header: http.Header{"Cache-Control": {"max-age=0"}}}
			s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}}, o.ServeHTTP)
			s.get("http://a/p")
			time.Sleep(10 * time.Second)
			s.get("http://a/p")
			o.wantAsked(t, "", asked)
		})
	}
}

// A slow origin's 304s collapse as its 200s do, even if they outlast the page's freshness.
func TestValidation_Slow304sCollapse(t *testing.T) {
	for _, whole := range []bool{true, false} {
		inBubble(t, fmt.Sprintf("whole=%v", whole), func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(1500 * time.Millisecond)
				w.Header().Set("ETag", `"v1"`)
				w.Header().Set("Cache-Control", "s-maxage=1")
				if !whole && r.Header.Get("If-None-Match") != "" {
					w.WriteHeader(304)
					return
				}
				fmt.Fprint(w, "page")
			})
			s.burst(50, same("http://a/p"))
			s.wantCalls(t, 1)
			time.Sleep(2 * time.Second)
			s.burst(50, same("http://a/p"))
			s.wantCalls(t, 1)
			s.burst(50, same("http://a/p"))
			s.wantCalls(t, 0)
		})
	}
}

// A 304 that is stale by its Age is not shared if the page must not be served stale.
func TestValidation_StaleMustRevalidate304IsNotShared(t *testing.T) {
	for _, whole := range []bool{true, false} {
		inBubble(t, fmt.Sprintf("whole=%v", whole), func(t *testing.T) {
			var later atomic.Bool
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(100 * time.Millisecond)
				w.Header().Set("ETag", `"v1"`)
				w.Header().Set("Cache-Control", "max-age=5, must-revalidate")
				if later.Load() {
					w.Header().Set("Age", "10") // from a cache in front of the origin
				}
				if !whole && r.Header.Get("If-None-Match") != "" {
					w.WriteHeader(304)
					return
				}
				fmt.Fprint(w, "page")
			})
			s.get("http://a/p")
			s.wantCalls(t, 1)
			later.Store(true)
			time.Sleep(time.Hour)
			s.burst(10, same("http://a/p"))
			s.wantCalls(t, 10)
		})
	}
}

func TestValidation_AgeOfAPrivate304(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"v1"`)
			if r.Header.Get("If-None-Match") != "" {
				w.Header().Set("Age", "50")
				w.Header().Set("Cache-Control", "private, max-age=60")
				w.WriteHeader(304)
				return
			}
			w.Header().Set("Cache-Control", "max-age=1")
			fmt.Fprint(w, "page")
		})
		s.get("http://a/p")
		time.Sleep(2 * time.Second)
		w := s.get("http://a/p")
		if w.Header().Get("Age") != "50" || w.Header().Get("Cache-Control") != "private, max-age=60" {
			t.Errorf("%d, %v", w.Code, w.Header())
		}
	})
}

// The fields that a 304 keeps from others reach the client whose request it answers, as those of a 200 do.
func TestValidation_FieldsForOneClientReachIt(t *testing.T) {
	for _, said := range []http.Header{
		{"Cache-Control": {`max-age=1, private="Set-Cookie"`}},
		{"Cache-Control": {`no-cache, private="Set-Cookie"`}},
		{"Cache-Control": {`public, no-cache, no-cache="Set-Cookie"`}},
		{"Cache-Control": {`max-age=1, private="set-cookie, Content-Length"`}, "Content-Length": {"4"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var runs atomic.Int32
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				run := runs.Add(1)
				maps.Copy(w.Header(), said)
				w.Header().Set("ETag", `"1"`)
				w.Header().Set("Set-Cookie", fmt.Sprintf("run=%d", run))
				if r.Header.Get("If-None-Match") != "" {
					w.Header().Del("Content-Length")
					w.WriteHeader(http.StatusNotModified)
					return
				}
				time.Sleep(time.Second)
				fmt.Fprint(w, "page")
			})
			for range 3 {
				var herd sync.WaitGroup
				cookies := make(chan string, 5)
				for range cap(cookies) {
					herd.Go(func() {
						w := s.get("http://a/p")
						if w.Code != 200 || w.Body.String() != "page" {
							t.Errorf("%v: %d %q", said, w.Code, w.Body)
						}
						cookies <- w.Header().Get("Set-Cookie")
					})
				}
				herd.Wait()
				close(cookies)
				got := make(map[string]int)
				for c := range cookies {
					got[c]++
				}
				delete(got, "") // of those who had another client's run
				if last := fmt.Sprintf("run=%d", runs.Load()); got[last] != 1 {
					t.Errorf("%v: the cookies %v, want %s at its client", said, got, last)
				}
				for c, n := range got {
					if n > 1 {
						t.Errorf("%v: %d clients have the cookie of %s", said, n, c)
					}
				}
				time.Sleep(3 * time.Second)
			}
		})
	}
}

// A stored field for caches does not share what the 304 keeps from others.
func TestValidation_FieldsForOneClientBesideATargetedField(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"1"`)
			if r.Header.Get("If-None-Match") != "" {
				w.Header().Set("Cache-Control", `private="Set-Cookie"`)
				w.Header().Set("Set-Cookie", "own")
				w.WriteHeader(http.StatusNotModified)
				return
			}
			w.Header().Set("CDN-Cache-Control", "max-age=1")
			fmt.Fprint(w, "page")
		})
		for i, want := range []string{"", "own", ""} {
			if got := s.get("http://a/p").Header().Get("Set-Cookie"); got != want {
				t.Errorf("response %d has the cookie %q, want %q", i+1, got, want)
			}
			if i == 0 {
				time.Sleep(2 * time.Second)
			}
		}
	})
}

// A field of the connection stays on it, also if the 304 keeps the field from others.
func TestValidation_ConnectionFieldOf304(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("ETag", `"1"`)
			h.Set("Cache-Control", `max-age=1, private="X-Hop, X-Own"`)
			h.Set("Connection", "X-Hop")
			h.Set("X-Hop", "1")
			h.Set("X-Own", "1")
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			fmt.Fprint(w, "page")
		})
		for i := range 2 {
			h := s.get("http://a/p").Header()
			if h.Get("X-Hop") != "" || h.Get("X-Own") != "1" {
				t.Errorf("response %d: X-Hop %q, X-Own %q", i+1, h.Get("X-Hop"), h.Get("X-Own"))
			}
			time.Sleep(2 * time.Second)
		}
	})
}

// A request with a Cookie validates a stale page for all, also in a process that has the page from the store.
func TestValidation_StalePageAndACookie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		h := func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=1, stale-if-error=60")
			w.Header().Set("ETag", `"v"`)
			if r.Header.Get("If-None-Match") != "" {
				asked.Add(1)
				w.WriteHeader(http.StatusNotModified)
				return
			}
			io.WriteString(w, "page")
		}
		o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()}}
		first, second := newSite(t, o, h), newSite(t, o, h)
		first.get("http://a/p")
		time.Sleep(2 * time.Second)
		second.wantBody(t, "page", "http://a/p", "Cookie", "u=1")
		time.Sleep(2 * time.Second)
		first.wantBody(t, "page", "http://a/p", "Cookie", "u=2")
		if n := asked.Load(); n != 2 {
			t.Errorf("%d validations, want 2", n)
		}
	})
}
