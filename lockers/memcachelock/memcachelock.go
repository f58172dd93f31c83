// Package memcachelock is a [driver.Locker] on memcached, by the client
// github.com/bradfitz/gomemcache.
//
// A lease is an item. Its value names the holder by a random token, the length
// of the lease in milliseconds, and how often it was renewed. The protocol:
//
//  1. Acquire is an add: it succeeds only if there is no item. A refused add is
//     followed by a gets, which shows whose lease it is and how long it was
//     announced to be.
//  2. Renew is a gets, a comparison of the token, and a compare-and-swap to the
//     new length and the next count.
//  3. Release is a gets, a comparison, and a compare-and-swap with a negative
//     expiry, which makes memcached drop the item on the spot. A plain delete
//     would free whatever lease is there by then.
//  4. A dead holder's lease is taken over by compare-and-swap, by whoever has
//     seen one and the same value for its whole announced length. Of several
//     who try, memcached lets one win.
//
// Step 4 is there because memcached's clock is a number of whole seconds that
// its main thread sets once a second. An item with an expiry of T lives between
// T-1 and T; but where a tick just misses the end of a second, the clock leaps
// by two, and where the process has stood still, by as much: what was stored
// before the leap ends that much early. For a lease never to end before its
// holder believes so, the item's expiry is the length rounded up and five
// seconds more; left to memcached alone, a lease of 50 ms would block its key
// for up to six seconds. The observer's time runs from after it read the reply,
// on its own monotonic clock, so it ends later than the holder's, which runs
// from before its request; no two machines' clocks are compared.
//
// There is no push: a Locker is not a [driver.Watcher], and its users poll.
//
// # Limits
//
// Memcached promises to keep nothing. An item that is evicted, or lost in a
// restart or with a server of the client's list, takes its lease with it: then
// there are two holders until the first one renews, and it is the store's
// epochs that let only one of them write. Leases are small and their items
// young, so eviction is rare but not excluded. So is a server that stands still
// for more than three seconds: leases that it takes just after may end early.
//
// A memcached that was started with -C has no compare-and-swap: there whoever is
// refused, and whoever renews or releases a lease, gets an error.
//
// A lease longer than 30 days is shortened to that, beyond which memcached
// takes an expiry for a date.
//
// A memcache.Client keeps by default two idle connections for each server, and
// dials anew for every request beyond them: set MaxIdleConns to the number of
// concurrent rebuilds that you expect. Its Timeout, 500 ms by default, bounds
// each request; what goes on behind the back of a caller whose context has ended
// makes a few of them.
//
// An acquire whose caller's context ends is undone, if memcached answers within
// ten seconds. One that fails before, with the client's Timeout, is not: if
// memcached carries it out after all, nobody holds the lease, which blocks its key
// for no longer than it announces.
//
// # Tokens
//
// A lease has a fencing token ([driver.Tokener]) if [Locker.Tokens] is set:
// the next number of a counter that is an item beside the lease's. It is best
// effort. Tokens rise for as long as the counter is there, and no clock has a
// part in that. A counter is lost when memcached evicts it or is restarted, and
// after a day; the next holder begins it with its own date in microseconds.
// That is greater than all before, unless the holder's clock is behind that of
// the one who began the former counter, by more than has passed since.
//
// It is not free, because memcached's answer to an add or a compare-and-swap
// has no number in it: the winner sends one command more, two if the counter
// has to be begun. Those who are refused send none.
package memcachelock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

const (
	// slack is how much longer, in seconds, memcached is told to keep an item
	// than its lease lasts. One is for the whole seconds of its clock, one for
	// a tick that just misses a second's end, and three are for the time in which
	// the server may have stood still before it took the lease. They cost
	// nothing: takeover goes by the announced length.
	slack = 5

	// maxTTL is the longest lease whose expiry, with the slack, memcached does
	// not take for a date.
	maxTTL = 30*24*time.Hour - slack*time.Second

	// undoTimeout bounds what goes on after a caller has left, and undoPause is
	// between two attempts at it.
	undoTimeout = 10 * time.Second
	undoPause   = 100 * time.Millisecond
)

// A Locker is a [driver.Locker] on memcached. It is safe for concurrent
// use. Create one with [New].
type Locker struct {
	// Prefix begins the name of every item. It may have up to 80 bytes, none
	// of them a space or a control character. Set it before the first use;
	// the default is "bellwether:".
	Prefix string

	// Tokens gives the leases a fencing token: they are [driver.Tokener]s
	// then. It makes an acquire that succeeds cost one command more, two if it
	// is the key's first in a day. Set it before the first use; the default is
	// false.
	Tokens bool

	mc   *memcache.Client
	seen adapter.Observations[adapter.Announcement]
}

var _ driver.Locker = (*Locker)(nil)

// New returns a Locker that uses mc, which stays the caller's to close. Without mc
// it panics.
func New(mc *memcache.Client) *Locker {
	if mc == nil {
		panic(errors.New("memcachelock: New needs a client, such as memcache.New makes"))
	}
	return &Locker{Prefix: "bellwether:", mc: mc}
}

// TryAcquire implements [driver.Locker]. It costs one command if the lease
// is free, two if it is held and three if it is taken over, and what Tokens
// says. The error's Until
// is counted from when this Locker first saw the lease as it is, so a holder
// that died long ago is waited for at most as long as it had announced. A ttl
// that is not positive is an error.
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("memcachelock: acquire %.100q: ttl %v is not positive", key, ttl)
	}
	ttl = min(ttl, maxTTL)
	mine := &lease{
		locker:  l,
		item:    l.Prefix + adapter.Name(key) + ":lease",
		counter: l.Prefix + adapter.Name(key) + ":token",
		token:   adapter.Token(),
		end:     time.Now().Add(ttl),
	}
	return adapter.Await(ctx, func() (driver.Lease, error) {
		if err := l.acquire(key, mine, ttl); err != nil {
			return nil, err
		}
		if l.Tokens {
			return mine.withToken()
		}
		return mine, nil
	}, func(_ driver.Lease, err error) {
		// Nobody waits for this lease any more. Without an answer it may have
		// been taken all the same; only ErrHeld says that it was not.
		if !errors.Is(err, driver.ErrHeld) {
			mine.undo(err == nil)
		}
	})
}

// acquire makes mine the lease on its item, or returns why it is not.
func (l *Locker) acquire(key string, mine *lease, ttl time.Duration) error {
	want := adapter.Announcement{Token: mine.token, Length: ttl}
	var unanswered error // of a request that may have been carried out
	add := func() bool {
		err := l.mc.Add(&memcache.Item{Key: mine.item, Value: want.Encode(), Expiration: expiration(ttl)})
		unanswered = err
		if errors.Is(err, memcache.ErrNotStored) {
			unanswered = nil
		}
		return err == nil
	}
	if add() {
		return nil
	}
	for again := true; ; {
		item, held, err := l.look(mine.item)
		switch {
		case errors.Is(err, memcache.ErrCacheMiss) && unanswered == nil:
			// Another had it when the add was refused, and has released it.
			return &driver.HeldError{Key: key, Until: time.Now()}
		case errors.Is(err, memcache.ErrCacheMiss) && again:
			// The request has met a connection that had ended with the server, and
			// the server is back: it has answered the look. If the request is only
			// late, the next look finds its token, or it finds this one's.
			again = false
			if add() {
				return nil
			}
			continue
		case err != nil:
			return mine.wrap("acquire", errors.Join(unanswered, err))
		case held.Token == mine.token:
			// The request was carried out, and its reply was lost.
			return nil
		}
		until := l.seen.Until(mine.item, held, held.Length)
		if time.Now().Before(until) {
			return &driver.HeldError{Key: key, Until: until}
		}
		item.Value, item.Expiration = want.Encode(), expiration(ttl)
		switch err := l.mc.CompareAndSwap(item); {
		case err == nil:
			l.seen.Forget(mine.item)
			return nil
		case changed(err):
			// Another was quicker, and the next look sees whose the lease is. It
			// is a new one then, with an end ahead, so the loop ends.
		case unanswered != nil:
			return mine.wrap("acquire", errors.Join(unanswered, err))
		default:
			unanswered = err
		}
	}
}

// look returns the item with its identity for a compare-and-swap, and the lease
// that it stands for.
func (l *Locker) look(name string) (*memcache.Item, adapter.Announcement, error) {
	item, err := adapter.Reconnected(func() (*memcache.Item, error) { return l.mc.Get(name) }, l.mc.Close)
	if err != nil {
		return nil, adapter.Announcement{}, err
	}
	if item.CasID == 0 {
		return nil, adapter.Announcement{}, adapter.ErrNoSwap
	}
	held, ok := adapter.DecodeAnnouncement(item.Value)
	if !ok || held.Length > maxTTL {
		return nil, adapter.Announcement{}, fmt.Errorf("%w: the item is not a lease", driver.ErrCorrupt)
	}
	return item, held, nil
}

// changed reports whether a compare-and-swap failed because the item is no
// longer what it was, or is no longer.
func changed(err error) bool {
	return errors.Is(err, memcache.ErrCASConflict) || errors.Is(err, memcache.ErrCacheMiss) || errors.Is(err, memcache.ErrNotStored)
}

// expiration is an expiry with which an item surely lives for ttl.
func expiration(ttl time.Duration) int32 {
	return int32((ttl+time.Second-1)/time.Second) + slack
}

// A lease is the holder's side of an item.
type lease struct {
	locker  *Locker
	item    string
	counter string // the item of the key's fencing tokens
	token   string // whose the item is

	mu       sync.Mutex // guards what follows
	renewals uint64     // that the item counts, as far as this process knows
	end      time.Time  // of the lease as its holder counts
}

// Renew implements [driver.Lease]. It costs two commands.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("memcachelock: renew %s: ttl %v is not positive", l.item, ttl)
	}
	ttl = min(ttl, maxTTL)
	end := time.Now().Add(ttl)
	if l.over() {
		// The item may live on for seconds, and an observer may be about to
		// take it over: whoever holds it after its end holds a promise that
		// nobody has to keep. So it is given up, not prolonged.
		return l.Release(ctx)
	}
	err := adapter.Do(ctx, func() error { return l.renew(ctx, ttl, end) })
	return l.wrap("renew", err)
}

// renew prolongs the item if it is this lease's, else returns ErrLeaseLost.
func (l *lease) renew(ctx context.Context, ttl time.Duration, end time.Time) error {
	var next adapter.Announcement
	err := l.swap(ctx, func(item *memcache.Item, held adapter.Announcement) {
		next = adapter.Announcement{Token: l.token, Length: ttl, Renewals: held.Renewals + 1}
		item.Value, item.Expiration = next.Encode(), expiration(ttl)
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Of two renewals at one time the one counts that memcached made last: its
	// length is what the others read.
	if next.Renewals > l.renewals {
		l.renewals, l.end = next.Renewals, end
	}
	return nil
}

// Release implements [driver.Lease]. It costs two commands. It also clears
// what is left of a lease that has expired, so that nobody has to observe it,
// but returns ErrLeaseLost then.
func (l *lease) Release(ctx context.Context) error {
	over := l.over()
	err := adapter.Do(ctx, l.free)
	if err == nil && over {
		err = driver.ErrLeaseLost
	}
	return l.wrap("release", err)
}

// over reports whether the lease has ended as its holder counts.
func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.end)
}

// free drops the item if it is this lease's.
func (l *lease) free() error {
	// However late it comes, what it ends was to be ended.
	ctx := context.Background()
	return l.swap(ctx, func(item *memcache.Item, _ adapter.Announcement) { item.Expiration = -1 })
}

// undo drops the item as soon as memcached answers, within undoTimeout. Unless it
// was taken for certain, an item that is not there may come yet: a server that
// stood still carries out what was sent to it meanwhile, of several connections
// in any order. So what is missing after a request without an answer is looked
// for once more. A server that has ended has taken the item with it.
func (l *lease) undo(taken bool) {
	deadline := time.Now().Add(undoTimeout)
	for answered := taken; ; {
		err := l.free()
		lost := errors.Is(err, driver.ErrLeaseLost)
		ended := errors.Is(err, syscall.ECONNREFUSED)
		if err == nil || lost && answered || ended || l.over() || time.Now().After(deadline) {
			return
		}
		answered = lost
		time.Sleep(undoPause)
	}
}

// swap changes the item if it is this lease's, else returns ErrLeaseLost.
//
// A conflict alone does not mean that the lease is lost: another call for the
// same lease may have renewed it between the look and the swap. So the loop
// looks again, and ends because each conflict is such a call's success.
//
// Nothing is changed once ctx has ended, which is looked at when the version is
// known. Without that this would be possible: a renewal to 5 s hangs in its look
// until its caller gives it up; the next one, to 60 s, succeeds; now the first
// swaps that one's version, and observers count 5 s while the holder believes in
// 60. A renewal that is made after ctx was looked at changes the version.
func (l *lease) swap(ctx context.Context, change func(*memcache.Item, adapter.Announcement)) error {
	for {
		item, held, err := l.locker.look(l.item)
		if errors.Is(err, memcache.ErrCacheMiss) {
			return driver.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		if held.Token != l.token {
			return driver.ErrLeaseLost
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		change(item, held)
		if err := l.locker.mc.CompareAndSwap(item); !changed(err) {
			return err
		}
	}
}

// wrap says what was being done when the engine failed. What the contract
// names, and the caller's own context error, go through as they are.
func (l *lease) wrap(doing string, err error) error {
	switch {
	case err == nil, errors.Is(err, driver.ErrLeaseLost), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("memcachelock: %s %s: %w", doing, l.item, err)
}
