package observers_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/observers"
	"github.com/bellwether-go/bellwether/observe"
)

// A panic in one observer is reported with the key, and the others are called.
func TestSet_Panic(t *testing.T) {
	var errs, told []string
	s := observers.Set{OnError: func(key string, err error) { errs = append(errs, key+": "+err.Error()) }}
	s.Add([]observe.Observer{
		{Hit: func(context.Context, string) { panic("broken") }},
		{Hit: func(_ context.Context, key string) { told = append(told, key) }},
		{Serve: func(_ context.Context, serve observe.Serve) { told = append(told, serve.Key) }},
	})
	s.Hit(t.Context(), "k", observe.WayHit)
	s.Hit(t.Context(), "stale", observe.WayStale)
	if !slices.Equal(told, []string{"k", "stale"}) {
		t.Errorf("told %q", told)
	}
	if len(errs) != 1 || !strings.HasPrefix(errs[0], `k: telling an observer of "k": `) {
		t.Errorf("reported %q", errs)
	}
}

// Attach stops at the first failure. Detach undoes what it has attached, the last first.
func TestSet_Attach(t *testing.T) {
	var detached []int
	attach := func(n int, err error) observe.Observer {
		return observe.Observer{Attach: func(func() observe.Stats) (func(), error) {
			return func() { detached = append(detached, n) }, err
		}}
	}
	full := errors.New("full")
	var s observers.Set
	s.Add([]observe.Observer{attach(0, nil), attach(1, nil), attach(2, full), attach(3, nil)})
	if err := s.Attach(func() observe.Stats { return observe.Stats{} }); !errors.Is(err, full) || !strings.Contains(err.Error(), "Observers[2]") {
		t.Errorf("Attach: %v", err)
	}
	if s.Detach(); !slices.Equal(detached, []int{1, 0}) {
		t.Errorf("detached %v", detached)
	}
}

// The last to leave reports the herd once, be it a caller or the flight. A herd without an answer is not reported.
func TestHerd(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		name     string
		answered []durations.Instant
		err      error
		want     []observe.Herd
	}{
		{"no answer", nil, nil, nil},
		{"two answers", []durations.Instant{30, 50}, nil, []observe.Herd{{Key: "k", Callers: 2, Waited: 60, WakeLag: 10, Loaded: true}}},
		{"a failure", []durations.Instant{20}, failed, []observe.Herd{{Key: "k", Callers: 1, Waited: 10, Loaded: true, Err: failed}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var told []observe.Herd
			var s observers.Set
			s.Add([]observe.Observer{{Herd: func(h observe.Herd) { told = append(told, h) }}})
			h := s.Herd("k")
			failure := func(at durations.Instant) error {
				if at != c.answered[len(c.answered)-1] {
					t.Errorf("failure at %v", at)
				}
				return c.err
			}
			for range c.answered {
				h.Join()
			}
			for _, now := range c.answered {
				h.Answered(10, now)
				h.Leave(failure)
			}
			if len(told) != 0 {
				t.Errorf("told %v before the flight has left", told)
			}
			h.Loaded, h.Since = true, 40
			if h.Leave(failure); !slices.Equal(told, c.want) {
				t.Errorf("told %v, want %v", told, c.want)
			}
		})
	}
	var none observers.Set
	if none.Herd("k") != nil {
		t.Error("a set without observers has a herd")
	}
}

// The end is for the observers that have heard of the begin, and within has the values of the begin's context.
func TestRebuild(t *testing.T) {
	type span struct{}
	var ended []observe.Rebuild
	var s observers.Set
	s.Add([]observe.Observer{
		{Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
			return context.WithValue(ctx, span{}, "span"), func(r observe.Rebuild) { ended = append(ended, r) }
		}},
		{Rebuild: func(context.Context, string) (context.Context, func(observe.Rebuild)) { return nil, nil }},
	})
	r := s.Rebuild(observe.Rebuild{Key: "k"})
	load := r.Begin(t.Context(), time.Minute)
	request, cancel := context.WithCancel(context.Background())
	within := observers.Within(request, load, "own")
	if within.Value(span{}) != "span" {
		t.Error("the observer's value is not there")
	}
	if cancel(); within.Err() == nil {
		t.Error("the request's end is not the end")
	}
	if r.End(time.Minute+time.Second, nil); len(ended) != 1 || ended[0].Key != "k" || ended[0].Took != time.Second {
		t.Errorf("ended %+v", ended)
	}
	var none observers.Set
	if none.Rebuild(observe.Rebuild{}) != nil {
		t.Error("a set without observers has a rebuild")
	}
}
