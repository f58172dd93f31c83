package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
)

// This file records a history: the events, the clock of all processes of a machine, and wrappers
// around a store and a locker that record each call at the boundary to the cache. A planted bug
// lies behind that boundary, so the history shows the cache's own view.

// now is the machine's monotonic clock in nanoseconds, which all processes share, unlike package time's.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every Linux has it
	}
	return ts.Nano()
}

// A kind is the call that an event records.
type kind string

const (
	kindGet   kind = "get"        // Cache.Get
	kindDrop  kind = "drop"       // Cache.Invalidate
	kindLoad  kind = "load"       // the cache's load; End is when it was last seen wanted
	kindGap   kind = "gap"        // the process did not run
	kindRead  kind = "read"       // Store.Get
	kindClaim kind = "claim"      // Store.Claim
	kindPut   kind = "commit"     // Store.Commit
	kindVoid  kind = "invalidate" // Store.Invalidate
	kindTake  kind = "acquire"    // Locker.TryAcquire
	kindRenew kind = "renew"      // Lease.Renew
	kindFree  kind = "release"    // Lease.Release
	kindWatch kind = "watch"      // Watcher.Watch, to the end of its wait
	kindClose kind = "close"      // Cache.Close: calls under way end
	kindTold  kind = "told"       // a notice of an invalidation, until the cache has applied it
)

// A result is the end of a call.
type result string

const (
	began    result = "began" // the end is unknown
	done     result = "ok"
	notFound result = "not found"
	fenced   result = "fenced"
	held     result = "held"
	lost     result = "lost"
	silent   result = "no answer" // it may have been carried out

	// Of calls of the cache, and of loads.
	failed  result = "failed"  // by the origin, in the load of the event's version
	left    result = "left"    // the caller's own context has ended
	bounded result = "bounded" // MaxWait, RebuildTimeout, MaxQueued, or a closed cache
)

// An originError is the failure of a load. Its text identifies the load.
type originError struct{ value string }

const originFails = "the origin fails: "

func (e *originError) Error() string { return originFails + e.value }

func resultOf(err error) result {
	switch {
	case err == nil:
		return done
	case errors.Is(err, driver.ErrNotFound):
		return notFound
	case errors.Is(err, driver.ErrFenced):
		return fenced
	case errors.Is(err, driver.ErrHeld):
		return held
	case errors.Is(err, driver.ErrLeaseLost):
		return lost
	case strings.Contains(err.Error(), originFails):
		return failed
	case errors.Is(err, bellwether.ErrWaitTimeout), errors.Is(err, bellwether.ErrOverloaded), errors.Is(err, bellwether.ErrClosed),
		strings.Contains(err.Error(), bellwether.ErrRebuildTimeout.Error()):
		return bounded
	}
	return silent
}

// An event is a call, or its begin.
type event struct {
	Worker int    `json:"w,omitempty"` // set by the supervisor, with Life
	Life   int    `json:"l,omitempty"` // number of the worker's process
	ID     uint64 `json:"n"`           // of the call, unique in one process
	Kind   kind   `json:"k"`
	Key    string `json:"key,omitempty"`
	Begin  int64  `json:"b"`
	End    int64  `json:"e,omitempty"`
	Result result `json:"r,omitempty"`
	Error  string `json:"err,omitempty"`

	Version int           `json:"v,omitempty"`  // of the value that was served, loaded, read or committed; of a failed call or load, the failure's
	Failure int           `json:"f,omitempty"`  // the version whose load's failure is in an entry
	Retry   time.Duration `json:"ry,omitempty"` // from a commit's begin until the next try is due, if Failure is set
	Near    bool          `json:"nr,omitempty"` // the near tier has served it at once
	Epoch   uint64        `json:"ep,omitempty"`
	Claimed uint64        `json:"cl,omitempty"`  // the epoch that a claim gave out
	Sum     uint64        `json:"sum,omitempty"` // distinguishes entries of the same epoch
	Keep    time.Duration `json:"keep,omitempty"`
	Lease   uint64        `json:"lease,omitempty"` // the ID of the acquire
	TTL     time.Duration `json:"ttl,omitempty"`   // of a lease
	Token   uint64        `json:"token,omitempty"` // of a lease
}

// failed reports whether an engine has not answered the call.
func (e *event) failed() bool {
	switch e.Kind {
	case kindRead, kindClaim, kindPut, kindVoid, kindTake, kindRenew, kindFree:
		return e.Result == silent
	}
	return false
}

// A recorder records events. All methods are safe for concurrent use.
type recorder struct {
	ids atomic.Uint64
	// sink takes an event. With urgent it returns only when the end of this process cannot lose the
	// event: a call with effects on others is recorded beforehand.
	sink func(e event, urgent bool)
}

func (r *recorder) id() uint64 { return r.ids.Add(1) }

// begin records the begin of a call, which may have an effect without a recorded end.
func (r *recorder) begin(e event) event {
	e.ID, e.Begin, e.Result = r.id(), now(), began
	r.sink(e, true)
	return e
}

func (r *recorder) end(e event, err error) {
	e.End, e.Result, e.Error = now(), resultOf(err), ""
	if e.Result == silent || e.Result == bounded {
		e.Error = err.Error()
	}
	r.sink(e, false)
}

// call records a call without an effect on others.
func (r *recorder) call(e event, do func(e *event) error) error {
	e.ID, e.Begin = r.id(), now()
	err := do(&e)
	r.end(e, err)
	return err
}

// A journal writes events as lines. Other events wait for an urgent one, or for flush.
type journal struct {
	mu  sync.Mutex // guards both fields
	buf bytes.Buffer
	out io.Writer
}

func (j *journal) write(e event, urgent bool) {
	line, err := json.Marshal(e)
	if err != nil {
		panic(err) // an event has only numbers and strings
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.buf.Write(append(line, '\n'))
	if urgent || j.buf.Len() > 32<<10 {
		j.buf.WriteTo(j.out)
	}
}

func (j *journal) flush() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.buf.WriteTo(j.out)
}

// versionOf returns the version in a value of the origin, "key#version", or 0.
func versionOf(value string) int {
	for i := len(value) - 1; i >= 0; i-- {
		if value[i] == '#' {
			n, _ := strconv.Atoi(value[i+1:])
			return n
		}
	}
	return 0
}

// entered sets the fields of the event that describe an entry.
func (e *event) entered(entry driver.Entry) {
	e.Epoch, e.Version = entry.Epoch, versionOf(string(entry.Value))
	if e.Failure = versionOf(entry.Failure); e.Failure != 0 {
		e.Retry = entry.RetryAge - entry.Age
	}
	h := fnv.New64a()
	h.Write([]byte{byte(entry.Kind), byte(entry.Failures)})
	h.Write(entry.Value)
	e.Sum = h.Sum64()
}

// recordStore returns s with a record of the calls, and with the notices, if any.
func recordStore(s driver.Store, r *recorder) driver.Store {
	recorded := &recordedStore{s, r}
	if n, ok := s.(driver.Notifier); ok {
		return struct {
			driver.Store
			driver.Notifier
		}{recorded, &recordedNotifier{n, r}}
	}
	return recorded
}

type recordedNotifier struct {
	notifier driver.Notifier
	*recorder
}

// Notify implements [driver.Notifier]. It records no commits: their effect depends on the moment.
func (s *recordedNotifier) Notify(ctx context.Context, f func(driver.Notice)) {
	s.notifier.Notify(ctx, func(n driver.Notice) {
		if !n.Invalidated {
			f(n)
			return
		}
		s.call(event{Kind: kindTold, Key: ownKey(n.Key), Epoch: n.Epoch}, func(*event) error {
			f(n)
			return nil
		})
	})
}

type recordedStore struct {
	store driver.Store
	*recorder
}

func (s *recordedStore) Get(ctx context.Context, key string) (entry driver.Entry, err error) {
	err = s.call(event{Kind: kindRead, Key: ownKey(key)}, func(e *event) (err error) {
		if entry, err = s.store.Get(ctx, key); err == nil {
			e.entered(entry)
		}
		return err
	})
	return entry, err
}

func (s *recordedStore) Claim(ctx context.Context, key string) (entry driver.Entry, epoch uint64, err error) {
	err = s.call(event{Kind: kindClaim, Key: ownKey(key)}, func(e *event) (err error) {
		if entry, epoch, err = s.store.Claim(ctx, key); err == nil {
			e.Claimed = epoch
			if entry.Epoch != 0 {
				e.entered(entry)
			}
		}
		return err
	})
	return entry, epoch, err
}

func (s *recordedStore) Commit(ctx context.Context, key string, entry driver.Entry) error {
	e := event{Kind: kindPut, Key: ownKey(key), Keep: entry.Life()}
	e.entered(entry)
	e = s.begin(e)
	err := s.store.Commit(ctx, key, entry)
	s.end(e, err)
	return err
}

func (s *recordedStore) Invalidate(ctx context.Context, key string) error {
	e := s.begin(event{Kind: kindVoid, Key: ownKey(key)})
	err := s.store.Invalidate(ctx, key)
	s.end(e, err)
	return err
}

// recordLocker returns l with a record of the calls, and with the watches, if any.
func recordLocker(l driver.Locker, r *recorder) driver.Locker {
	recorded := &recordedLocker{l, r}
	if w, ok := l.(driver.Watcher); ok {
		return struct {
			driver.Locker
			driver.Watcher
		}{recorded, w}
	}
	return recorded
}

type recordedLocker struct {
	locker driver.Locker
	*recorder
}

func (l *recordedLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (lease driver.Lease, err error) {
	var id uint64
	err = l.call(event{Kind: kindTake, Key: ownKey(key), TTL: ttl}, func(e *event) (err error) {
		id, e.Lease = e.ID, e.ID
		lease, err = l.locker.TryAcquire(ctx, key, ttl)
		if t, ok := lease.(driver.Tokener); ok && err == nil {
			e.Token = t.Token()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &recordedLease{lease, l.recorder, key, id}, nil
}

type recordedLease struct {
	lease driver.Lease
	*recorder
	key string
	id  uint64
}

func (l *recordedLease) Renew(ctx context.Context, ttl time.Duration) error {
	return l.call(event{Kind: kindRenew, Key: ownKey(l.key), Lease: l.id, TTL: ttl}, func(*event) error {
		return l.lease.Renew(ctx, ttl)
	})
}

func (l *recordedLease) Release(ctx context.Context) error {
	e := l.begin(event{Kind: kindFree, Key: ownKey(l.key), Lease: l.id})
	err := l.lease.Release(ctx)
	l.end(e, err)
	return err
}

// Lost implements [driver.LossNotifier]. Without a channel of the lease's own it never reports.
func (l *recordedLease) Lost() <-chan struct{} {
	if n, ok := l.lease.(driver.LossNotifier); ok {
		return n.Lost()
	}
	return nil
}

// A fleetEngine is store and locker in one, and reports changes and the ends of leases.
type fleetEngine interface {
	driver.Elector
	driver.Notifier
	driver.Watcher
}

// recordEngine returns eng with a record of the calls. An election becomes the equivalent calls.
func recordEngine(eng fleetEngine, r *recorder) fleetEngine {
	return &recordedEngine{
		Store: &recordedStore{eng, r}, Locker: &recordedLocker{eng, r}, Notifier: &recordedNotifier{eng, r}, Watcher: eng,
		elector: eng, recorder: r,
	}
}

type recordedEngine struct {
	driver.Store
	driver.Locker
	driver.Notifier
	driver.Watcher
	elector  driver.Elector
	recorder *recorder
}

// Elect implements [driver.Elector].
func (e *recordedEngine) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	r := e.recorder
	take := event{ID: r.id(), Begin: now(), Kind: kindTake, Key: ownKey(key), TTL: ttl}
	look := event{ID: r.id(), Begin: now(), Kind: kindRead, Key: ownKey(key)}
	take.Lease = take.ID
	won, err := e.elector.Elect(ctx, key, past, ttl)
	if err != nil {
		look.Kind = kindClaim
		r.end(take, err)
		r.end(look, err)
		return won, err
	}
	none := driver.ErrNotFound
	if won.Entry.Epoch != 0 {
		look.entered(won.Entry)
		none = nil
	}
	switch {
	case won.Lease != nil:
		look.Kind, look.Claimed = kindClaim, won.Epoch
		none = nil
		r.end(take, nil)
		won.Lease = &recordedLease{won.Lease, r, key, take.ID}
	case won.Held != nil:
		r.end(take, driver.ErrHeld)
	}
	r.end(look, none)
	return won, nil
}

// CommitAndRelease implements [driver.Elector]. It does not report whether the lease was lost before.
func (e *recordedEngine) CommitAndRelease(ctx context.Context, key string, entry driver.Entry, lease driver.Lease) error {
	mine := lease.(*recordedLease)
	put := event{Kind: kindPut, Key: ownKey(key), Keep: entry.Life()}
	put.entered(entry)
	put = e.recorder.begin(put)
	free := e.recorder.begin(event{Kind: kindFree, Key: ownKey(key), Lease: mine.id})
	err := e.elector.CommitAndRelease(ctx, key, entry, mine.lease)
	e.recorder.end(put, err)
	if err == nil {
		e.recorder.end(free, driver.ErrLeaseLost)
	}
	return err
}
