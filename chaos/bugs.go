package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file plants mistakes of other locks and caches before correct engines. Their runs must fail.

// A bug is planted in every process of a run.
type bug struct {
	name  string
	check check // catches the bug
	// seed is the seed of the catching run, with its engines. Without a store the locker runs alone.
	seed          int64
	locker, store string

	lock  func(client, driver.Locker) driver.Locker
	keep  func(driver.Store) driver.Store
	serve func(get, load call) call // replaces Get, and may call load
	load  func(load call) call      // replaces the cache's load
	tune  func(*schedule)           // changes the seed's schedule to show the bug; nil: every schedule does
}

// A call is a call of the cache's Get or of its load function.
type call func(ctx context.Context, key string) (string, error)

var bugs = []bug{
	{
		name: "release by plain delete", check: checkLock, seed: 101, locker: "redis",
		lock: func(c client, l driver.Locker) driver.Locker { return wrapLeases(l, deleted{free: c.free}) },
	},
	{
		name: "renew never", check: checkLock, seed: 102, locker: "memcached",
		lock: func(_ client, l driver.Locker) driver.Locker { return wrapLeases(l, neverRenewed{}) },
	},
	{
		name: "expired lease believed too long", check: checkLock, seed: 103, locker: "etcd",
		lock: func(_ client, l driver.Locker) driver.Locker { return wrapLeases(l, believed{}) },
	},
	{
		name: "two owners on one session", check: checkLock, seed: 104, locker: "zookeeper",
		lock: func(_ client, l driver.Locker) driver.Locker {
			return watched(l, &reentrant{Locker: l, mine: map[string]driver.Lease{}})
		},
	},
	{
		name: "subscribe after read", check: checkWake, seed: 105, locker: "redis",
		lock: func(_ client, l driver.Locker) driver.Locker { return &lateWatcher{l} },
	},
	{
		name: "no fencing", check: checkStore, seed: 201, locker: "redis", store: "memcached",
		keep: func(s driver.Store) driver.Store { return notified(s, &unfenced{s}) },
	},
	{
		name: "no re-read after winning", check: checkStore, seed: 202, locker: "etcd", store: "redis",
		keep: func(s driver.Store) driver.Store { return notified(s, &blind{s}) },
	},
	{
		name: "near tier that moves backwards", check: checkOrder, seed: 203, locker: "memcached", store: "redis",
		serve: backwards,
	},
	{
		name: "waiter that loads by itself", check: checkOne, seed: 204, locker: "redis", store: "memcached",
		serve: impatient,
	},
	{
		name: "waiter that is forgotten", check: checkBound, seed: 205, locker: "memcached", store: "redis",
		serve: forgetful,
	},
	{
		name: "context error that is remembered", check: checkRecovery, seed: 206, locker: "etcd", store: "memcached",
		serve: unforgiving,
	},
	{
		name: "invalidation notices that are lost unnoticed", check: checkDrop, seed: 207, locker: "zookeeper", store: "redis",
		keep: func(s driver.Store) driver.Store {
			t := &tracked{Store: s, notifier: s.(driver.Notifier), kept: map[string]sighted{}}
			return struct {
				driver.Store
				driver.Notifier
			}{t, t}
		},
		tune: trusting,
	},
	{
		name: "near tier that is deaf to notices", check: checkNear, seed: 208, locker: "redis", store: "redis",
		serve: hoarding, tune: trusting,
	},
	{
		name: "near tier that asks no store", check: checkDrop, seed: 209, locker: "redis", store: "memcached",
		serve: hoarding, tune: trusting,
	},
	{
		name: "failure without its pause", check: checkPause, seed: 210, locker: "redis", store: "memcached",
		keep: func(s driver.Store) driver.Store { return notified(s, &hasty{s}) }, tune: failing,
	},
	{
		name: "failure that outlives a newer value", check: checkOrder, seed: 211, locker: "memcached", store: "redis",
		serve: grudging, tune: failing,
	},
	{
		name: "hedge in every process", check: checkOne, seed: 212, locker: "redis", store: "memcached",
		lock: func(_ client, l driver.Locker) driver.Locker { return watched(l, &hedgers{l}) }, tune: hedging,
	},
	{
		name: "loser with a served value", check: checkLoser, seed: 213, locker: "memcached", store: "redis",
		load: proud.load, serve: proud.serve, tune: hedging,
	},
}

func bugOf(name string) (bug, error) {
	for _, b := range bugs {
		if b.name == name {
			return b, nil
		}
	}
	return bug{}, fmt.Errorf("no bug is called %q", name)
}

// watched returns l with the watches of original, if it has any.
func watched(original, l driver.Locker) driver.Locker {
	if w, ok := original.(driver.Watcher); ok {
		return struct {
			driver.Locker
			driver.Watcher
		}{l, w}
	}
	return l
}

// notified returns s with the notices of original, if it has any.
func notified(original, s driver.Store) driver.Store {
	if n, ok := original.(driver.Notifier); ok {
		return struct {
			driver.Store
			driver.Notifier
		}{s, n}
	}
	return s
}

type leaseBug interface {
	renew(ctx context.Context, l driver.Lease, ttl time.Duration) error
	release(ctx context.Context, key string, l driver.Lease) error
}

func wrapLeases(l driver.Locker, b leaseBug) driver.Locker {
	return watched(l, &buggyLocker{l, b})
}

type buggyLocker struct {
	driver.Locker
	bug leaseBug
}

func (l *buggyLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, key, ttl)
	if err != nil {
		return nil, err
	}
	return &buggyLease{lease, key, l.bug}, nil
}

type buggyLease struct {
	lease driver.Lease
	key   string
	bug   leaseBug
}

func (l *buggyLease) Renew(ctx context.Context, ttl time.Duration) error {
	return l.bug.renew(ctx, l.lease, ttl)
}

func (l *buggyLease) Release(ctx context.Context) error {
	return l.bug.release(ctx, l.key, l.lease)
}

// deleted is release by plain delete: it frees the present lease of any holder.
type deleted struct {
	free func(context.Context, string) error
}

func (deleted) renew(ctx context.Context, l driver.Lease, ttl time.Duration) error {
	return l.Renew(ctx, ttl)
}

func (d deleted) release(ctx context.Context, key string, _ driver.Lease) error {
	return d.free(ctx, key)
}

// neverRenewed reports renewals without renewing.
type neverRenewed struct{}

func (neverRenewed) renew(context.Context, driver.Lease, time.Duration) error { return nil }
func (neverRenewed) release(ctx context.Context, _ string, l driver.Lease) error {
	return l.Release(ctx)
}

// believed takes a lost lease for a held one.
type believed struct{}

func (believed) renew(ctx context.Context, l driver.Lease, ttl time.Duration) error {
	if err := l.Renew(ctx, ttl); !errors.Is(err, driver.ErrLeaseLost) {
		return err
	}
	return nil
}

func (believed) release(ctx context.Context, _ string, l driver.Lease) error {
	return l.Release(ctx)
}

// reentrant takes the session for the owner: each call on the same session has the lease too.
type reentrant struct {
	driver.Locker
	mu   sync.Mutex // guards mine
	mine map[string]driver.Lease
}

func (l *reentrant) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, key, ttl)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.mine[key] = lease
	} else if mine := l.mine[key]; errors.Is(err, driver.ErrHeld) && mine != nil && mine.Renew(ctx, ttl) == nil {
		return mine, nil
	}
	return lease, err
}

// lateWatcher subscribes after it has read, and misses a release in between.
type lateWatcher struct{ driver.Locker }

func (l *lateWatcher) Watch(ctx context.Context, seen *driver.HeldError) (<-chan struct{}, error) {
	time.Sleep(20 * time.Millisecond) // the way to the server
	lease, err := l.TryAcquire(ctx, seen.Key, 10*time.Millisecond)
	if err == nil {
		return make(chan struct{}), lease.Release(ctx)
	}
	if now, ok := errors.AsType[*driver.HeldError](err); ok {
		return l.Locker.(driver.Watcher).Watch(ctx, now)
	}
	return nil, err
}

// unfenced claims a new epoch for a late commit.
type unfenced struct{ driver.Store }

func (s *unfenced) Commit(ctx context.Context, key string, e driver.Entry) error {
	err := s.Store.Commit(ctx, key, e)
	if errors.Is(err, driver.ErrFenced) {
		if _, e.Epoch, err = s.Claim(ctx, key); err == nil {
			err = s.Store.Commit(ctx, key, e)
		}
	}
	return err
}

// blind claims without the present entry.
type blind struct{ driver.Store }

func (s *blind) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	_, epoch, err := s.Store.Claim(ctx, key)
	return driver.Entry{}, epoch, err
}

// backwards sometimes serves the value before the last one.
func backwards(get, _ call) call {
	var mu sync.Mutex // guards both maps
	last, before := map[string]string{}, map[string]string{}
	return func(ctx context.Context, key string) (string, error) {
		v, err := get(ctx, key)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && v != last[key] {
			before[key], last[key] = last[key], v
		}
		if old := before[key]; err == nil && old != "" && rand.IntN(20) == 0 {
			return old, nil
		}
		return v, err
	}
}

// impatient loads by itself if another rebuild is too slow.
func impatient(get, load call) call {
	return func(ctx context.Context, key string) (string, error) {
		waiting, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		v, err := get(waiting, key)
		if err != nil && ctx.Err() == nil {
			return load(ctx, key)
		}
		return v, err
	}
}

// forgetful wakes one in a hundred waiters only when they leave.
func forgetful(get, _ call) call {
	return func(ctx context.Context, key string) (string, error) {
		if rand.IntN(100) == 0 {
			<-ctx.Done()
			return "", ctx.Err()
		}
		return get(ctx, key)
	}
}

// unforgiving answers all callers of a key with the error of a caller that has left.
func unforgiving(get, _ call) call {
	var mu sync.Mutex // guards left
	left := map[string]error{}
	return func(ctx context.Context, key string) (string, error) {
		mu.Lock()
		err := left[key]
		mu.Unlock()
		if err != nil {
			return "", err
		}
		v, err := get(ctx, key)
		if ctx.Err() != nil && err != nil {
			mu.Lock()
			left[key] = err
			mu.Unlock()
		}
		return v, err
	}
}

// tracked keeps each read entry until a notice of its change, as a Redis client with tracking does.
// Every second notice of an invalidation is lost, although the connection is sound.
type tracked struct {
	driver.Store
	notifier driver.Notifier

	mu   sync.Mutex // guards the fields below
	kept map[string]sighted
	told int
}

type sighted struct {
	entry driver.Entry
	at    time.Time
}

func (s *tracked) Get(ctx context.Context, key string) (driver.Entry, error) {
	s.mu.Lock()
	kept, ok := s.kept[key]
	s.mu.Unlock()
	if ok {
		kept.entry.Age += time.Since(kept.at)
		return kept.entry, nil
	}
	entry, err := s.Store.Get(ctx, key)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept[key] = sighted{entry, time.Now()}
	}
	return entry, err
}

func (s *tracked) Notify(ctx context.Context, f func(driver.Notice)) {
	s.notifier.Notify(ctx, func(n driver.Notice) {
		s.mu.Lock()
		if n.Invalidated {
			s.told++
		}
		lost := n.Invalidated && s.told%2 == 0
		if !lost {
			delete(s.kept, n.Key)
		}
		s.mu.Unlock()
		if !lost {
			f(n)
		}
	})
}

// hoarding is a near tier that keeps a value for half a second, without notices and without the store.
func hoarding(get, _ call) call {
	type kept struct {
		value string
		until time.Time
	}
	var mu sync.Mutex // guards hoard
	hoard := map[string]kept{}
	return func(ctx context.Context, key string) (string, error) {
		mu.Lock()
		had := hoard[key]
		mu.Unlock()
		if time.Now().Before(had.until) {
			noteNear(ctx)
			return had.value, nil
		}
		v, err := get(ctx, key)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			hoard[key] = kept{v, time.Now().Add(500 * time.Millisecond)}
		}
		return v, err
	}
}

// hasty commits failures without a pause.
type hasty struct{ driver.Store }

func (s *hasty) Commit(ctx context.Context, key string, e driver.Entry) error {
	if e.Failures > 0 {
		e.RetryAge = e.Age
	}
	return s.Store.Commit(ctx, key, e)
}

// grudging sometimes answers with the last failure, even after newer values.
func grudging(get, _ call) call {
	var mu sync.Mutex // guards last
	last := map[string]error{}
	return func(ctx context.Context, key string) (string, error) {
		v, err := get(ctx, key)
		mu.Lock()
		defer mu.Unlock()
		if resultOf(err) == failed {
			last[key] = err
		}
		if old := last[key]; err == nil && old != nil && rand.IntN(20) == 0 {
			return "", old
		}
		return v, err
	}
}

// hedgers gives the hedger's lease to all processes.
type hedgers struct{ driver.Locker }

func (l *hedgers) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, key, ttl)
	if errors.Is(err, driver.ErrHeld) && strings.HasPrefix(ownKey(key), hedgeLease) {
		return noLease{}, nil
	}
	return lease, err
}

type noLease struct{}

func (noLease) Renew(context.Context, time.Duration) error { return nil }
func (noLease) Release(context.Context) error              { return nil }

// proud is a process that continues an abandoned load, and serves the value once.
var proud = &prouds{values: map[string]string{}}

type prouds struct {
	mu     sync.Mutex // guards values
	values map[string]string
}

func (p *prouds) load(load call) call {
	return func(ctx context.Context, key string) (string, error) {
		v, err := load(context.WithoutCancel(ctx), key)
		if ctx.Err() != nil && err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.values[key] = v
		}
		return v, err
	}
}

func (p *prouds) serve(get, _ call) call {
	return func(ctx context.Context, key string) (string, error) {
		v, err := get(ctx, key)
		p.mu.Lock()
		defer p.mu.Unlock()
		if own := p.values[key]; own != "" && err == nil {
			delete(p.values, key)
			return own, nil
		}
		return v, err
	}
}
