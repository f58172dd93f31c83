package bellwether_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests that no value outlives its TTL because it seems younger than it is.

func TestAge_AfterANoticeThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, notices, bellwether.Options{
			TTL: time.Minute, MaxWait: time.Minute, Fleet: bellwether.Fleet{NearTTL: time.Minute, EngineTimeout: 10 * time.Second},
		})
		loads, waits := f.processes[0], f.processes[1]
		f.origin.build = 1200 * time.Millisecond
		go loads.Get(context.Background(), "k")
		synctest.Wait()
		done := make(chan string)
		go func() {
			v, _ := waits.Get(context.Background(), "k")
			done <- v
		}()
		// At 1 s waits reads the store, with the reply at 4 s. The notice comes at 1.2 s.
		time.Sleep(500 * time.Millisecond)
		waits.store.reply.Store(int64(3 * time.Second))
		if v := <-done; v != "v1" {
			t.Fatalf("got %q, want v1", v)
		}
		if got, want := peekAge(waits.Cache), peekAge(loads.Cache); got < want || want < time.Second {
			t.Errorf("an age of %v, want the %v of the process that loaded, after 1 s at least", got, want)
		}
	})
}

// The Codec takes 5 s before the commit.
func TestAge_AfterASlowCodec(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{TTL: time.Minute, Codec: bellwether.Codec{
			Marshal:   func(v any) ([]byte, error) { time.Sleep(5 * time.Second); return json.Marshal(v) },
			Unmarshal: json.Unmarshal,
		}})
		for _, p := range f.processes {
			p.Get(t.Context(), "k")
		}
		if got, want := peekAge(f.processes[1].Cache), peekAge(f.processes[0].Cache); got < want || want < 5*time.Second {
			t.Errorf("an age of %v, want the %v of the process that loaded, and at least the Codec's 5 s", got, want)
		}
	})
}

// takeTurns has 16 reads of other keys take all turns at the process's store for 8 s. The caller sets
// store.only before, so that the faults spare k.
func takeTurns(t *testing.T, p *process) {
	p.store.set(on(takes(8*time.Second), "get"))
	for i := range 16 {
		go p.Get(t.Context(), fmt.Sprint("other", i))
	}
	synctest.Wait()
}

func TestAge_AfterACommitThatWaited(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{
			TTL: 10 * time.Second, MaxWait: time.Minute, RebuildTimeout: time.Minute, Fleet: bellwether.Fleet{EngineTimeout: 10 * time.Second},
		})
		loads, other := f.processes[0], f.processes[1]
		loads.store.only = func(key string) bool { return key != "k" }
		done := make(chan struct{})
		go func() {
			defer close(done)
			loads.Get(context.Background(), "k")
		}()
		time.Sleep(500 * time.Millisecond)
		takeTurns(t, loads)
		<-done // the load has returned at 1 s
		other.Get(t.Context(), "k")
		if got, want := peekAge(other.Cache), peekAge(loads.Cache); got < want || want < 4*time.Second {
			t.Errorf("an age of %v, want the %v of the process that loaded, whose commit waited", got, want)
		}
	})
}

func TestAge_AfterASetThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{EngineTimeout: 10 * time.Second}})
		sets, other := f.processes[0], f.processes[1]
		sets.store.only = func(key string) bool { return key != "k" }
		takeTurns(t, sets)
		if err := sets.Set(t.Context(), "k", "set"); err != nil {
			t.Fatal(err)
		}
		other.Get(t.Context(), "k")
		if got, want := peekAge(other.Cache), peekAge(sets.Cache); got < want || want < time.Second {
			t.Errorf("an age of %v, want the %v of the process of the Set, which waited", got, want)
		}
	})
}

// A Set reads the log of sweeps first.
func TestAge_AfterASlowLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{TTL: time.Minute, Sweeps: true, Fleet: bellwether.Fleet{EngineTimeout: 10 * time.Second}})
		p := f.processes[0]
		time.Sleep(10 * time.Second)
		p.store.set(on(takes(4*time.Second), "get"))
		start := time.Now()
		if err := p.Set(t.Context(), "k", "set"); err != nil {
			t.Fatal(err)
		}
		if got, want := peekAge(p.Cache), time.Since(start); got < want || want < 4*time.Second {
			t.Errorf("an age of %v, want the %v since the call of Set", got, want)
		}
	})
}

// A hedge looks once more after its load.
func TestAge_AfterAHedgesLook(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := hedgersOf(t, 2, by, bellwether.Options{TTL: time.Minute, MaxWait: time.Minute, Fleet: bellwether.Fleet{EngineTimeout: 10 * time.Second}})
		hedges := f.processes[1]
		f.hang(t, 50*time.Second, nil)
		start := time.Now()
		go func() {
			time.Sleep(3500 * time.Millisecond)
			hedges.store.set(on(takes(5*time.Second), "get"))
		}()
		v, err := hedges.Get(t.Context(), "k")
		// The hedge's load has begun after 3 s and returned after 4 s.
		if took := time.Since(start); took < 8*time.Second {
			t.Fatalf("%s, %v after %v", v, err, took)
		}
		if got, want := peekAge(hedges.Cache), time.Since(start)-4200*time.Millisecond; got < want {
			t.Errorf("%s, %v: an age of %v, but its load returned %v ago at least", v, err, got, want)
		}
	})
}

// The first response with a Vary is claimed under its variant's key after its load.
func TestAge_AfterTheClaimOfAVariant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locallock.New(), EngineTimeout: 10 * time.Second}}
		s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
			store.set(on(takes(8*time.Second), "claim"))
			w.Header().Set("Vary", "Accept-Language")
			w.Header().Set("Cache-Control", "max-age=10")
			io.WriteString(w, "page")
		})
		s.get("http://a/p", "Accept-Language", "en")
		time.Sleep(15 * time.Second)
		if w := s.get("http://a/p", "Accept-Language", "en"); s.calls.Load() == 1 {
			t.Errorf("a response of 15 s with max-age=10 is served with Age %s", w.Header().Get("Age"))
		}
	})
}

// A page ages while its handler writes the body: its age counts from the header.
func TestAge_OfABodyThatGrows(t *testing.T) {
	for name, vary := range map[string]string{"of a URL": "", "of a variant": "Accept-Language"} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=6")
				if vary != "" {
					w.Header().Set("Vary", vary)
				}
				for range 4 {
					io.WriteString(w, "row")
					w.(http.Flusher).Flush()
					time.Sleep(time.Second)
				}
			})
			s.get("http://a/p") // until 4 s after the header
			time.Sleep(1700 * time.Millisecond)
			h := s.get("http://a/p").Header()
			if s.wantCalls(t, 1); h.Get("Age") != "5" || h.Get("Cache-Status") != "Bellwether;hit;ttl=0" {
				t.Errorf("5.7 s after the header: Age %q, %s, want 5 and a hit with ttl=0", h.Get("Age"), h.Get("Cache-Status"))
			}
			time.Sleep(400 * time.Millisecond)
			h = s.get("http://a/p").Header()
			if s.calls.Load() != 1 {
				t.Errorf("6.1 s after the header, max-age=6 is served with Age %q, %s", h.Get("Age"), h.Get("Cache-Status"))
			}
		})
	}
}

// The time since the Date is longer than a time.Duration can be.
func TestAge_OfAnAncientDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", "Mon, 01 Jan 1601 00:00:00 GMT")
			w.Header().Set("Cache-Control", "max-age=60")
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			time.Sleep(time.Second)
			io.WriteString(w, "page")
		})
		s.get("http://a/p")
		time.Sleep(time.Second)
		if w := s.get("http://a/p"); s.calls.Load() != 2 {
			t.Errorf("a response of 1601 with max-age=60 is served with Age %s", w.Header().Get("Age"))
		}
	})
}

func TestAge_OfAnAncientFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{TTL: time.Minute, ErrorTTL: 5 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", "Mon, 01 Jan 0001 00:00:00 GMT")
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		for range 10 {
			s.get("http://a/p")
		}
		if n := s.calls.Load(); n != 1 {
			t.Errorf("%d runs of the broken handler within ErrorTTL, want 1", n)
		}
	})
}
