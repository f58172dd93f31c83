package main

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file is the live page's fleet with Bellwether, over engines that the page can inspect and kill.

type fleet struct {
	store     *ledger
	locker    *switched
	processes []*bellwether.Middleware
}

func newFleet() *fleet {
	return &fleet{
		store:  &ledger{Store: memstore.New(), keys: map[string]string{}},
		locker: &switched{Locker: locallock.New()},
	}
}

// process adds a process that loads from origin.
func (f *fleet) process(origin http.Handler) http.Handler {
	m := bellwether.NewMiddleware(bellwether.HTTPOptions{
		Fleet:  bellwether.Fleet{Store: f.store, Locker: f.locker, LeaseTTL: 2 * time.Second, NearTTL: 500 * time.Millisecond},
		Limits: bellwether.Limits{NearBytes: 1 << 20},
	})
	f.processes = append(f.processes, m)
	return m.Handler(origin)
}

func (f *fleet) close() {
	for _, m := range f.processes {
		m.Close()
	}
}

// stats adds up loads without lease or store. The locker is up if it is up for all processes.
func (f *fleet) stats() observe.Stats {
	sum := observe.Stats{LockerUp: true}
	for _, m := range f.processes {
		s := m.Stats()
		sum.Degraded += s.Degraded
		sum.LockerUp = sum.LockerUp && s.LockerUp
	}
	return sum
}

// A ledger is the fleet's store. It records the key of each page.
type ledger struct {
	*memstore.Store

	mu   sync.Mutex // guards keys
	keys map[string]string
}

// Claim implements [driver.Store].
func (l *ledger) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	l.mu.Lock()
	l.keys[path.Base(key)] = key
	l.mu.Unlock()
	return l.Store.Claim(ctx, key)
}

// entry returns a page's entry, the zero Entry if there is none.
func (l *ledger) entry(page int) driver.Entry {
	l.mu.Lock()
	key, known := l.keys[strconv.Itoa(page+1)]
	l.mu.Unlock()
	if !known {
		return driver.Entry{}
	}
	e, _ := l.Get(context.Background(), key) // no entry is the zero Entry
	return e
}

// A switched is the fleet's locker with a kill switch: dead, it refuses all requests, even a release.
type switched struct {
	*locallock.Locker
	down atomic.Bool
}

var errSwitchedOff = errors.New("the locker is switched off")

// TryAcquire implements [driver.Locker].
func (s *switched) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if s.down.Load() {
		return nil, errSwitchedOff
	}
	l, err := s.Locker.TryAcquire(ctx, key, ttl)
	if err != nil {
		return nil, err
	}
	return switchedLease{l, s}, nil
}

// Watch implements [driver.Watcher].
func (s *switched) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if s.down.Load() {
		return nil, errSwitchedOff
	}
	return s.Locker.Watch(ctx, held)
}

type switchedLease struct {
	driver.Lease
	s *switched
}

func (l switchedLease) Renew(ctx context.Context, ttl time.Duration) error {
	if l.s.down.Load() {
		return errSwitchedOff
	}
	return l.Lease.Renew(ctx, ttl)
}

func (l switchedLease) Release(ctx context.Context) error {
	if l.s.down.Load() {
		return errSwitchedOff
	}
	return l.Lease.Release(ctx)
}
