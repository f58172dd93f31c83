// Package memcachestore keeps entries in memcached.
//
// Memcached has compare-and-swap for one item, and neither scripts nor a clock
// that clients can read. So a commit takes several steps, whose order is what
// makes them safe (see the comment on Commit's steps in this package), and the
// age of an entry is told by the wall clocks of those who write and read it.
//
// A memcached that was started with -C has no compare-and-swap: there every claim,
// commit and invalidation of a key that is there already is an error.
package memcachestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bradfitz/gomemcache/memcache"
	"golang.org/x/sync/errgroup"
)

// A Store is a [driver.Store] in memcached. Use [New] to make one. It is
// safe for concurrent use.
//
// A Get costs one round trip, a GetMany one for each piece of its keys, a Claim two, a Commit four, an Invalidate three or
// four; more if others write the same key at the same time.
//
// Two promises rest on the clients' wall clocks, and are only as good as
// these agree. An entry's age is the time on the reader's clock since the time
// on the writer's at its commit; it is never below the age that was committed.
// And a counter that is lost (evicted, or its server restarted) begins again
// at the wall clock of the client that makes the next claim; epochs fall if
// that clock is further behind the clock that began the lost counter than that
// counter lived. While the counter is kept, no clock is asked.
//
// An entry's floor is kept in an item of its own. When that is lost, the entry
// counts as lost too: nobody could tell whether it had been invalidated.
//
// With several servers the two may be on different ones, and either may be lost.
// All processes need one list of servers, in one order, and a server that was
// taken off it comes back only empty; docs/engines.md says what happens else.
// A GetMany waits for all of them, or for the client's Timeout: make that less
// than half of [bellwether.Options].EngineTimeout, or one server that hangs fails
// the batches of all.
type Store struct {
	// Prefix begins the names of all items, and keeps two programs that use
	// one server apart. It has at most 80 bytes, none of them a space or a
	// control byte. New sets it to "bellwether:". Set it before first use.
	Prefix string

	// MaxValue is the largest item, in bytes, that the store sends: the value,
	// the text of a failure and less than 160 bytes more. New sets it to 1 MiB
	// less 1 KiB, which with the key and the server's own header stays within
	// the default of memcached's option -I. Set it before first use.
	MaxValue int

	mc     *memcache.Client
	pieces adapter.Pieces
}

// New returns a store over mc. Without mc it panics.
//
// By default mc keeps 2 idle connections and dials anew for all requests
// beyond: set its MaxIdleConns to the number of requests expected at a time.
// Its Timeout, by default 500 ms, bounds each step on the network; a context
// that ends earlier ends the wait, while mc's own goes on to that time-out.
func New(mc *memcache.Client) *Store {
	if mc == nil {
		panic(errors.New("memcachestore: New needs a client, such as memcache.New makes"))
	}
	return &Store{Prefix: "bellwether:", MaxValue: 1<<20 - 1<<10, mc: mc}
}

// What memcached keeps under ":v" is the writer's time of the commit, in 16
// decimal digits of microseconds since 1970, and the encoded entry. Under ":m"
// it keeps two decimal numbers, "counter floor", floor <= counter.
//
// An entry is served only if its epoch is not below the floor, and only if
// there is a floor. So these hold, whoever stops at whatever point:
//
//   - The floor of a key only rises: it is written by compare-and-swap from the
//     floor that was read. If it is lost, the next one is above every epoch
//     given out before and above that of the entry.
//   - The entry's epoch only rises, for the same reason, as long as the entry is
//     there.
//   - ":m" outlives every ":v" that is to be served, because it is written for as
//     long as the entry that was read with it, or is committed, and for an hour at
//     least. It need outlive no other: when it has gone, a claim is unknown, and an
//     entry is not served.
//   - Only the claimant of epoch e writes an entry of epoch e, or the floor e by
//     a commit; an invalidation's floor is an epoch that nobody has claimed.
//
// The two may be on different servers: nothing here needs them to be read at
// one instant.
type items struct {
	v, m *memcache.Item // nil if there is none

	entry   driver.Entry  // as committed; the zero Entry if v is not one
	passed  time.Duration // since its commit
	corrupt error         // why v is no entry, nil if it is one or none

	counter, floor uint64
	known          bool // whether m holds the two numbers
}

// maxNumber is the greatest counter and epoch that is believed: up to it there
// is room to count on.
const maxNumber = 1 << 62

// read reads both items of a key.
func (s *Store) read(n names) (items, error) {
	// The floor first. If the entry came first, a commit in between would let
	// the old entry be seen below the new floor: a miss of a key that always
	// had an entry. (On two servers it can happen still: see get.)
	got, err := adapter.Reconnected(func() (map[string]*memcache.Item, error) {
		return s.mc.GetMulti([]string{n.m, n.v})
	}, s.mc.Close)
	if err != nil {
		return items{}, err
	}
	return itemsOf(got, n), nil
}

// itemsOf finds both items of a key among those that were read.
func itemsOf(got map[string]*memcache.Item, n names) items {
	it := items{v: got[n.v], m: got[n.m]}
	if it.v != nil {
		it.entry, it.passed, it.corrupt = decode(n.key, it.v.Value, time.Now())
	}
	it.counter, it.floor, it.known = parseMarks(it.m)
	return it
}

// holds reports whether the entry is one of epoch.
func (it *items) holds(epoch uint64) bool {
	return it.v != nil && it.corrupt == nil && it.entry.Epoch == epoch
}

// overtaken reports whether the entry is below the floor: it is invalidated, or a
// newer one was committed while the two items were read.
func (it *items) overtaken() bool {
	return it.v != nil && it.known && it.entry.Epoch < it.floor
}

// present returns the entry as of now, and whether there is one to serve.
func (it *items) present() (driver.Entry, bool) {
	e := it.entry
	if it.v == nil || it.corrupt != nil || !it.known || e.Epoch < it.floor || it.passed >= e.Life() {
		return driver.Entry{}, false
	}
	e.Age += it.passed
	return e, true
}

// retention is for how many seconds the numbers are kept that go with the items: as
// long as the entry, an hour at least.
func (it *items) retention() int32 {
	if it.v == nil || it.corrupt != nil {
		return retention
	}
	return max(seconds(it.entry.Life()-it.passed), retention)
}

// next returns the next epoch, and the floor that it goes with.
func (it *items) next() (epoch, floor uint64) {
	if it.known {
		return max(it.counter, it.entry.Epoch) + 1, it.floor
	}
	// The counter is lost: the clock stands in for it. (It is not asked while
	// the counter is known: one client whose clock is ahead would pull the
	// counter with it, and when that were lost, all others' clocks would be
	// behind it.) The floor takes a number for itself, above that of the entry,
	// which may have been invalidated, and is nobody's epoch: the commit of a
	// forgotten claim at the floor would look repeated.
	floor = max(uint64(time.Now().UnixMicro()), it.entry.Epoch+1)
	return floor + 1, floor
}

// Get implements [driver.Store].
func (s *Store) Get(ctx context.Context, key string) (driver.Entry, error) {
	return adapter.Await(ctx, func() (driver.Entry, error) {
		e, err := s.get(s.names(key))
		if err != nil && !errors.Is(err, driver.ErrNotFound) {
			err = fmt.Errorf("memcachestore: get: %w", err)
		}
		return e, err
	}, nil)
}

func (s *Store) get(n names) (driver.Entry, error) {
	for again := false; ; again = true {
		it, err := s.read(n)
		if err != nil {
			return driver.Entry{}, err
		}
		// Of what is overtaken a second look tells why; it is not worth a third.
		if it.corrupt != nil || !it.overtaken() || again {
			return it.answer()
		}
	}
}

// answer is what Get returns for the items.
func (it *items) answer() (driver.Entry, error) {
	if it.corrupt != nil {
		return driver.Entry{}, it.corrupt
	}
	if e, ok := it.present(); ok {
		return e, nil
	}
	return driver.Entry{}, driver.ErrNotFound
}

// GetMany implements [driver.BatchGetter]. It asks for as many keys at a time as have a
// megabyte of values, by the size of those that came last, and for 256 at most; the first
// time for 16.
func (s *Store) GetMany(ctx context.Context, keys []string, each func(i int, e driver.Entry, err error)) {
	if len(keys) <= few {
		// The client's GetMulti waits for all servers, and which key is at which
		// only the client knows.
		all := make([]int, len(keys))
		for i := range all {
			all[i] = i
		}
		s.getEach(ctx, keys, all, each)
		return
	}
	var again []int
	for from, n := 0, s.pieces.Next(); from < len(keys); {
		to := min(from+n, len(keys))
		got, failed := s.getPiece(ctx, keys[from:to])
		bytes := 0
		for i := from; i < to; i++ {
			it := itemsOf(got, s.names(keys[i]))
			// A miss may be that of a server that has failed.
			if missed := failed && (it.v == nil || it.m == nil); missed || it.corrupt == nil && it.overtaken() {
				again = append(again, i)
				continue
			}
			if it.v != nil {
				bytes += len(it.v.Value)
			}
			e, err := it.answer()
			if err != nil && !errors.Is(err, driver.ErrNotFound) {
				err = fmt.Errorf("memcachestore: get: %w", err)
			}
			each(i, e, err)
		}
		if failed {
			s.pieces.Late(to - from)
			n = len(keys) // each call more would wait for the server that has failed
		} else {
			s.pieces.Came(to-from, bytes)
			n = s.pieces.Next()
		}
		from = to
	}
	s.getEach(ctx, keys, again, each)
}

// getPiece reads the items of keys at one time. Where a server fails, it returns
// those of the others.
func (s *Store) getPiece(ctx context.Context, keys []string) (got map[string]*memcache.Item, failed bool) {
	// Every floor before its entry, as in read; the client keeps the order.
	var all []string
	for _, key := range keys {
		n := s.names(key)
		all = append(all, n.m, n.v)
	}
	type reply struct {
		got map[string]*memcache.Item
		err error
	}
	r, err := adapter.Await(ctx, func() (r reply, _ error) {
		r.got, r.err = s.mc.GetMulti(all)
		return r, nil
	}, nil)
	return r.got, err != nil || r.err != nil
}

const (
	// few is how many keys at most GetMany asks for one by one.
	few = 2
	// atOnce is how many of them at a time.
	atOnce = 16
)

// getEach is GetMany for the keys with these indices, one by one.
func (s *Store) getEach(ctx context.Context, keys []string, indices []int, each func(i int, e driver.Entry, err error)) {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, i := range indices {
		g.Go(func() error {
			e, err := s.Get(ctx, keys[i])
			each(i, e, err)
			return nil
		})
	}
	g.Wait()
}

// Claim implements [driver.Store].
func (s *Store) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	type claim struct {
		entry driver.Entry
		epoch uint64
	}
	n := s.names(key)
	c, err := adapter.Await(ctx, func() (c claim, err error) {
		err = retry(ctx, func() (done bool, err error) {
			it, err := s.read(n)
			if err != nil {
				return false, err
			}
			epoch, floor := it.next()
			e, _ := it.present()
			c = claim{e, epoch}
			// The swap also proves that the entry was the present one when the
			// numbers were read, or else is about to be committed.
			return s.swap(it.m, n.m, marks(epoch, floor), it.retention())
		})
		if err != nil {
			return claim{}, fmt.Errorf("memcachestore: claim: %w", err)
		}
		return c, nil
	}, nil)
	return c.entry, c.epoch, err
}

// Commit implements [driver.Store].
func (s *Store) Commit(ctx context.Context, key string, e driver.Entry) error {
	// The time is taken and the entry encoded before Await: the age counts from
	// here, and the caller may use Value again when Commit has returned, which
	// can be before Await's function has.
	n := s.names(key)
	life := e.Life()
	commit := func() error { return s.commitNothing(ctx, n, e.Epoch) }
	if life > 0 {
		data := make([]byte, 0, stampLen+len(e.Value)+len(e.Failure)+128)
		data = fmt.Appendf(data, "%0*d", stampLen, time.Now().UnixMicro())
		data = e.Append(data, key)
		if len(data) > s.MaxValue {
			return fmt.Errorf("memcachestore: %d bytes of at most %d: %w", len(data), s.MaxValue, driver.ErrTooLarge)
		}
		commit = func() error { return s.commit(ctx, n, e.Epoch, data, seconds(life)) }
	}
	return adapter.Do(ctx, func() error {
		err := commit()
		if err != nil && !errors.Is(err, driver.ErrFenced) {
			err = fmt.Errorf("memcachestore: commit: %w", err)
		}
		return err
	})
}

// commit puts data, an entry of epoch, in place of an older one, and then
// raises the floor.
//
// The entry is written first: the other way round, there would be nothing to
// serve from the one step to the other, and after a crash between them. For
// that, an entry can be seen that is not yet committed. It is
//
//   - overtaken by the commit of a later epoch: that replaces it, and this one
//     finds the floor raised and is refused, as if it had come later;
//   - disowned by an invalidation, which raises the floor at any point between:
//     from there on the entry is not served. Whoever comes last removes it: the
//     invalidation if it looks for an entry after this one is written, else
//     this commit when it finds the floor raised;
//   - left behind by a crash, as good as committed: it is replaced by the next
//     commit, or disowned as above by the next invalidation. If ":m" is lost,
//     it is not served, and the floor to come will be above it.
//
// Two attempts at one commit may run at a time, because the first goes on when
// its caller's context has ended. Either finds what the other has done and
// goes on from there.
func (s *Store) commit(ctx context.Context, n names, epoch uint64, data []byte, seconds int32) error {
	done := false // by an earlier attempt, to the end
	err := retry(ctx, func() (bool, error) {
		it, err := s.read(n)
		if err != nil {
			return false, err
		}
		if !it.known || epoch < it.floor || epoch > it.counter || it.entry.Epoch > epoch {
			return false, driver.ErrFenced
		}
		if it.holds(epoch) && !bytes.Equal(it.v.Value[stampLen:], data[stampLen:]) {
			return false, driver.ErrFenced
		}
		// At the floor it was committed before, and if it is not there any more
		// it has gone since. Above it, an attempt may have come half the way.
		if done = epoch == it.floor; done || it.holds(epoch) {
			return true, nil
		}
		return s.swap(it.v, n.v, data, seconds)
	})
	if err != nil || done {
		return err
	}
	err = s.raise(ctx, n, epoch, seconds)
	if errors.Is(err, driver.ErrFenced) {
		// Not served any more, but it takes up room, and a reader who has read
		// the floor before it was raised may still take it.
		s.remove(n, epoch)
	}
	return err
}

// commitNothing raises the floor to epoch and removes what is below. The order
// is that of an invalidation, for the same reasons.
func (s *Store) commitNothing(ctx context.Context, n names, epoch uint64) error {
	it, err := s.read(n)
	if err != nil {
		return err
	}
	if it.entry.Epoch >= epoch { // this one's own is an entry, not nothing
		return driver.ErrFenced
	}
	if err := s.raise(ctx, n, epoch, 0); err != nil {
		return err
	}
	return s.remove(n, epoch)
}

// raise raises the floor to epoch, for an entry that is kept for so many seconds. It
// returns ErrFenced if it is above already, or the claim is not known. A floor of
// just epoch is this claim's own work.
func (s *Store) raise(ctx context.Context, n names, epoch uint64, seconds int32) error {
	return retry(ctx, func() (bool, error) {
		m, err := s.mc.Get(n.m)
		if err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			return false, err
		}
		counter, floor, known := parseMarks(m)
		if !known || epoch < floor || epoch > counter {
			return false, driver.ErrFenced
		}
		if epoch == floor {
			return true, nil
		}
		return s.swap(m, n.m, marks(counter, epoch), max(seconds, retention))
	})
}

// Fenced implements [driver.Fencer]. It costs one round trip.
func (s *Store) Fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	n := s.names(key)
	return adapter.Await(ctx, func() (bool, error) {
		m, err := s.mc.Get(n.m)
		if err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			return false, fmt.Errorf("memcachestore: fenced: %w", err)
		}
		counter, floor, known := parseMarks(m)
		return !known || epoch < floor || epoch > counter, nil
	}, nil)
}

// Invalidate implements [driver.Store].
func (s *Store) Invalidate(ctx context.Context, key string) error {
	n := s.names(key)
	return adapter.Do(ctx, func() error {
		err := s.invalidate(ctx, n)
		if err != nil {
			err = fmt.Errorf("memcachestore: invalidate: %w", err)
		}
		return err
	})
}

// invalidate raises the floor, which is what disowns the entry and all claims,
// and then removes the entry, which only makes room. The other way round, a
// commit between the two steps would be served.
func (s *Store) invalidate(ctx context.Context, n names) error {
	var epoch uint64
	err := retry(ctx, func() (bool, error) {
		it, err := s.read(n)
		if err != nil {
			return false, err
		}
		epoch, _ = it.next()
		return s.swap(it.m, n.m, marks(epoch, epoch), retention)
	})
	if errors.Is(err, errFull) {
		return s.evict(n)
	}
	if err != nil {
		return err
	}
	return s.remove(n, epoch)
}

// evict removes all that is kept of a key, where there is no room for a new floor: a
// memcached that evicts nothing (-M) still deletes. Without the floor the entry is not
// served, and commits of earlier claims are refused, so the floor goes first.
func (s *Store) evict(n names) error {
	for _, name := range []string{n.m, n.v} {
		if err := s.mc.Delete(name); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			return err
		}
	}
	return nil
}

// remove removes an entry whose epoch is at most epoch, and what is no entry.
//
// A plain delete might hit a newer entry that was written after the look. A
// swap with an expiration in the past removes only what was looked at; if that
// has been replaced, it was by a newer one or by a commit that will find itself
// refused, and there is nothing to do.
func (s *Store) remove(n names, epoch uint64) error {
	v, err := s.mc.Get(n.v)
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil
	}
	if err != nil {
		return err
	}
	if e, _, err := decode(n.key, v.Value, time.Now()); err == nil && e.Epoch > epoch {
		return nil
	}
	_, err = s.swap(v, n.v, nil, -1)
	return err
}

// swap writes value in place of old, which was read before (nil: there was
// none). It returns false, and writes nothing, if somebody else was quicker.
func (s *Store) swap(old *memcache.Item, name string, value []byte, seconds int32) (bool, error) {
	item := &memcache.Item{Key: name, Value: value, Expiration: seconds}
	var err error
	switch {
	case old == nil:
		err = s.mc.Add(item)
	case old.CasID == 0:
		err = adapter.ErrNoSwap
	default:
		item.CasID = old.CasID
		err = s.mc.CompareAndSwap(item)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, memcache.ErrNotStored), errors.Is(err, memcache.ErrCASConflict), errors.Is(err, memcache.ErrCacheMiss):
		return false, nil
	case strings.Contains(err.Error(), "object too large for cache"):
		// The server's limit (option -I) is below MaxValue. The client has no
		// error of its own for this answer.
		return false, fmt.Errorf("%w: %w", driver.ErrTooLarge, err)
	case strings.Contains(err.Error(), "out of memory"):
		return false, fmt.Errorf("%w: %w", errFull, err)
	}
	return false, err
}

// errFull is memcached's answer where it has no room and evicts nothing.
var errFull = errors.New("the server is full")

// retry calls f until it is done, fails or ctx ends. f is not done if somebody
// else wrote in the middle of it. In each round somebody gets through; the
// growing, random pause keeps many from trying in step.
func retry(ctx context.Context, f func() (done bool, err error)) error {
	for n := 0; ; n++ {
		if done, err := f(); done || err != nil {
			return err
		}
		select {
		case <-time.After(rand.N(time.Duration(min(n, 7)+1) * time.Millisecond)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// names are the key, and the items that it has in memcached.
type names struct{ key, v, m string }

func (s *Store) names(key string) names {
	name := s.Prefix + adapter.Name(key)
	return names{key, name + ":v", name + ":m"}
}

func marks(counter, floor uint64) []byte {
	return fmt.Appendf(nil, "%d %d", counter, floor)
}

// parseMarks returns the two numbers in m, or false if there are none: there is
// no item, or it is not one of ours.
func parseMarks(m *memcache.Item) (counter, floor uint64, ok bool) {
	if m == nil {
		return 0, 0, false
	}
	c, f, _ := strings.Cut(string(m.Value), " ")
	counter, errC := strconv.ParseUint(c, 10, 64)
	floor, errF := strconv.ParseUint(f, 10, 64)
	if errC != nil || errF != nil || counter > maxNumber || floor > counter {
		return 0, 0, false
	}
	return counter, floor, true
}

// longest is the longest time, in seconds, that memcached counts: it takes more
// for a date, and a date would need the server's clock to agree with ours. An
// entry of a longer life is gone after these 30 days.
const longest = 30 * 24 * 60 * 60

// seconds returns for how long memcached is to keep an item that lives for d.
// Told T, it keeps it for something between T-1 and T.
func seconds(d time.Duration) int32 {
	s := d / time.Second
	if d%time.Second > 0 {
		s++
	}
	return int32(min(s+1, longest))
}

// retention is for how many seconds a key's counter and floor are kept at least. It
// need only be longer than any rebuild.
const retention = 60 * 60

// stampLen is the length of the time in front of a stored entry.
const stampLen = 16

// decode returns the entry of the key in data, with the Age of its commit, and the time
// that has passed from that to now.
func decode(key string, data []byte, now time.Time) (e driver.Entry, passed time.Duration, err error) {
	if len(data) < stampLen {
		return e, 0, fmt.Errorf("%w: no time of commit", driver.ErrCorrupt)
	}
	us, err := strconv.ParseUint(string(data[:stampLen]), 10, 53)
	if err != nil {
		return e, 0, fmt.Errorf("%w: no time of commit", driver.ErrCorrupt)
	}
	if err := e.Decode(key, data[stampLen:]); err != nil {
		return e, 0, err
	}
	if e.Epoch > maxNumber {
		return driver.Entry{}, 0, fmt.Errorf("%w: epoch %d", driver.ErrCorrupt, e.Epoch)
	}
	// Negative if the writer's clock was ahead of ours.
	return e, max(0, now.Sub(time.UnixMicro(int64(us)))), nil
}
