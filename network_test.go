package bellwether_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file is the model's network: engines lose data, links delay, repeat, reorder and lose messages.

// An engineRoom has one store and one locker, which can each restart without data.
type engineRoom struct {
	store  engineAt[*restarted]
	locker engineAt[*locallock.Locker]

	leases   sync.Mutex // held during a call of the locker; guards the fields below
	holders  map[heldKey]driver.Lease
	violated func(format string, args ...any)
}

// An engineAt is an engine that can be replaced by a restart.
type engineAt[E any] struct {
	next func(old E) E // returns the successor of old

	mu   sync.Mutex // guards the fields below
	now  E
	gone chan struct{} // closed when now restarts
}

func (e *engineAt[E]) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone != nil {
		close(e.gone)
	}
	e.now, e.gone = e.next(e.now), make(chan struct{})
}

// present returns the engine, and a channel that is closed when it restarts.
func (e *engineAt[E]) present() (E, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now, e.gone
}

type heldKey struct {
	locker *locallock.Locker
	key    string
}

func (e *engineRoom) acquire(ctx context.Context, key heldKey, ttl time.Duration) (driver.Lease, error) {
	e.leases.Lock()
	defer e.leases.Unlock()
	lease, err := key.locker.TryAcquire(ctx, key.key, ttl)
	if err == nil {
		e.holders[key] = lease
	}
	return lease, err
}

// held calls do for a lease, which must fail if another lease holds the key.
func (e *engineRoom) held(key heldKey, lease driver.Lease, do func() error) error {
	e.leases.Lock()
	defer e.leases.Unlock()
	err := do()
	if holder := e.holders[key]; err == nil && holder != nil && holder != lease {
		e.violated("a lease of %s was renewed or released that is another's by now", key.key)
	}
	return err
}

func newEngineRoom(violated func(format string, args ...any)) *engineRoom {
	e := &engineRoom{holders: map[heldKey]driver.Lease{}, violated: violated}
	e.store.next = func(old *restarted) *restarted {
		if old == nil {
			return &restarted{store: memstore.New()}
		}
		return &restarted{memstore.New(), old.above + 1<<32}
	}
	e.locker.next = func(*locallock.Locker) *locallock.Locker { return locallock.New() }
	e.store.restart()
	e.locker.restart()
	return e
}

// A restarted store is a memstore without its predecessor's data, whose epochs it does not repeat.
type restarted struct {
	store *memstore.Store
	above uint64
}

func (s *restarted) lift(epoch uint64) uint64 {
	if epoch == 0 {
		return 0
	}
	return epoch + s.above
}

func (s *restarted) Get(ctx context.Context, key string) (driver.Entry, error) {
	e, err := s.store.Get(ctx, key)
	e.Epoch = s.lift(e.Epoch)
	return e, err
}

func (s *restarted) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	e, epoch, err := s.store.Claim(ctx, key)
	e.Epoch = s.lift(e.Epoch)
	return e, s.lift(epoch), err
}

func (s *restarted) Commit(ctx context.Context, key string, e driver.Entry) error {
	if e.Epoch <= s.above {
		return driver.ErrFenced // from a claim before the restart
	}
	e.Epoch -= s.above
	return s.store.Commit(ctx, key, e)
}

func (s *restarted) Touch(ctx context.Context, key string, of uint64, e driver.Entry) error {
	switch {
	case e.Epoch <= s.above:
		return driver.ErrFenced // as in Commit
	case of <= s.above:
		return driver.ErrNotFound
	}
	e.Epoch -= s.above
	return s.store.Touch(ctx, key, of-s.above, e)
}

func (s *restarted) Invalidate(ctx context.Context, key string) error {
	return s.store.Invalidate(ctx, key)
}

func (s *restarted) Fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	if epoch <= s.above {
		return true, nil
	}
	return s.store.Fenced(ctx, key, epoch-s.above)
}

func (s *restarted) Notify(ctx context.Context, f func(driver.Notice)) {
	s.store.Notify(ctx, func(n driver.Notice) {
		n.Epoch, n.Entry.Epoch = s.lift(n.Epoch), s.lift(n.Entry.Epoch)
		f(n)
	})
}

// A link is the connection of one process to one engine. Its fields are changed by set.
type link struct {
	dice *dice

	mu      sync.Mutex    // guards the fields below
	delay   time.Duration // maximum delay of a message
	repeat  bool          // a third of the requests arrive twice
	deaf    bool          // half of the engine's pushes are lost
	cut     bool          // all messages are lost
	refused bool          // calls fail at once
	lost    string        // the operation whose requests are lost
	stopped chan struct{} // closed when the process goes on; nil: it is not stopped
}

var errLinkRefused = errors.New("connection refused")

func (l *link) set(f func(l *link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

// runs waits until the process is not stopped.
func (l *link) runs() {
	for {
		l.mu.Lock()
		stopped := l.stopped
		l.mu.Unlock()
		if stopped == nil {
			return
		}
		<-stopped
	}
}

// carries waits for one message's delay, and reports whether the message arrives.
func (l *link) carries() bool {
	l.mu.Lock()
	delay, cut := l.delay, l.cut
	l.mu.Unlock()
	time.Sleep(l.dice.upTo(delay))
	l.mu.Lock()
	defer l.mu.Unlock()
	return !cut && !l.cut
}

// tells is carries for a push of the engine.
func (l *link) tells() bool {
	l.mu.Lock()
	deaf := l.deaf
	l.mu.Unlock()
	lost := deaf && l.dice.roll(2) == 0
	arrives := l.carries()
	l.runs()
	return arrives && !lost
}

// ask runs do at the engine and returns its answer. If its caller has gone, late gets the answer.
func ask[T any](ctx context.Context, l *link, op string, do func() T, late func(T)) (answer T, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	l.mu.Lock()
	refused, lost, repeat := l.refused, l.lost == op, l.repeat
	l.mu.Unlock()
	if refused {
		return answer, errLinkRefused
	}
	answers := make(chan T)
	send := func() {
		l.runs()
		if !l.carries() || lost {
			return
		}
		v := do()
		if !l.carries() {
			if late != nil {
				late(v)
			}
			return
		}
		l.runs()
		select {
		case answers <- v:
		case <-ctx.Done():
			if late != nil {
				late(v)
			}
		}
	}
	go send()
	if repeat && late == nil && l.dice.roll(3) == 0 {
		go send()
	}
	select {
	case answer = <-answers:
		return answer, nil
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// A linkStore is the store as one process sees it.
type linkStore struct {
	*link
	room *engineRoom
}

type storeAnswer struct {
	entry driver.Entry
	epoch uint64
	yes   bool
	many  []storeAnswer // of getMany, by the index of the key
	err   error
}

func (s *linkStore) ask(ctx context.Context, op string, do func(ctx context.Context, store *restarted) storeAnswer) storeAnswer {
	a, err := ask(ctx, s.link, op, func() storeAnswer {
		store, _ := s.room.store.present()
		return do(context.WithoutCancel(ctx), store)
	}, nil)
	if err != nil {
		a.err = err
	}
	return a
}

func (s *linkStore) Get(ctx context.Context, key string) (driver.Entry, error) {
	a := s.ask(ctx, "get", func(ctx context.Context, store *restarted) (a storeAnswer) {
		a.entry, a.err = store.Get(ctx, key)
		return a
	})
	return a.entry, a.err
}

func (s *linkStore) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	a := s.ask(ctx, "claim", func(ctx context.Context, store *restarted) (a storeAnswer) {
		a.entry, a.epoch, a.err = store.Claim(ctx, key)
		return a
	})
	return a.entry, a.epoch, a.err
}

func (s *linkStore) Commit(ctx context.Context, key string, e driver.Entry) error {
	return s.commit(ctx, e, func(ctx context.Context, store *restarted, arrived driver.Entry) error {
		return store.Commit(ctx, key, arrived)
	})
}

func (s *linkStore) touch(ctx context.Context, key string, of uint64, e driver.Entry) error {
	return s.commit(ctx, e, func(ctx context.Context, store *restarted, arrived driver.Entry) error {
		return store.Touch(ctx, key, of, arrived)
	})
}

// commit sends the entry, which is older when it arrives.
func (s *linkStore) commit(ctx context.Context, e driver.Entry, do func(ctx context.Context, store *restarted, arrived driver.Entry) error) error {
	sent := time.Now()
	return s.ask(ctx, "commit", func(ctx context.Context, store *restarted) (a storeAnswer) {
		arrived := e
		arrived.Age += time.Since(sent)
		a.err = do(ctx, store, arrived)
		return a
	}).err
}

func (s *linkStore) Invalidate(ctx context.Context, key string) error {
	return s.ask(ctx, "invalidate", func(ctx context.Context, store *restarted) (a storeAnswer) {
		a.err = store.Invalidate(ctx, key)
		return a
	}).err
}

func (s *linkStore) fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	a := s.ask(ctx, "fenced", func(ctx context.Context, store *restarted) (a storeAnswer) {
		a.yes, a.err = store.Fenced(ctx, key, epoch)
		return a
	})
	return a.yes, a.err
}

// notify implements Notifier. Notices arrive late and out of order.
func (s *linkStore) notify(ctx context.Context, f func(driver.Notice)) {
	var one sync.Mutex // serializes calls of f
	var under sync.WaitGroup
	defer under.Wait()
	for ctx.Err() == nil {
		store, gone := s.room.store.present()
		until, cancel := context.WithCancel(ctx)
		under.Go(func() {
			select {
			case <-gone:
			case <-until.Done():
			}
			cancel()
		})
		store.Notify(until, func(n driver.Notice) {
			sent := time.Now()
			under.Go(func() {
				if !s.tells() {
					return
				}
				if n.Entry.Epoch != 0 {
					n.Entry.Age += time.Since(sent)
				}
				one.Lock()
				defer one.Unlock()
				if ctx.Err() == nil {
					f(n)
				}
			})
		})
		cancel()
	}
}

// getMany implements BatchGetter with one request.
func (s *linkStore) getMany(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
	a := s.ask(ctx, "get", func(ctx context.Context, store *restarted) (a storeAnswer) {
		a.many = make([]storeAnswer, len(keys))
		for i, key := range keys {
			a.many[i].entry, a.many[i].err = store.Get(ctx, key)
		}
		return a
	})
	for i := range keys {
		if a.err != nil {
			each(i, driver.Entry{}, a.err)
			continue
		}
		each(i, a.many[i].entry, a.many[i].err)
	}
}

type linkLocker struct {
	*link
	room *engineRoom
}

// seenThere is a locker's Seen, with a channel that is closed when the locker restarts.
type seenThere struct {
	locker *locallock.Locker
	gone   <-chan struct{}
	seen   any
}

type lockAnswer struct {
	lease driver.Lease
	err   error
}

func (l *linkLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	asked := time.Now()
	a, err := ask(ctx, l.link, "acquire", func() lockAnswer { return l.grant(ctx, key, ttl, asked) }, func(a lockAnswer) { a.forsake(ctx) })
	if err != nil {
		return nil, err
	}
	return a.lease, a.err
}

// grant is the engine's answer to a request that was sent at the time then.
func (l *linkLocker) grant(ctx context.Context, key string, ttl time.Duration, then time.Time) lockAnswer {
	locker, gone := l.room.locker.present()
	left := ttl - time.Since(then)
	if left <= 0 {
		return lockAnswer{err: context.DeadlineExceeded} // an answer after the lease's end
	}
	lease, err := l.room.acquire(context.WithoutCancel(ctx), heldKey{locker, key}, left)
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		held.Seen = seenThere{locker, gone, held.Seen}
	}
	if err != nil {
		return lockAnswer{err: err}
	}
	return lockAnswer{lease: &linkLease{link: l.link, room: l.room, lease: lease, gone: gone, key: heldKey{locker, key}}}
}

// forsake releases a lease that has no holder.
func (a lockAnswer) forsake(ctx context.Context) {
	if a.lease != nil {
		a.lease.(*linkLease).lease.Release(context.WithoutCancel(ctx))
	}
}

// A linkEngine is store and locker at once. Elections and commits go over the store's link.
type linkEngine struct {
	*linkStore
	touches
	locker *linkLocker
}

func (e *linkEngine) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return e.locker.TryAcquire(ctx, key, ttl)
}

type electAnswer struct {
	lockAnswer
	won driver.Election
}

func (e *linkEngine) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	asked := time.Now()
	a, err := ask(ctx, e.link, "elect", func() (a electAnswer) {
		ctx := context.WithoutCancel(ctx)
		store, _ := e.room.store.present()
		a.won.Entry, _ = store.Get(ctx, key)
		if a.won.Entry.Fresh() && a.won.Entry.Epoch > past {
			return a
		}
		a.lockAnswer = e.locker.grant(ctx, key, ttl, asked)
		if held, ok := errors.AsType[*driver.HeldError](a.err); ok {
			a.won.Held, a.err = held, nil
		}
		if a.lease != nil {
			a.won.Lease = a.lease
			a.won.Entry, a.won.Epoch, a.err = store.Claim(ctx, key)
		}
		return a
	}, func(a electAnswer) { a.forsake(ctx) })
	if err == nil {
		err = a.err
	}
	return a.won, err
}

func (e *linkEngine) CommitAndRelease(ctx context.Context, key string, entry driver.Entry, lease driver.Lease) error {
	return e.commit(ctx, entry, func(ctx context.Context, store *restarted, arrived driver.Entry) error {
		err := store.Commit(ctx, key, arrived)
		if err == nil {
			l := lease.(*linkLease)
			l.room.held(l.key, l.lease, func() error { return l.lease.Release(ctx) })
		}
		return err
	})
}

type watchedEngine struct{ *linkEngine }

func (e watchedEngine) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return e.locker.watchEnd(ctx, held)
}

func (e watchedEngine) GetMany(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
	e.getMany(ctx, keys, each)
}

// A linkLease is a lease until its locker restarts.
type linkLease struct {
	*link
	room  *engineRoom
	lease driver.Lease
	gone  <-chan struct{}
	key   heldKey
	lost  atomic.Bool // its holder knows that the lease is lost
}

func (l *linkLease) ask(ctx context.Context, op string, do func(ctx context.Context) error) error {
	told, err := ask(ctx, l.link, op, func() storeAnswer {
		select {
		case <-l.gone:
			return storeAnswer{err: driver.ErrLeaseLost}
		default:
			return storeAnswer{err: l.room.held(l.key, l.lease, func() error { return do(context.WithoutCancel(ctx)) })}
		}
	}, nil)
	if err != nil {
		return err
	}
	return told.err
}

func (l *linkLease) Renew(ctx context.Context, ttl time.Duration) error {
	if l.lost.Load() {
		l.room.violated("the lease of %s is renewed after its loss", l.key.key)
	}
	asked := time.Now()
	err := l.ask(ctx, "renew", func(ctx context.Context) error {
		if left := ttl - time.Since(asked); left > 0 {
			return l.lease.Renew(ctx, left)
		}
		return driver.ErrLeaseLost
	})
	if errors.Is(err, driver.ErrLeaseLost) {
		l.lost.Store(true)
	}
	return err
}

func (l *linkLease) Release(ctx context.Context) error {
	return l.ask(ctx, "release", l.lease.Release)
}

func (l *linkLocker) watchEnd(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	there := held.Seen.(seenThere)
	inner := *held
	inner.Seen = there.seen
	ended, err := there.locker.Watch(ctx, &inner)
	if err != nil {
		return nil, err
	}
	told := make(chan struct{})
	go func() {
		select {
		case <-ended:
		case <-there.gone: // the connection breaks off
		case <-ctx.Done():
			return
		}
		if l.tells() {
			close(told)
		}
	}()
	return told, nil
}
