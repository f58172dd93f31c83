package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
)

// This file keeps the log short: a line at each end of an outage, and frequent events once a minute.

// A lookout finds out when an engine stops answering and answers again. Otherwise it asks nothing.
type lookout struct {
	log     *slog.Logger
	engines []engine
	alarm   chan struct{}
}

// probePause is the time between two probes of an engine that is down.
const probePause = time.Second

func newLookout(log *slog.Logger, engines []engine) *lookout {
	return &lookout{log: log, engines: engines, alarm: make(chan struct{}, 1)}
}

// raise reports a call without an answer. It does not wait.
func (l *lookout) raise() {
	select {
	case l.alarm <- struct{}{}:
	default:
	}
}

// run probes the engines once, and then after each raise, until ctx ends.
func (l *lookout) run(ctx context.Context) {
	down := make([]time.Time, len(l.engines)) // since when; zero if it is up
	for {
		anyDown := false
		for i, e := range l.engines {
			down[i] = l.look(ctx, e, down[i])
			anyDown = anyDown || !down[i].IsZero()
		}
		select {
		case <-time.After(probePause):
		case <-ctx.Done():
			return
		}
		if !anyDown {
			select {
			case <-l.alarm:
			case <-ctx.Done():
				return
			}
		}
	}
}

// look probes an engine, logs a change, and returns since when the engine is down.
func (l *lookout) look(ctx context.Context, e engine, since time.Time) time.Time {
	limited, cancel := context.WithTimeout(ctx, probePause)
	defer cancel()
	// The client's panic on an engine's bytes must not end the server. The cache's own calls have such a guard.
	err := fault.Guard(func() error { return e.probe(limited) })
	switch {
	case ctx.Err() != nil: // proves nothing about the engine
	case err != nil && since.IsZero():
		l.log.Warn("engine unreachable: each process rebuilds for itself until the engine answers",
			"engine", e.name, "addr", strings.Join(e.addrs, ","), "err", err)
		return time.Now()
	case err == nil && !since.IsZero():
		l.log.Info("engine answers again", "engine", e.name, "addr", strings.Join(e.addrs, ","), "after", time.Since(since).Round(time.Millisecond))
		return time.Time{}
	}
	return since
}

// repeats logs a kind's first event, and then one a minute with a count. It is safe for concurrent use.
type repeats struct {
	log *slog.Logger

	mu    sync.Mutex // guards kinds
	kinds map[string]*repeat
}

type repeat struct {
	logged time.Time
	since  int // unlogged events
}

// repeatPause is the pause between two lines of a kind.
const repeatPause = time.Minute

func newRepeats(log *slog.Logger) *repeats {
	return &repeats{log: log, kinds: make(map[string]*repeat)}
}

// warn logs the event, or counts it. There are few kinds, so each is kept for good.
func (r *repeats) warn(kind, msg string, args ...any) {
	r.mu.Lock()
	k := r.kinds[kind]
	if k == nil {
		k = &repeat{}
		r.kinds[kind] = k
	}
	if !k.logged.IsZero() && time.Since(k.logged) < repeatPause {
		k.since++
		r.mu.Unlock()
		return
	}
	omitted := k.since
	k.logged, k.since = time.Now(), 0
	r.mu.Unlock()
	if omitted > 0 {
		args = append(args, "omitted", omitted)
	}
	r.log.Warn(msg, args...)
}

// logger returns a log.Logger that warns.
func (r *repeats) logger(kind string) *log.Logger {
	return log.New(lineWriter{r, kind}, "", 0)
}

type lineWriter struct {
	r    *repeats
	kind string
}

func (w lineWriter) Write(line []byte) (int, error) {
	w.r.warn(w.kind, strings.TrimSpace(string(line)))
	return len(line), nil
}

// kindOf distinguishes errors that deserve a line of their own.
func kindOf(err error) string {
	for _, kind := range []error{
		bellwether.ErrUnavailable, driver.ErrLeaseLost, driver.ErrFenced,
		driver.ErrCorrupt, driver.ErrTooLarge,
	} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return "other"
}
