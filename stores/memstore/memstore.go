// Package memstore keeps entries in the memory of one process, for several caches of one program
// and for tests. It is also the shortest implementation of [driver.Store] and [driver.Elector].
package memstore

import (
	"bytes"
	"container/heap"
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
)

const (
	// retention is how long a record without an entry is kept: longer than a rebuild, whose commit needs it.
	retention = time.Hour

	// overhead is the approximate size of a record beside its key and its entry.
	overhead = 400
)

// A Store is a [driver.Store] in memory. Create it with [New]; the zero Store is not usable. It is safe for
// concurrent use, has no goroutines and needs no closing. A Store is also a [driver.Notifier], a
// [driver.BatchGetter], a [driver.Fencer], a [driver.Toucher] and, with the leases of its own
// [locallock.Locker], a [driver.Elector]. Commit copies the entry. Values from Get and Claim share memory
// with the store.
type Store struct {
	// MaxBytes bounds the approximate memory of keys, entries and claims; the least recently used
	// are evicted. An entry that does not fit alone is refused with ErrTooLarge. The default is 64
	// MiB. Set MaxBytes before first use.
	MaxBytes int

	locker *locallock.Locker

	mu sync.Mutex // guards all below
	// epoch is the last issued epoch of all keys: it goes on rising when a key's record is evicted.
	epoch   uint64
	records map[string]*record
	used    list.List // of *record, the last used first
	due     dueHeap   // the same records, the first due first
	bytes   int       // the sum of their sizes
	// listeners are the calls of Notify, each with its queue.
	listeners map[chan driver.Notice]struct{}
}

// queued is the largest number of waiting notices per listener. Further notices are lost.
const queued = 1024

// New returns an empty store.
func New() *Store {
	return &Store{MaxBytes: 64 << 20, locker: locallock.New(), records: make(map[string]*record), listeners: make(map[chan driver.Notice]struct{})}
}

// A record is the data of one key. Eviction, time and Invalidate drop the entry, the counter and the floor
// together. That is safe: without a record no commit is accepted, and a new record's floor is above all
// issued epochs.
type record struct {
	key     string
	counter uint64 // the last epoch issued for the key
	floor   uint64 // the last committed epoch, or an epoch never issued

	data      []byte       // the encoded entry, or nil
	entry     driver.Entry // data decoded, with the Age of the commit, or the zero Entry
	committed time.Time
	expires   time.Time // of the entry
	forget    time.Time // of the record

	element *list.Element // in used
	index   int           // in due
}

// fences reports whether a commit of the epoch is refused. A nil r, a forgotten claim, refuses all.
func (r *record) fences(epoch uint64) bool {
	return r == nil || epoch < r.floor || epoch > r.counter
}

func (r *record) size() int { return overhead + len(r.key) + cap(r.data) }

// deadline is the time to drop the entry, or the record without an entry.
func (r *record) deadline() time.Time {
	if r.data != nil {
		return r.expires
	}
	return r.forget
}

// present returns the entry as of now, or the zero Entry.
func (r *record) present(now time.Time) driver.Entry {
	if r.data == nil {
		return driver.Entry{}
	}
	e := r.entry
	e.Age += now.Sub(r.committed) // no overflow: now is before the end of its life
	return e
}

// Get implements [driver.Store].
func (s *Store) Get(ctx context.Context, key string) (driver.Entry, error) {
	if err := ctx.Err(); err != nil {
		return driver.Entry{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.tidy()
	r := s.records[key]
	if r == nil || r.data == nil {
		return driver.Entry{}, driver.ErrNotFound
	}
	s.used.MoveToFront(r.element)
	return r.present(now), nil
}

// GetMany implements [driver.BatchGetter].
func (s *Store) GetMany(ctx context.Context, keys []string, each func(i int, e driver.Entry, err error)) {
	for i, key := range keys {
		e, err := s.Get(ctx, key)
		each(i, e, err)
	}
}

// Claim implements [driver.Store].
func (s *Store) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	if err := ctx.Err(); err != nil {
		return driver.Entry{}, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, epoch := s.claim(key)
	return e, epoch, nil
}

func (s *Store) claim(key string) (driver.Entry, uint64) {
	now := s.tidy()
	s.epoch++
	r := s.records[key]
	if r == nil {
		// The floor takes an epoch for itself. The epoch below may belong to a forgotten claim, whose commit
		// would look like a repeated one.
		r = &record{key: key, floor: s.epoch}
		s.epoch++
		s.records[key] = r
		r.element = s.used.PushFront(r)
		heap.Push(&s.due, r)
		s.bytes += r.size()
	}
	r.counter = s.epoch
	s.written(r, now)
	s.makeRoom()
	return r.present(now), r.counter
}

// Commit implements [driver.Store].
func (s *Store) Commit(ctx context.Context, key string, e driver.Entry) error {
	return s.CommitAndRelease(ctx, key, e, nil)
}

// CommitAndRelease implements [driver.Elector]. Without a lease it is Commit.
func (s *Store) CommitAndRelease(ctx context.Context, key string, e driver.Entry, lease driver.Lease) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	kept, err := s.encode(key, e)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(key, kept); err != nil {
		return err
	}
	if lease != nil {
		lease.Release(context.Background()) // or the lease was lost before
	}
	return nil
}

// Touch implements [driver.Toucher].
func (s *Store) Touch(ctx context.Context, key string, of uint64, e driver.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tidy()
	r := s.records[key]
	switch {
	case r.fences(e.Epoch):
		return driver.ErrFenced
	// A repeated Touch finds e's own epoch.
	case r.entry.Epoch != of && r.entry.Epoch != e.Epoch || r.entry.Kind != driver.KindValue:
		return driver.ErrNotFound
	}
	e.Value = r.entry.Value
	kept, err := s.encode(key, e)
	if err != nil {
		return err
	}
	return s.write(key, kept)
}

type keptEntry struct {
	data  []byte // nil without a life
	entry driver.Entry
	life  time.Duration
}

// encode returns e after a round trip through its encoding: a copy, equal to other stores' entries.
func (s *Store) encode(key string, e driver.Entry) (keptEntry, error) {
	var data []byte
	life := e.Life()
	if life > 0 {
		data = e.Append(make([]byte, 0, len(e.Value)+len(e.Failure)+128), key)
		if err := e.Decode(key, data); err != nil {
			return keptEntry{}, fmt.Errorf("memstore: commit: %w", err)
		}
	}
	if size := overhead + len(key) + cap(data); size > s.MaxBytes {
		return keptEntry{}, fmt.Errorf("memstore: %d bytes of at most %d: %w", size, s.MaxBytes, driver.ErrTooLarge)
	}
	return keptEntry{data, e, life}, nil
}

// write commits a result of encode. The caller holds mu.
func (s *Store) write(key string, kept keptEntry) error {
	now, e, data := s.tidy(), kept.entry, kept.data
	r := s.records[key]
	if r.fences(e.Epoch) {
		return driver.ErrFenced
	}
	if e.Epoch == r.floor {
		// This epoch was committed before. The record has its entry, or none if its life is over.
		if r.data != nil && !bytes.Equal(r.data, data) {
			return driver.ErrFenced
		}
		return nil
	}
	s.bytes -= r.size()
	r.floor, r.data, r.entry = e.Epoch, data, driver.Entry{}
	if data != nil {
		r.entry, r.committed, r.expires = e, now, now.Add(kept.life)
	}
	s.bytes += r.size()
	s.written(r, now)
	s.makeRoom()
	s.tell(driver.Notice{Key: key, Epoch: e.Epoch, Made: now})
	return nil
}

// TryAcquire implements [driver.Locker].
func (s *Store) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return s.locker.TryAcquire(ctx, key, ttl)
}

// Watch implements [driver.Watcher].
func (s *Store) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return s.locker.Watch(ctx, held)
}

// Elect implements [driver.Elector].
func (s *Store) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	if err := ctx.Err(); err != nil {
		return driver.Election{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var won driver.Election
	now := s.tidy()
	if r := s.records[key]; r != nil {
		s.used.MoveToFront(r.element)
		won.Entry = r.present(now)
	}
	if won.Entry.Fresh() && won.Entry.Epoch > past {
		return won, nil
	}
	lease, err := s.locker.TryAcquire(ctx, key, ttl)
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		won.Held = held
		return won, nil
	}
	if err != nil {
		return driver.Election{}, err
	}
	won.Lease = lease
	won.Entry, won.Epoch = s.claim(key)
	return won, nil
}

// Fenced implements [driver.Fencer].
func (s *Store) Fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tidy()
	return s.records[key].fences(epoch), nil
}

// Invalidate implements [driver.Store].
func (s *Store) Invalidate(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.tidy()
	// Without its record, the key has a raised floor: see record.
	if r := s.records[key]; r != nil {
		s.drop(r)
	}
	s.tell(driver.Notice{Key: key, Epoch: s.epoch, Invalidated: true, Made: now})
	return nil
}

// Notify implements [driver.Notifier].
func (s *Store) Notify(ctx context.Context, f func(driver.Notice)) {
	queue := make(chan driver.Notice, queued)
	s.mu.Lock()
	s.listeners[queue] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, queue)
	}()
	for {
		select {
		case n := <-queue:
			n.Entry = s.committed(n)
			f(n)
		case <-ctx.Done():
			return
		}
	}
}

// committed returns the entry of n's commit, if present: queued entries would take memory outside MaxBytes.
func (s *Store) committed(n driver.Notice) driver.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.tidy()
	r := s.records[n.Key]
	if n.Invalidated || r == nil || r.data == nil || r.entry.Epoch != n.Epoch {
		return driver.Entry{}
	}
	return r.present(now)
}

// tell queues a notice for the listeners, in the order of the changes. f would run under the lock here.
func (s *Store) tell(n driver.Notice) {
	for queue := range s.listeners {
		select {
		case queue <- n:
		default:
		}
	}
}

// written records a write of r. The caller holds mu, as for all functions below.
func (s *Store) written(r *record, now time.Time) {
	r.forget = now.Add(retention)
	s.used.MoveToFront(r.element)
	heap.Fix(&s.due, r.index)
}

// tidy, where every method begins, drops expired entries and records: no goroutine is needed.
func (s *Store) tidy() time.Time {
	now := time.Now()
	for len(s.due) > 0 && !s.due[0].deadline().After(now) {
		r := s.due[0]
		if r.data == nil || !r.forget.After(now) {
			s.drop(r)
			continue
		}
		// The entry has had its time, but a rebuild of it may be under way.
		s.bytes -= r.size()
		r.data, r.entry = nil, driver.Entry{}
		s.bytes += r.size()
		heap.Fix(&s.due, r.index)
	}
	return now
}

func (s *Store) makeRoom() {
	for s.bytes > s.MaxBytes && s.used.Len() > 0 { // a negative MaxBytes keeps nothing
		s.drop(s.used.Back().Value.(*record))
	}
}

func (s *Store) drop(r *record) {
	s.bytes -= r.size()
	delete(s.records, r.key)
	s.used.Remove(r.element)
	heap.Remove(&s.due, r.index)
}

type dueHeap []*record

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].deadline().Before(h[j].deadline()) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *dueHeap) Push(x any) {
	r := x.(*record)
	r.index = len(*h)
	*h = append(*h, r)
}

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return r
}
