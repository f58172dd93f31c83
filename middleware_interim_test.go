package bellwether_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// This file tests interim responses and trailers, over sockets: httptest's recorder takes a 1xx as final.

// traced gets a page, and calls hint for each interim response.
func traced(t *testing.T, url string, hint func(code int, link string)) (res *http.Response, body string, err error) {
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		hint(code, h.Get("Link"))
		return nil
	}}
	req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", url, nil)
	if res, err = http.DefaultClient.Do(req); err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

func TestInterim_ReachesTheFirstClientAtOnce(t *testing.T) {
	release := make(chan struct{})
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(102)
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(103)
		clear(w.Header()) // as httputil.ReverseProxy does
		<-release
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
	})
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "1")
		s.handler.ServeHTTP(w, r)
	}))
	for i, want := range [][]string{{"102 ", "103 </style.css>; rel=preload"}, nil} {
		var got []string
		res, body, err := traced(t, server.URL+"/p", func(code int, link string) {
			got = append(got, fmt.Sprint(code, " ", link))
			if code == 103 {
				close(release) // before the final response
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) || res.StatusCode != 200 || body != "page" || res.Header["Link"] != nil || res.Header["X-Outer"] == nil {
			t.Errorf("client %d got %q, then %d %q %v, want %q and the page alone", i, got, res.StatusCode, body, res.Header, want)
		}
		eventually(t, func() bool { return s.hits(server.URL + "/p") })
	}
	s.wantCalls(t, 1)
}

// A first client that does not read blocks no interim responses, and they reach no joined client.
func TestInterim_IsNobodyElses(t *testing.T) {
	var more sync.WaitGroup
	more.Add(1)
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		for range 10_000 {
			w.WriteHeader(102)
		}
		more.Wait()
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
	})
	server := serve(t, s.handler)
	var wg sync.WaitGroup
	var hinted atomic.Int32
	for range 10 {
		wg.Go(func() {
			tell := sync.OnceFunc(func() { hinted.Add(1) })
			res, body, err := traced(t, server.URL+"/p", func(int, string) { tell() })
			// net/http's client accepts at most 5 interim responses.
			if res != nil && (body != "page" || err != nil) {
				t.Errorf("got %q, %v", body, err)
			}
		})
	}
	eventually(t, func() bool { return s.asked() >= 10 })
	more.Done()
	wg.Wait()
	if n := hinted.Load(); n != 1 {
		t.Errorf("%d clients got interim responses, want the first alone", n)
	}
	s.wantCalls(t, 1)
}

func TestInterim_TrailersReachWhoReadsLive(t *testing.T) {
	for name, test := range map[string]struct{ before, after string }{
		"announced": {"X-Sum", "X-Sum"},
		"prefixed":  {"", http.TrailerPrefix + "X-Sum"},
	} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				if test.before != "" {
					w.Header().Set("Trailer", test.before)
				}
				io.WriteString(w, "page")
				<-release
				w.Header().Set(test.after, "42")
			})
			server := serve(t, s.handler)
			get := func() (string, string) {
				res, err := http.Get(server.URL + "/p")
				if err != nil {
					t.Error(err)
					return "", ""
				}
				defer res.Body.Close()
				body, _ := io.ReadAll(res.Body)
				return string(body), res.Trailer.Get("X-Sum")
			}
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if body, sum := get(); body != "page" || sum != "42" {
						t.Errorf("live: %q with trailer %q", body, sum)
					}
				})
			}
			eventually(t, func() bool { return s.asked() >= 5 })
			close(release)
			wg.Wait()
			eventually(t, func() bool { return s.hits(server.URL + "/p") })
			if body, sum := get(); body != "page" || sum != "" {
				t.Errorf("stored: %q with trailer %q, want none (RFC 9111 section 3.1)", body, sum)
			}
			s.wantCalls(t, 1)
		})
	}
}

// An interim response, a response and a trailer in quick succession arrive in this order.
func TestInterim_AndTrailerInOneBreath(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
		w.Header().Set(http.TrailerPrefix+"X-Sum", "42")
	})
	server := serve(t, s.handler)
	for i := range 50 {
		hints := 0
		res, body, err := traced(t, fmt.Sprint(server.URL, "/", i), func(int, string) { hints++ })
		if err != nil {
			t.Fatal(err)
		}
		if hints != 1 || body != "page" || res.Trailer.Get("X-Sum") != "42" {
			t.Fatalf("%d interim responses, %q, trailer %v", hints, body, res.Trailer)
		}
	}
}

// An earlyWriter is a client's writer that calls early for each interim response.
type earlyWriter struct {
	*httptest.ResponseRecorder
	early func()
}

func (w earlyWriter) WriteHeader(status int) {
	if status < 200 {
		w.early()
		return
	}
	w.ResponseRecorder.WriteHeader(status)
}

// A lateReader is the writer of a client that leaves during its interim response: net/http's HTTP/2 server returns before
// it has read the header, which it copies only if it has to leave out a length.
type lateReader struct {
	*httptest.ResponseRecorder
	read, sent http.Header // the map that the server reads, and its fields at first
}

func (w *lateReader) WriteHeader(status int) {
	if status >= 200 {
		w.ResponseRecorder.WriteHeader(status)
		return
	}
	w.read = w.Header()
	if w.read["Content-Length"] != nil {
		w.read = w.read.Clone()
		w.read.Del("Content-Length")
	}
	w.sent = w.read.Clone()
}

// net/http's HTTP/2 server still reads the header of an interim response after its client has left. A write
// to this map would end the process.
func TestInterim_LeavesTheHeaderOfALeftClientAlone(t *testing.T) {
	for _, name := range []string{"Surrogate-Key", "Trailer"} {
		s := newSite(t, bellwether.HTTPOptions{HiddenFields: []string{"Surrogate-Key"}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(name, "Surrogate-Key")
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "page")
		})
		r := request("GET", "http://a/p")
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
		w := &lateReader{ResponseRecorder: httptest.NewRecorder()}
		s.handler.ServeHTTP(w, r)
		if want := (http.Header{"Link": {"</style.css>; rel=preload"}}); !reflect.DeepEqual(w.sent, want) || !reflect.DeepEqual(w.read, w.sent) {
			t.Errorf("%s: the interim header is %v, and then %v, want %v", name, w.sent, w.read, want)
		}
		if h := w.Header(); h["Link"] != nil || w.Body.String() != "page" {
			t.Errorf("%s: the response is %v with the header %v", name, w.Body, h)
		}
		s.wantBody(t, "page", "http://a/p")
	}
}

// A client that does not take its interim response delays the others for 5 s, and 5 s more as a reader. The end
// of RebuildTimeout meanwhile breaks off no other client's body.
func TestInterim_TakenByNoClient(t *testing.T) {
	for _, timeout := range []time.Duration{30 * time.Second, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			joined := make(chan struct{})
			s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 1 << 20, RebuildTimeout: timeout}, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Set("Cache-Control", "max-age=60")
				<-joined // after 1 MiB the other client would go past the cache
				for range 4 {
					w.Write(make([]byte, 1<<20))
				}
			})
			taken, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				defer func() { recover() }() // its body has broken off
				s.handler.ServeHTTP(earlyWriter{httptest.NewRecorder(), func() { <-taken }}, request("GET", "http://a/p"))
			}()
			for s.asked() == 0 {
				time.Sleep(time.Microsecond)
			}
			go func() {
				synctest.Wait()
				close(joined)
			}()
			start, w := time.Now(), httptest.NewRecorder()
			func() {
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("RebuildTimeout %v: another client's body has broken off: %v", timeout, p)
					}
				}()
				s.handler.ServeHTTP(w, request("GET", "http://a/p"))
			}()
			if w.Code != 200 || w.Body.Len() != 4<<20 || time.Since(start) > 10*time.Second {
				t.Errorf("RebuildTimeout %v: another client got %d with %d bytes after %v", timeout, w.Code, w.Body.Len(), time.Since(start))
			}
			close(taken)
			<-done
			s.wantCalls(t, 1)
		})
	}
}
