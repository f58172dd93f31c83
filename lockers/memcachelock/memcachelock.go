// Package memcachelock is a [driver.Locker] on memcached, over the client
// github.com/bradfitz/gomemcache.
//
// A lease is an item with the holder's random token, the length of the lease in milliseconds, and the number
// of renewals. The protocol:
//
//  1. Acquire is an add. After a refused add, a gets reads the holder and the announced length.
//  2. Renew is a gets, a comparison of the token, and a compare-and-swap to the new length and count.
//  3. Release is a gets, a comparison, and a compare-and-swap with a negative expiry, which drops the item. A
//     plain delete might free another holder's lease.
//  4. A Locker takes over a dead holder's lease by compare-and-swap, after it has seen the same value for the
//     whole announced length. Of several Lockers, memcached lets one win.
//
// Step 4 exists because memcached counts whole seconds, by a clock that may leap. So that no lease ends
// before its holder believes so, the expiry of the item is the length rounded up plus five seconds. By the
// expiry alone, a lease of 50 ms would block its key for up to six seconds. The observer counts from after
// the reply, on its own monotonic clock, so it ends later than the holder, which counts from before its
// request. Clocks of two machines are never compared.
//
// Memcached has no push: a Locker is not a [driver.Watcher], and waiters poll.
//
// # Limits
//
// A lease is lost with its item: by a restart, the loss of a server from the client's list, or an eviction,
// which is rare since leases are young. Then there are two holders until the first one renews, and the
// store's epochs let only one of them write. A lease may also end early if the server took it just after a
// pause of more than three seconds. With the option -M a full memcached refuses the swap of a release, so the
// Locker deletes the item. A delete carried out late may end another holder's lease. With the option -C
// memcached has no compare-and-swap: refused acquires, renewals and releases fail. A lease is at most 30 days
// less 5 seconds long.
//
// A memcache.Client dials for requests beyond its idle connections, 2 per server by default: set MaxIdleConns
// to the expected number of concurrent rebuilds. Its Timeout, 500 ms by default, bounds each request. A call
// left behind by its caller makes a few requests.
//
// An acquire goes on after its context has ended, and is then undone. If a request to acquire had no
// answer, the Locker frees the item in the background: after the acquire has failed or found another
// holder, or after the release. It stops at memcached's second answer, 100 ms after the first, or ten
// seconds after its start. If memcached carries the request out later, the lease has no holder and
// blocks its key for the announced length. A failed release is not repeated.
//
// # Tokens
//
// With [Locker.Tokens] a lease has a fencing token ([driver.Tokener]): the next number of a counter in an
// item beside the lease. Tokens are best effort. While the counter exists, they rise without any clock. The
// counter is lost after a day, and if memcached evicts it or restarts; the next holder begins it with its own
// date in microseconds. The date is greater than all tokens before, unless the holder's clock is behind the
// clock that began the former counter by more than the time since. Refused callers send nothing more.
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
	// slack is the additional expiry of an item beyond its lease, in seconds. One: an item with an expiry of
	// T lives between T-1 and T. One: if a tick just misses a second's end, memcached's clock leaps by two.
	// Three: after a pause of the server the clock leaps by its length, and items stored before the leap end
	// early. They cost nothing: takeover goes by the announced length.
	slack = 5

	// maxTTL is the longest lease whose expiry, with the slack, memcached does not take for a date.
	maxTTL = 30*24*time.Hour - slack*time.Second

	// undoTimeout bounds an undo; undoPause is the wait between attempts.
	undoTimeout = 10 * time.Second
	undoPause   = 100 * time.Millisecond
)

// A Locker is a [driver.Locker] on memcached, safe for concurrent use. Create it with [New].
type Locker struct {
	// Prefix begins the name of every item. It has at most 80 bytes, without spaces and control characters.
	// The default is "bellwether:". Set Prefix before first use.
	Prefix string

	// Tokens gives the leases fencing tokens: they are [driver.Tokener]s. A successful acquire then costs 1
	// command more, or 2 for the key's first in a day. The default is false. Set Tokens before first use.
	Tokens bool

	mc    *memcache.Client
	conns adapter.Connections
	seen  adapter.Observations[adapter.Announcement]
}

var _ driver.Locker = (*Locker)(nil)

// New returns a Locker over mc. The caller closes mc. New panics without mc.
func New(mc *memcache.Client) *Locker {
	if mc == nil {
		panic(errors.New("memcachelock: New needs a client, such as memcache.New makes"))
	}
	return &Locker{Prefix: "bellwether:", mc: mc, conns: adapter.Connections{CloseIdle: mc.Close}}
}

// TryAcquire implements [driver.Locker]. It costs 1 command for a free lease, 2 for a held lease, 3 for a
// takeover, and more with Tokens. A HeldError's Until counts from this Locker's first sight of the unchanged
// lease, so a long-dead holder costs at most its length.
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
			if mine.unaccounted {
				go mine.undo()
			}
			return nil, err
		}
		if l.Tokens {
			return mine.withToken()
		}
		return mine, nil
	}, func(_ driver.Lease, err error) {
		if err == nil { // the caller has left
			mine.undo()
		}
	})
}

func (l *Locker) acquire(key string, mine *lease, ttl time.Duration) error {
	want := adapter.Announcement{Token: mine.token, Length: ttl}
	taken, unanswered := mine.add(want)
	for again := true; !taken; {
		item, held, err := l.look(mine.item)
		switch {
		case errors.Is(err, memcache.ErrCacheMiss) && unanswered == nil:
			// Another holder had it when the add was refused, and has released it.
			return &driver.HeldError{Key: key, Until: time.Now()}
		case errors.Is(err, memcache.ErrCacheMiss) && again:
			// The request met a connection that ended with the server, and the server is back. If the request
			// is only late, the next look finds its token, or the late request finds the new add's item.
			again = false
			taken, unanswered = mine.add(want)
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
			// The next look reads the quicker caller's lease. It has its end ahead, so the loop ends.
		case unanswered != nil:
			return mine.wrap("acquire", errors.Join(unanswered, err))
		default:
			unanswered, mine.unaccounted = err, true
		}
	}
	return nil
}

// add takes the lease if it is free. unanswered is the error of a request that may have been carried out.
func (l *lease) add(want adapter.Announcement) (taken bool, unanswered error) {
	err := l.locker.mc.Add(&memcache.Item{Key: l.item, Value: want.Encode(), Expiration: expiration(want.Length)})
	if err == nil || errors.Is(err, memcache.ErrNotStored) {
		return err == nil, nil
	}
	// A malformed key, or a list without servers, is found before a request.
	if !errors.Is(err, memcache.ErrMalformedKey) && !errors.Is(err, memcache.ErrNoServers) {
		l.unaccounted = true
	}
	return false, err
}

// look returns the item, with its version for a compare-and-swap, and its lease.
func (l *Locker) look(name string) (*memcache.Item, adapter.Announcement, error) {
	item, err := adapter.Reconnected(&l.conns, func() (*memcache.Item, error) { return l.mc.Get(name) })
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

// changed reports whether a compare-and-swap failed because the item has changed or gone.
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
	token   string // the holder's token in the item
	// unaccounted is whether a request to acquire had no answer: it may have been carried out, or may
	// be yet. Set before the lease is shared.
	unaccounted bool

	mu       sync.Mutex // guards the fields below
	renewals uint64     // in the item, as far as this process knows
	end      time.Time  // of the lease, as its holder counts
}

// Renew implements [driver.Lease], with 2 commands.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("memcachelock: renew %s: ttl %v is not positive", l.item, ttl)
	}
	ttl = min(ttl, maxTTL)
	end := time.Now().Add(ttl)
	if l.over() {
		// An observer may be about to take the lease over: after its end, no process has to respect it.
		return l.Release(ctx)
	}
	err := adapter.Do(ctx, func() error { return l.renew(ctx, ttl, end) })
	return l.wrap("renew", err)
}

// renew prolongs the item if this lease has it, else returns ErrLeaseLost.
func (l *lease) renew(ctx context.Context, ttl time.Duration, end time.Time) error {
	var next adapter.Announcement
	err := l.swap(ctx, func(item *memcache.Item, held adapter.Announcement) {
		next = adapter.Announcement{Token: l.token, Length: ttl, Renewals: held.Renewals + 1}
		item.Value, item.Expiration = next.Encode(), expiration(ttl)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case next.Renewals <= l.renewals: // of two concurrent renewals the last one in memcached counts: observers read its length
	case err == nil:
		l.renewals, l.end = next.Renewals, end
	case end.Before(l.end):
		l.end = end // a swap without an answer: if it was carried out, observers read the shorter length
	}
	return err
}

// Release implements [driver.Lease], with 2 commands. For an expired lease it clears the item, so
// no process has to observe it, and returns ErrLeaseLost.
func (l *lease) Release(ctx context.Context) error {
	over := l.over()
	err := adapter.Do(ctx, l.free)
	if l.unaccounted { // a late request to acquire would take the item again
		go l.undo()
	}
	if err == nil && over {
		err = driver.ErrLeaseLost
	}
	return l.wrap("release", err)
}

func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.end)
}

// free ends the lease, however late it is called. A full memcached that evicts nothing (-M) has no room for
// the swap, but deletes. Until the lease's end no other process takes the item over. A delete that memcached
// carries out later, or after another call has freed the item, may free another holder's lease.
func (l *lease) free() error {
	err := l.swap(context.Background(), func(item *memcache.Item, _ adapter.Announcement) { item.Expiration = -1 })
	if adapter.IsFull(err) && !l.over() {
		err = l.locker.mc.Delete(l.item)
		if errors.Is(err, memcache.ErrCacheMiss) {
			err = driver.ErrLeaseLost
		}
	}
	return err
}

// undo drops the item as soon as memcached answers, within undoTimeout. After a request without an answer it
// looks a second time, since the item may come yet: a paused server then carries out several connections'
// requests in any order. A dead server has taken the item with it.
func (l *lease) undo() {
	deadline := time.Now().Add(undoTimeout)
	for last := !l.unaccounted; ; {
		err := adapter.Do(context.Background(), l.free)
		answered := err == nil || errors.Is(err, driver.ErrLeaseLost)
		ended := errors.Is(err, syscall.ECONNREFUSED)
		if answered && last || ended || time.Now().After(deadline) {
			return
		}
		last = answered
		time.Sleep(undoPause)
	}
}

// swap changes the item if this lease has it, else returns ErrLeaseLost.
//
// A conflict alone does not mean a lost lease: another call for it may have succeeded between the look and
// the swap. So the loop looks again. It ends, because each conflict is such a success.
//
// Nothing is changed once ctx has ended, checked after the version is known. Without the check: a renewal to
// 5 s hangs in its look until its caller gives up. The next one, to 60 s, succeeds. Now the first swaps the
// second's version, and observers count 5 s while the holder believes in 60 s. A renewal after the check
// changes the version.
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

// wrap adds the operation to an engine's error. Errors of the contract and of a context pass unchanged.
func (l *lease) wrap(doing string, err error) error {
	switch {
	case err == nil, errors.Is(err, driver.ErrLeaseLost), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("memcachelock: %s %s: %w", doing, l.item, err)
}
