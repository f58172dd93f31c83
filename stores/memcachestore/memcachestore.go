// Package memcachestore keeps entries in memcached.
//
// Memcached has compare-and-swap for one item, no scripts, and no clock that clients can read. So a commit
// takes several steps, made safe by their order, and an entry's age depends on wall clocks. With the option
// -C there is no compare-and-swap: every claim, commit and invalidation of an existing key is then an error.
package memcachestore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bradfitz/gomemcache/memcache"
	"golang.org/x/sync/errgroup"
)

// A Store is a [driver.Store] in memcached. Create it with [New]. Set its fields before first use. It is safe
// for concurrent use.
//
// A Get costs 1 round trip, a GetMany 1 per piece of its keys, a Claim 2. A Commit costs 4, or up to 5
// for an entry without a life, an Invalidate 3 or 4. Concurrent writes of a key cost more.
//
// Two promises are only as good as the clients' wall clocks agree. An entry's age is the time from the
// writer's clock at the commit to the reader's clock, and never below the committed age. A lost counter
// begins again at the wall clock of the next claimer. Epochs then fall if this clock is behind the clock that
// began the lost counter by more than the counter's lifetime.
//
// A restarted memcached numbers its items' versions from the beginning: a swap of a version read before the
// restart may replace a newer item, and epochs may fall. The floor of an entry is in an item of its own,
// perhaps on another server. Without the floor the entry counts as lost, since it may have been invalidated.
// All processes need the same list of servers in the same order, and a removed server may return only empty;
// docs/engines.md describes the alternative.
//
// Each piece of a GetMany waits for all servers, or for the client's Timeout. Set Timeout to less than half
// of Fleet.EngineTimeout of [bellwether.Options], or a single hanging server fails the batches of all.
type Store struct {
	// Prefix begins the names of all items, and keeps programs on one server apart. It has at most 80 bytes,
	// without spaces and control bytes. Default: "bellwether:".
	Prefix string

	// MaxValue is the largest item, in bytes, that the store sends: the value, the text of a failure, the
	// validator, the tags with a few bytes each, and less than 160 bytes more. The default is 1 MiB less 1
	// KiB, within memcached's default of -I with the key and the server's header.
	MaxValue int

	mc     *memcache.Client
	conns  adapter.Connections
	pieces adapter.Pieces
}

// New returns a store over mc, and panics without mc. mc dials for requests beyond its idle
// connections, 2 by default: set MaxIdleConns to the expected concurrent requests. Its Timeout, 500 ms
// by default, bounds each network step. A context that ends earlier ends only the caller's wait.
func New(mc *memcache.Client) *Store {
	if mc == nil {
		panic(errors.New("memcachestore: New needs a client, such as memcache.New makes"))
	}
	return &Store{Prefix: "bellwether:", MaxValue: 1<<20 - 1<<10, mc: mc, conns: adapter.Connections{CloseIdle: mc.Close}}
}

// Item ":v" holds the writer's time of the commit, in 16 decimal digits of microseconds since 1970, and
// the encoded entry. Item ":m" holds two decimal numbers, "counter floor", with floor <= counter.
//
// An entry is served only if a floor exists and the entry's epoch is not below it. So these hold
// wherever a writer stops:
//
//   - The floor of a key only rises: it is written by compare-and-swap from the floor that was
//     read. If it is lost, the next floor is above every issued epoch and above the epoch of the
//     entry.
//   - The epoch of the entry only rises, for the same reason, while the entry exists.
//   - ":m" outlives every ":v" that may be served: it is written for as long as the entry read with it or
//     committed, and for an hour at least.
//   - Only the claimer of epoch e writes an entry of epoch e, or the floor e by a commit. The floor
//     of an invalidation is an epoch without a claim.
//
// Nothing here needs the two items to be read at one instant.
type items struct {
	v, m *memcache.Item // nil if missing

	entry     driver.Entry // as committed; the zero Entry if v is no entry
	committed time.Time    // by the writer's wall clock
	corrupt   error        // why v is no entry, or nil

	counter, floor uint64
	known          bool // whether m holds the two numbers
}

// maxNumber is the largest accepted counter and epoch. It leaves room to count on.
const maxNumber = 1 << 62

func (s *Store) read(n names) (items, error) {
	// The floor first. Otherwise a commit in between would show the old entry below the new floor: a
	// miss of a key that always had an entry. (It still happens with two servers: see get.)
	got, err := adapter.Reconnected(&s.conns, func() (map[string]*memcache.Item, error) {
		return s.mc.GetMulti([]string{n.m, n.v})
	})
	if err != nil {
		return items{}, err
	}
	return itemsOf(got, n), nil
}

func itemsOf(got map[string]*memcache.Item, n names) items {
	it := items{v: got[n.v], m: got[n.m]}
	if it.v != nil {
		it.entry, it.committed, it.corrupt = decode(n.key, it.v.Value)
	}
	it.counter, it.floor, it.known = parseMarks(it.m)
	return it
}

func (it *items) holds(epoch uint64) bool {
	return it.v != nil && it.corrupt == nil && it.entry.Epoch == epoch
}

// overtaken reports whether the entry is below the floor: it was invalidated, or a newer entry was
// committed between the reads of the two items.
func (it *items) overtaken() bool {
	return it.v != nil && it.known && it.entry.Epoch < it.floor
}

// passed returns the time since the entry's commit, and 0 if the writer's clock was ahead of ours.
func (it *items) passed() time.Duration { return max(0, time.Since(it.committed)) }

// present returns the entry as of now, and whether it may be served.
func (it *items) present() (driver.Entry, bool) {
	e, passed := it.entry, it.passed()
	if it.v == nil || it.corrupt != nil || !it.known || e.Epoch < it.floor || passed >= e.Life() {
		return driver.Entry{}, false
	}
	e.Age += passed
	return e, true
}

func (it *items) retention() int32 {
	if it.v == nil || it.corrupt != nil {
		return retention
	}
	return max(expiration(it.entry.Life()-it.passed()), retention)
}

// next returns the next epoch, and the floor beside it.
func (it *items) next() (epoch, floor uint64) {
	if it.known {
		return max(it.counter, it.entry.Epoch) + 1, it.floor
	}
	// The counter is lost: the clock stands in for it. (A known counter does not follow the clock: a client
	// with a clock ahead would pull it along, and after its loss all other clocks would be behind it.) The
	// floor takes a number for itself. It is above the entry, which may have been invalidated, and belongs to
	// no claim: the commit of a forgotten claim at the floor would look repeated.
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
		// A second look tells an invalidation from a commit in between. A third is not worth its cost.
		if it.corrupt != nil || !it.overtaken() || again {
			return it.answer()
		}
	}
}

func (it *items) answer() (driver.Entry, error) {
	if it.corrupt != nil {
		return driver.Entry{}, it.corrupt
	}
	if e, ok := it.present(); ok {
		return e, nil
	}
	return driver.Entry{}, driver.ErrNotFound
}

// GetMany implements [driver.BatchGetter]. It asks for about a megabyte of values at a time, judged
// by the size of the last values: 16 keys the first time, 256 at most. The keys that miss beside a
// failed server are read again, each alone.
func (s *Store) GetMany(ctx context.Context, keys []string, each func(i int, e driver.Entry, err error)) {
	if len(keys) <= few {
		// The client's GetMulti waits for all servers, and only the client knows the server of a key.
		all := make([]int, len(keys))
		for i := range all {
			all[i] = i
		}
		s.getEach(ctx, keys, all, each)
		return
	}
	done := make([]bool, len(keys))
	var g errgroup.Group
	g.SetLimit(piecesAtOnce)
	silent := false
	for from, to := 0, 0; from < len(keys) && ctx.Err() == nil; from = to {
		to = min(from+s.pieces.Next(), len(keys))
		piece := func() bool { return s.readPiece(ctx, keys, from, to, done, each) }
		if silent {
			// Each piece waits for the silent server.
			g.Go(func() error { piece(); return nil })
		} else {
			silent = piece()
		}
	}
	g.Wait()
	var rest []int
	for i := range keys {
		if !done[i] {
			rest = append(rest, i)
		}
	}
	s.getEach(ctx, keys, rest, each)
}

// readPiece is GetMany for the keys from from to to. It marks the keys with an answer as done, and
// reports whether a server was silent.
func (s *Store) readPiece(ctx context.Context, keys []string, from, to int, done []bool, each func(i int, e driver.Entry, err error)) (silent bool) {
	got, failure := s.getPiece(ctx, keys[from:to])
	answered, bytes := 0, 0
	for i := from; i < to; i++ {
		it := itemsOf(got, s.names(keys[i]))
		// A miss may come from a failed server.
		missed := failure != nil && (it.v == nil || it.m == nil)
		if missed || it.corrupt == nil && it.overtaken() {
			continue
		}
		done[i] = true
		answered++
		if it.v != nil {
			bytes += len(it.v.Value)
		}
		e, err := it.answer()
		if err != nil && !errors.Is(err, driver.ErrNotFound) {
			err = fmt.Errorf("memcachestore: get: %w", err)
		}
		each(i, e, err)
	}
	// The client returns the last error, so a time-out is not hidden by another server's quick failure.
	_, unconnected := errors.AsType[*memcache.ConnectTimeoutError](failure)
	silent = unconnected || errors.Is(failure, os.ErrDeadlineExceeded) || ctx.Err() != nil
	switch {
	case answered > 0:
		s.pieces.Came(answered, bytes)
	case silent:
		s.pieces.Late(to - from)
	}
	return silent
}

// getPiece reads the items of keys in one call. If a server fails, it returns the others' items too.
func (s *Store) getPiece(ctx context.Context, keys []string) (map[string]*memcache.Item, error) {
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
	return r.got, cmp.Or(err, r.err)
}

const (
	// few is the largest number of keys that GetMany reads separately.
	few = 2
	// atOnce bounds the concurrent separate reads.
	atOnce = 16
	// piecesAtOnce bounds the concurrent pieces beside a silent server: 1000 small values cost one of
	// the client's time-outs, and 4 MB arrive in time at 10 MB/s.
	piecesAtOnce = 4
)

// getEach is GetMany for the keys at indices, with one read per key.
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
			// The swap proves that the entry was present when the numbers were read, or is about to
			// be committed.
			done, err = s.swap(it.m, n.m, marks(epoch, floor), it.retention())
			e, _ := it.present() // after the swap, which may take long
			c = claim{e, epoch}
			return done, err
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
	// The time is read and the entry encoded before Await: the age counts from here, and the caller
	// may use Value after Commit has returned, possibly before Await's function has.
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
		commit = func() error { return s.commit(ctx, n, e.Epoch, data, expiration(life)) }
	}
	return adapter.Do(ctx, func() error {
		err := commit()
		if err != nil && !errors.Is(err, driver.ErrFenced) {
			err = fmt.Errorf("memcachestore: commit: %w", err)
		}
		return err
	})
}

// commit replaces an older entry with data, an entry of epoch, and then raises the floor.
//
// The entry is written first: in the other order there would be nothing to serve between the two steps, or
// after a crash there. So an entry is visible before its commit is complete. It is then
//
//   - overtaken by the commit of a later epoch, which replaces it. This commit finds the floor
//     raised and is refused, as if it had come later;
//   - invalidated between the two steps by a raised floor, and no longer served. The last of the
//     two removes it: the invalidation if it looks for an entry after this write, else this commit
//     when it finds the floor raised;
//   - left behind by a crash, as good as committed. The next commit replaces it, or the next invalidation
//     works as above.
//
// Two attempts at one commit may run at a time: the first goes on when its caller's context has ended. Each
// continues from the other's work.
func (s *Store) commit(ctx context.Context, n names, epoch uint64, data []byte, seconds int32) error {
	done := false // completely, by an earlier attempt
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
		// An epoch at the floor was committed before. Above the floor, an attempt may have come half the way.
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
		// A reader that read the floor before the raise may still return the entry, which also takes up room.
		s.remove(n, epoch)
	}
	return err
}

// commitNothing raises the floor and removes older entries, in invalidate's order for the same reason.
func (s *Store) commitNothing(ctx context.Context, n names, epoch uint64) error {
	it, err := s.read(n)
	if err != nil {
		return err
	}
	if it.entry.Epoch >= epoch { // an entry of the same epoch is not nothing
		return driver.ErrFenced
	}
	if err := s.raise(ctx, n, epoch, 0); err != nil {
		return err
	}
	return s.remove(n, epoch)
}

// raise raises the floor to epoch, for an entry kept for so many seconds, and returns ErrFenced if
// the floor is above epoch or the claim is unknown. A floor at epoch is this claim's own work.
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

// Fenced implements [driver.Fencer], with 1 round trip.
func (s *Store) Fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	n := s.names(key)
	return adapter.Await(ctx, func() (bool, error) {
		m, err := adapter.Reconnected(&s.conns, func() (*memcache.Item, error) { return s.mc.Get(n.m) })
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

// invalidate raises the floor, which fences the entry and all claims, and then removes the entry to
// make room. In the other order, a commit between the two steps would be served.
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

// evict removes both items of a key if there is no room for a new floor: a full memcached without evictions
// still deletes. The floor goes first: without it the entry is not served, and earlier claims are refused.
func (s *Store) evict(n names) error {
	if err := s.drop(n.m); err != nil {
		return err
	}
	return s.drop(n.v)
}

func (s *Store) drop(name string) error {
	if err := s.mc.Delete(name); !errors.Is(err, memcache.ErrCacheMiss) {
		return err
	}
	return nil
}

// remove removes an entry with an epoch up to epoch, and bytes that are no entry. A plain delete might hit a
// newer entry. A swap with an expiration in the past removes only the entry that was read. An entry in its
// place is newer, or of a commit about to be refused. A full memcached has no room for the swap: there a delete
// may evict a newer entry.
func (s *Store) remove(n names, epoch uint64) error {
	v, err := s.mc.Get(n.v)
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil
	}
	if err != nil {
		return err
	}
	if e, _, err := decode(n.key, v.Value); err == nil && e.Epoch > epoch {
		return nil
	}
	if _, err = s.swap(v, n.v, nil, -1); errors.Is(err, errFull) {
		return s.drop(n.v)
	}
	return err
}

// swap writes value in place of old, or of a missing item if old is nil. If the item has changed,
// swap writes nothing and returns false.
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
		// The server's limit (option -I) is below MaxValue. The client has no error for this answer.
		return false, fmt.Errorf("%w: %w", driver.ErrTooLarge, err)
	case adapter.IsFull(err):
		return false, fmt.Errorf("%w: %w", errFull, err)
	}
	return false, err
}

// errFull is the answer of a full memcached that evicts nothing (-M).
var errFull = errors.New("the server is full")

// retry calls f until it is done, fails or ctx ends. f is not done if another writer came in between.
// Some writer succeeds in each round; the growing, random pause keeps writers out of step.
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

type names struct{ key, v, m string }

func (s *Store) names(key string) names {
	name := s.Prefix + adapter.Name(key)
	return names{key, name + ":v", name + ":m"}
}

func marks(counter, floor uint64) []byte {
	return fmt.Appendf(nil, "%d %d", counter, floor)
}

// parseMarks returns the two numbers in m, or false if m is missing or foreign.
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

// longest is the longest time, in seconds, that memcached counts: a larger number is a date, by the
// server's clock. An entry with a longer life is gone after these 30 days.
const longest = 30 * 24 * 60 * 60

// expiration returns the expiration of an item with the life d. With an expiration of T, memcached
// keeps an item for between T-1 and T.
func expiration(d time.Duration) int32 {
	s := d / time.Second
	if d%time.Second > 0 {
		s++
	}
	return int32(min(s+1, longest))
}

// retention is how many seconds counter and floor are kept at least. It need only outlast any rebuild.
const retention = 60 * 60

// stampLen is the length of the time before a stored entry.
const stampLen = 16

// decode returns the key's entry in data, with its Age at the commit, and the time of the commit.
func decode(key string, data []byte) (e driver.Entry, committed time.Time, err error) {
	if len(data) < stampLen {
		return e, committed, fmt.Errorf("%w: no time of commit", driver.ErrCorrupt)
	}
	us, err := strconv.ParseUint(string(data[:stampLen]), 10, 53)
	if err != nil {
		return e, committed, fmt.Errorf("%w: no time of commit", driver.ErrCorrupt)
	}
	if err := e.Decode(key, data[stampLen:]); err != nil {
		return e, committed, err
	}
	if e.Epoch > maxNumber {
		return driver.Entry{}, committed, fmt.Errorf("%w: epoch %d", driver.ErrCorrupt, e.Epoch)
	}
	return e, time.UnixMicro(int64(us)), nil
}
