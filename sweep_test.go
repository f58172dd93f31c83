package bellwether_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file attacks the log of sweeps: what happens between any two of its
// steps, to the log itself, and to those who read and write it.

func sweep(t *testing.T, s *site, m bellwether.Match) {
	t.Helper()
	if err := s.mw.InvalidateMatching(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// A handler that fails is asked once for those who wait, whatever was swept
// before.
func TestSweep_FailuresAreRemembered(t *testing.T) {
	for name, store := range map[string]bellwether.Store{"a store": quiet{memstore.New()}, "no store": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := sites(t, 1, store, func(http.ResponseWriter, *http.Request) {
					time.Sleep(10 * time.Millisecond)
					panic("no luck")
				})[0]
				for _, when := range []string{"before any sweep", "after one"} {
					calls := s.calls.Load()
					for range 3 {
						if w := s.get("http://example.com/"); w.Code != -1 && w.Code < 500 {
							t.Errorf("%s: %d", when, w.Code)
						}
					}
					time.Sleep(100 * time.Millisecond)
					if n := s.calls.Load() - calls; n != 1 {
						t.Errorf("%s: %d calls of the handler, want 1", when, n)
					}
					sweep(t, s, bellwether.Match{Prefixes: []string{"http://example.com"}})
					time.Sleep(5 * time.Minute) // it is forgotten
				}
			})
		})
	}
}

// What was stale when it was swept is offered to nobody while the rebuild
// behind it runs, neither here nor elsewhere.
// Two sweeps at one moment are both heeded, also by the process that has no
// store to write them to, and also by what was being made.
// However much is swept, the log stays a value that stores take.
// Tags and prefixes are bytes, not text: other processes read what was meant.
// A POST's response that is kept for the next GET is none if it was swept while
// it was made; what was swept before the request does not concern it.
// A request that takes only what is kept does not get what was swept elsewhere.
// What is swept softly while it is made, and has no stale windows, is gone.
// The holder of the log's lease is gone, or the store does not answer: no
// request waits longer for the log than for an engine that does not answer.
// A log whose bytes are none takes everything with it, and is begun anew.
// A sweep is done only if the log's lease has held until it was written; who
// cannot know that writes once more.
// Without its store a process drops also what it is making.
