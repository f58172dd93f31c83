package fleettest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/bellwether-go/bellwether/observe"
)

// This file is the observer of a worker process.

// A told is an observer's records. Errors cannot be encoded: herds and rebuilds have none.
type told struct {
	Herds    []observe.Herd    // of the requested key
	Rebuilds []observe.Rebuild // likewise, ended ones
	Breakers []string          // "store open to half-open", in their order
}

type listener struct {
	mu       sync.Mutex // guards all
	herds    []observe.Herd
	rebuilds []observe.Rebuild
	breakers []string
}

func (l *listener) observer() observe.Observer {
	return observe.Observer{
		Rebuild: func(context.Context, string) (context.Context, func(observe.Rebuild)) {
			return nil, func(r observe.Rebuild) {
				l.mu.Lock()
				defer l.mu.Unlock()
				r.Err = nil
				l.rebuilds = append(l.rebuilds, r)
			}
		},
		Herd: func(h observe.Herd) {
			l.mu.Lock()
			defer l.mu.Unlock()
			h.Err = nil
			l.herds = append(l.herds, h)
		},
		Breaker: func(engine observe.Engine, from, to observe.BreakerState) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.breakers = append(l.breakers, fmt.Sprintf("%v %v to %v", engine, from, to))
		},
	}
}

func (l *listener) of(key string) told {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := told{Breakers: slices.Clone(l.breakers)}
	for _, h := range l.herds {
		if h.Key == key {
			t.Herds = append(t.Herds, h)
		}
	}
	for _, r := range l.rebuilds {
		if r.Key == key {
			t.Rebuilds = append(t.Rebuilds, r)
		}
	}
	return t
}
