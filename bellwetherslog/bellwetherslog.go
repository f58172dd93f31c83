// Package bellwetherslog logs a cache's errors, rebuilds and engine outages.
package bellwetherslog

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/observe"
)

// Observe returns an observer that writes records to log, for the Options.Observers of any number
// of caches:
//
//   - errors of Observer.Error: Error for a panic of user code and for bytes that do not decode,
//     Info for commits and leases that came too late, Warn for other errors, such as an engine
//     without an answer
//   - the end of a rebuild: Error with the stack if the load panicked, Warn if it failed, Info if
//     it was a takeover, Debug otherwise
//   - changes of a breaker: Warn when it opens, Info when it closes, Debug between
//
// The attributes are key, err, kind, stack, outcome, took, takeover, lease_lost, engine, from and to, where
// they apply. To tell caches apart, give each an observer with a logger such as log.With("cache", "users"). A
// key may be personal; a ReplaceAttr of the handler can remove it.
//
// pause limits the records during an outage. For the duration of pause after a record of level Info or
// above, further records of its kind are only counted; the next record has the count as the attribute
// omitted. With a pause of 0 all records are written. Changes of a breaker are always written. Observe panics
// without a logger.
func Observe(log *slog.Logger, pause time.Duration) observe.Observer {
	if log == nil { // otherwise each record would panic, and a panic of Observer.Error reaches nobody
		panic(errors.New("bellwetherslog: Observe needs a logger, such as slog.Default()"))
	}
	w := &writer{log: log, pause: pause, kinds: make(map[string]*kind)}
	return observe.Observer{Error: w.failure, Rebuild: w.rebuild, Breaker: w.breaker}
}

// A writer is safe for concurrent use.
type writer struct {
	log   *slog.Logger
	pause time.Duration

	mu    sync.Mutex // guards kinds, a small set
	kinds map[string]*kind
}

type kind struct {
	written time.Time
	omitted int // since written
}

func (w *writer) write(level slog.Level, name, msg string, attrs ...slog.Attr) {
	ctx := context.Background()
	if !w.log.Enabled(ctx, level) {
		return
	}
	if w.pause > 0 && level >= slog.LevelInfo {
		w.mu.Lock()
		k := w.kinds[name]
		if k == nil {
			k = &kind{}
			w.kinds[name] = k
		}
		if !k.written.IsZero() && time.Since(k.written) < w.pause {
			k.omitted++
			w.mu.Unlock()
			return
		}
		if k.omitted > 0 {
			attrs = append(attrs, slog.Int("omitted", k.omitted))
		}
		k.written, k.omitted = time.Now(), 0
		w.mu.Unlock()
	}
	w.log.LogAttrs(ctx, level, msg, attrs...)
}

// kindOf returns the kind of an error, for readers and for counting, and its level.
func kindOf(err error) (string, slog.Level) {
	if _, ok := errors.AsType[*bellwether.PanicError](err); ok {
		return "panic", slog.LevelError
	}
	for _, k := range []struct {
		is    error
		name  string
		level slog.Level
	}{
		{bellwether.ErrUnavailable, "unavailable", slog.LevelWarn},
		{driver.ErrCorrupt, "corrupt", slog.LevelError},
		{driver.ErrTooLarge, "too large", slog.LevelWarn},
		{driver.ErrFenced, "fenced", slog.LevelInfo},
		{driver.ErrLeaseLost, "lease lost", slog.LevelInfo},
	} {
		if errors.Is(err, k.is) {
			return k.name, k.level
		}
	}
	return "other", slog.LevelWarn
}

func (w *writer) failure(key string, err error) {
	name, level := kindOf(err)
	w.write(level, name, "cache error", slog.String("kind", name), slog.String("key", key), slog.Any("err", err))
}

func (w *writer) rebuild(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
	return ctx, func(r observe.Rebuild) {
		level, name := slog.LevelDebug, "rebuild"
		if r.Takeover {
			level, name = slog.LevelInfo, "takeover"
		}
		attrs := []slog.Attr{
			slog.String("key", r.Key), slog.String("outcome", r.Outcome.String()), slog.Duration("took", r.Took),
			slog.Bool("takeover", r.Takeover), slog.Bool("lease_lost", r.LeaseLost),
		}
		if r.Err != nil {
			level, name = slog.LevelWarn, "load"
			attrs = append(attrs, slog.Any("err", r.Err))
		}
		if p, ok := errors.AsType[*bellwether.PanicError](r.Err); ok {
			level, name = slog.LevelError, "load panicked"
			attrs = append(attrs, slog.String("stack", string(p.Stack)))
		}
		w.write(level, name, "rebuild", attrs...)
	}
}

func (w *writer) breaker(engine observe.Engine, from, to observe.BreakerState) {
	level := slog.LevelDebug
	switch {
	// An engine that stays down alternates between half-open and open.
	case to == observe.BreakerOpen && from == observe.BreakerClosed:
		level = slog.LevelWarn
	case to == observe.BreakerClosed:
		level = slog.LevelInfo
	}
	w.log.LogAttrs(context.Background(), level, "breaker",
		slog.String("engine", engine.String()), slog.String("from", from.String()), slog.String("to", to.String()))
}
