package observers

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/observe"
)

type instant = durations.Instant

// A Herd counts the callers of a flight. Each caller leaves once, and so does the flight. The last of them to leave
// reports the herd.
type Herd struct {
	set *Set
	key string

	aboard   atomic.Int64 // callers that have not left, and one for the flight
	answered atomic.Int64
	waited   atomic.Int64 // nanoseconds, of the answered callers
	last     atomic.Int64 // the instant of the last answer

	// Loaded and Since are written before the flight leaves.
	Loaded bool    // the flight's own load has made the result
	Since  instant // when the result was committed; 0: it was not

	mu    sync.Mutex // guards marks
	marks [][]any    // results of each observer's Caller
}

// Herd returns the herd of a new flight, nil if no observer needs it.
func (s *Set) Herd(key string) *Herd {
	if len(s.herd) == 0 && !s.callers {
		return nil
	}
	h := &Herd{set: s, key: key}
	h.aboard.Store(1)
	return h
}

// Join counts a caller. The flight has not left.
func (h *Herd) Join() { h.aboard.Add(1) }

// Introduce calls the observers' Caller for a collapsed call.
//
//go:noinline
func (h *Herd) Introduce(ctx context.Context) {
	if !h.set.callers {
		return
	}
	h.mu.Lock()
	full := len(h.marks) > 0 && slices.ContainsFunc(h.marks, func(m []any) bool { return len(m) >= observe.MaxCallers })
	h.mu.Unlock()
	if full {
		return
	}
	for i, by := range h.set.all {
		if by.Caller == nil || by.Rebuild == nil {
			continue
		}
		h.set.tell(h.key, func() {
			mark := by.Caller(ctx)
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.marks == nil {
				h.marks = make([][]any, len(h.set.all))
			}
			if len(h.marks[i]) < observe.MaxCallers {
				h.marks[i] = append(h.marks[i], mark)
			}
		})
	}
}

// callers returns the results of an observer's Caller.
func (h *Herd) callers(observer int) []any {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.marks == nil {
		return nil
	}
	return slices.Clone(h.marks[observer])
}

// Answered counts the answer, now, of a caller that began to wait at began.
//
//go:noinline
func (h *Herd) Answered(began, now instant) {
	h.answered.Add(1)
	h.waited.Add(int64(now - began))
	for last := h.last.Load(); last < int64(now) && !h.last.CompareAndSwap(last, int64(now)); last = h.last.Load() {
	}
}

// Leave takes a caller or the flight off the count, which reaches 0 once. failure returns the failure that
// answered the caller at an instant, or nil.
//
//go:noinline
func (h *Herd) Leave(failure func(at instant) error) {
	if h.aboard.Add(-1) > 0 || h.answered.Load() == 0 {
		return
	}
	last := instant(h.last.Load())
	told := observe.Herd{
		Key: h.key, Callers: int(h.answered.Load()), Waited: time.Duration(h.waited.Load()), Loaded: h.Loaded, Err: failure(last),
	}
	if h.Since > 0 {
		told.WakeLag = max(0, last-h.Since)
	}
	for _, by := range h.set.herd {
		h.set.tell(h.key, func() { by(told) })
	}
}
