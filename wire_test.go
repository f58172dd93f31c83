package bellwether_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
)

// This file has the tests' fakes of a Store, a Locker and its leases, with their faults as data.

// A fault runs before the engine gets a call. Its error replaces the engine's answer.
type fault func(ctx context.Context, op string) error

var errRefused = errors.New("connection refused")

func refuse(context.Context, string) error { return errRefused }

func blackHole(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func takes(d time.Duration) fault {
	return func(ctx context.Context, _ string) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// on restricts f to some operations.
func on(f fault, ops ...string) fault {
	return func(ctx context.Context, op string) error {
		for _, o := range ops {
			if o == op {
				return f(ctx, op)
			}
		}
		return nil
	}
}

func answer(err error) fault { return func(context.Context, string) error { return err } }

type wire struct {
	trip time.Duration         // duration of each call; set before use
	only func(key string) bool // keys to which f applies; nil: all. Set before use.
	busy bool                  // allows more calls than spinning; set before use

	mu    sync.Mutex // guards the fields below
	f     fault
	calls map[string]int
	total int
}

func (w *wire) set(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.f = f
}

// spinning is more calls than a test makes. Calls beyond it are slowed down, so that a loop without
// a pause fails its test, and does not stop the bubble's clock.
const spinning = 5000

func (w *wire) call(ctx context.Context, op, key string) error {
	w.mu.Lock()
	if w.calls == nil {
		w.calls = map[string]int{}
	}
	w.calls[op]++
	w.total++
	n, f := w.total, w.f
	w.mu.Unlock()
	if n > spinning && !w.busy {
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(w.trip)
	if f == nil || w.only != nil && !w.only(ownKey(key)) {
		return nil
	}
	return f(ctx, op)
}

// faults applies the faults of ops without counting calls.
func (w *wire) faults(ctx context.Context, ops []string) error {
	w.mu.Lock()
	f := w.f
	w.mu.Unlock()
	for _, op := range ops {
		if f == nil {
			return nil
		}
		if err := f(ctx, op); err != nil {
			return err
		}
	}
	return nil
}

func (w *wire) count(ops ...string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(ops) == 0 {
		return w.total
	}
	n := 0
	for _, op := range ops {
		n += w.calls[op]
	}
	return n
}

func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.calls)
	w.total = 0
}

// A wiredStore is a store behind a wire. Methods such as full add optional interfaces.
type wiredStore struct {
	*wire
	store  driver.Store
	limit  func(driver.Entry) error            // refuses entries; set before use
	mute   map[string]bool                     // keys without an answer in GetMany; set before use
	tamper atomic.Pointer[func(*driver.Entry)] // changes the results of Get and Claim
	behind atomic.Pointer[driver.Entry]        // the entry, zero for none, that Get finds in a copy that lags; nil: no lag
	reply  atomic.Int64                        // delay of a reply in nanoseconds
	lose   atomic.Bool                         // loses the reply to the next successful commit
}

func wiredTo(store driver.Store) *wiredStore { return &wiredStore{wire: &wire{}, store: store} }

func (s *wiredStore) tampered(e driver.Entry) driver.Entry {
	if f := s.tamper.Load(); f != nil {
		(*f)(&e)
	}
	return e
}

func (s *wiredStore) replies() { time.Sleep(time.Duration(s.reply.Load())) }

func (s *wiredStore) Get(ctx context.Context, key string) (driver.Entry, error) {
	if err := s.call(ctx, "get", key); err != nil {
		return driver.Entry{}, err
	}
	defer s.replies()
	if e := s.behind.Load(); e != nil {
		if e.Epoch == 0 {
			return driver.Entry{}, driver.ErrNotFound
		}
		return *e, nil
	}
	e, err := s.store.Get(ctx, key)
	return s.tampered(e), err
}

func (s *wiredStore) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	if err := s.call(ctx, "claim", key); err != nil {
		return driver.Entry{}, 0, err
	}
	defer s.replies()
	e, epoch, err := s.store.Claim(ctx, key)
	return s.tampered(e), epoch, err
}

func (s *wiredStore) Commit(ctx context.Context, key string, e driver.Entry) error {
	if err := s.call(ctx, "commit", key); err != nil {
		return err
	}
	if err := s.refused(e); err != nil {
		return err
	}
	defer s.replies()
	return s.replied(s.store.Commit(ctx, key, e))
}

func (s *wiredStore) replied(err error) error {
	if err == nil && s.lose.CompareAndSwap(true, false) {
		time.Sleep(time.Millisecond)
		return errRefused
	}
	return err
}

func (s *wiredStore) refused(e driver.Entry) error {
	if s.limit == nil {
		return nil
	}
	return s.limit(e)
}

func (s *wiredStore) Invalidate(ctx context.Context, key string) error {
	if err := s.call(ctx, "invalidate", key); err != nil {
		return err
	}
	defer s.replies()
	return s.store.Invalidate(ctx, key)
}

func (s *wiredStore) getMany(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
	if err := s.call(ctx, "getmany", ""); err != nil {
		for i := range keys {
			each(i, driver.Entry{}, err)
		}
		return
	}
	var wg sync.WaitGroup
	for i, key := range keys {
		if s.mute[ownKey(key)] {
			wg.Go(func() {
				<-ctx.Done()
				each(i, driver.Entry{}, ctx.Err())
			})
			continue
		}
		e, err := s.store.Get(ctx, key)
		each(i, s.tampered(e), err)
	}
	wg.Wait()
}

// notify sends the engine's notices over the wire. A fault of "notice" loses a notice.
func (s *wiredStore) notify(ctx context.Context, f func(driver.Notice)) {
	s.store.(driver.Notifier).Notify(ctx, func(n driver.Notice) {
		sent := time.Now()
		if s.faults(ctx, []string{"notice"}) != nil {
			return
		}
		if n.Entry.Epoch != 0 {
			n.Entry.Age += time.Since(sent)
			n.Entry = s.tampered(n.Entry)
		}
		f(n)
	})
}

func (s *wiredStore) fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	if err := s.call(ctx, "fenced", key); err != nil {
		return false, err
	}
	return s.store.(driver.Fencer).Fenced(ctx, key, epoch)
}

func (s *wiredStore) touch(ctx context.Context, key string, of uint64, e driver.Entry) error {
	if err := s.call(ctx, "touch", key); err != nil {
		return err
	}
	if err := s.refused(e); err != nil {
		return err
	}
	return s.replied(s.store.(driver.Toucher).Touch(ctx, key, of, e))
}

// farStore and farLocker are a millisecond away, as Redis is.
func farStore(store driver.Store) *wiredStore {
	s := wiredTo(store)
	s.trip = time.Millisecond
	return s
}

func farLocker() driver.Locker {
	l := wiredLocks(locallock.New())
	l.trip = time.Millisecond
	return polling(l)
}

type batchingStore struct {
	*wiredStore
	getsMany
}

func (s *wiredStore) batching() batchingStore { return batchingStore{s, s.getMany} }

// muted returns a store whose GetMany does not answer for some keys.
func muted(store driver.Store, keys map[string]bool) batchingStore {
	s := wiredTo(store)
	s.mute = keys
	return s.batching()
}

func (s *wiredStore) hearing() driver.Store {
	return struct {
		*wiredStore
		notifies
	}{s, s.notify}
}

func (s *wiredStore) touching() driver.Store {
	return struct {
		*wiredStore
		touches
	}{s, s.touch}
}

func (s *wiredStore) fencing() driver.Store {
	return struct {
		*wiredStore
		fences
	}{s, s.fenced}
}

// full returns the store with all abilities of a memstore except elections.
func (s *wiredStore) full() driver.Store {
	return struct {
		*wiredStore
		getsMany
		notifies
		fences
		touches
	}{s, s.getMany, s.notify, s.fenced, s.touch}
}

// A wiredLocker is a locker behind a wire, with Watch, which polling hides.
type wiredLocker struct {
	*wire
	locker interface {
		driver.Locker
		driver.Watcher
	}
	losing func(key string) loses                          // reports a lease's loss; nil: no reports. Set before use.
	watch  atomic.Pointer[func() (<-chan struct{}, error)] // replaces the engine's Watch
	held   atomic.Pointer[func(*driver.HeldError) error]

	taken, renewed []time.Duration // durations of leases and renewals; guarded by mu
}

func wiredLocks(locker interface {
	driver.Locker
	driver.Watcher
}) *wiredLocker {
	return &wiredLocker{wire: &wire{}, locker: locker}
}

func (l *wiredLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if err := l.call(ctx, "acquire", key); err != nil {
		return nil, err
	}
	lease, err := l.locker.TryAcquire(ctx, key, ttl)
	if err != nil {
		if f := l.held.Load(); f != nil {
			if held, ok := errors.AsType[*driver.HeldError](err); ok {
				return nil, (*f)(held)
			}
		}
		return nil, err
	}
	l.mu.Lock()
	l.taken = append(l.taken, ttl)
	l.mu.Unlock()
	wired := &wiredLease{l, key, lease}
	if l.losing == nil {
		return wired, nil
	}
	if tell := l.losing(key); tell != nil {
		return struct {
			*wiredLease
			loses
		}{wired, tell}, nil
	}
	return wired, nil
}

// lengths returns the durations of the leases and renewals since its last call.
func (l *wiredLocker) lengths() (taken, renewed []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken, renewed = l.taken, l.renewed
	l.taken, l.renewed = nil, nil
	return taken, renewed
}

// losesFirst loses the first lease of a key after a second.
func losesFirst(key string) func(string) loses {
	var taken atomic.Bool
	return func(of string) loses {
		if !strings.HasSuffix(of, key) || taken.Swap(true) {
			return nil
		}
		lost := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(lost) })
		return func() <-chan struct{} { return lost }
	}
}

func (l *wiredLocker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if err := l.call(ctx, "watch", held.Key); err != nil {
		return nil, err
	}
	if f := l.watch.Load(); f != nil {
		return (*f)()
	}
	return l.locker.Watch(ctx, held)
}

type wiredLease struct {
	locker *wiredLocker
	key    string
	lease  driver.Lease
}

func (l *wiredLease) Renew(ctx context.Context, ttl time.Duration) error {
	l.locker.mu.Lock()
	l.locker.renewed = append(l.locker.renewed, ttl)
	l.locker.mu.Unlock()
	if err := l.locker.call(ctx, "renew", l.key); err != nil {
		return err
	}
	return l.lease.Renew(ctx, ttl)
}

func (l *wiredLease) Release(ctx context.Context) error {
	if err := l.locker.call(ctx, "release", l.key); err != nil {
		return err
	}
	return l.lease.Release(ctx)
}

// A wiredEngine is store and locker at once. A combined request has the faults of its operations.
type wiredEngine struct {
	*wiredStore
	locker *wiredLocker
}

func (e wiredEngine) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return e.locker.TryAcquire(ctx, key, ttl)
}

func (e wiredEngine) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return e.locker.Watch(ctx, held)
}

// request is a combined request of the store and the locker.
func (e wiredEngine) request(ctx context.Context, op, key string, ofStore, ofLocker []string) error {
	if err := e.call(ctx, op, key); err != nil {
		return err
	}
	if err := e.faults(ctx, ofStore); err != nil {
		return err
	}
	return e.locker.faults(ctx, ofLocker)
}

func (e wiredEngine) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	if err := e.request(ctx, "elect", key, []string{"get", "claim"}, []string{"acquire"}); err != nil {
		return driver.Election{}, err
	}
	won, err := e.store.(driver.Elector).Elect(ctx, key, past, ttl)
	won.Entry = e.tampered(won.Entry)
	if won.Lease != nil {
		won.Lease = &wiredLease{e.locker, key, won.Lease}
	}
	return won, err
}

func (e wiredEngine) CommitAndRelease(ctx context.Context, key string, entry driver.Entry, lease driver.Lease) error {
	if err := e.request(ctx, "commit and release", key, []string{"commit"}, []string{"release"}); err != nil {
		return err
	}
	if err := e.refused(entry); err != nil {
		return err
	}
	return e.store.(driver.Elector).CommitAndRelease(ctx, key, entry, lease.(*wiredLease).lease)
}

type batchingEngine struct{ wiredEngine }

func (e *batchingEngine) GetMany(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
	e.getMany(ctx, keys, each)
}

// every calls f after each pause on its own goroutine, until stop is called.
func every(pause time.Duration, f func()) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		for {
			select {
			case <-stopped:
				return
			case <-time.After(pause):
				f()
			}
		}
	}()
	return func() { close(stopped) }
}
