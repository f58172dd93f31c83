// Package dynamolock is a [driver.Locker] on a DynamoDB table, by the
// client github.com/aws/aws-sdk-go-v2/service/dynamodb. Its leases are
// [driver.Tokener]s.
//
// A lease is an item: its owner, a random token; its version, a number that
// rises with every change; its length in milliseconds; and whether it is held.
// [CreateTable] makes the table. The protocol:
//
//  1. Acquire is one UpdateItem on the condition that there is no item, or that
//     it is not held. When the condition fails, DynamoDB sends the item with
//     the refusal, which shows whose lease it is and how long it was announced
//     to be. (From an emulator that sends none it is read, consistently.) Who
//     has seen the lease lately looks before it asks: a GetItem is a read,
//     where a refusal is a write, and the holder needs those of the item.
//  2. Renew is an UpdateItem to the new length and the next version, on the
//     condition of the owner and of the version that the lease had.
//  3. Release is an UpdateItem that makes the item free, on the condition of
//     the owner. The item stays, so that its version goes on rising.
//  4. A dead holder's lease is taken over on the condition of its owner and
//     version, by whoever has seen these unchanged for the lease's whole
//     announced length. Of several who try, DynamoDB lets one win.
//
// The observer's time runs from after it has read the item, on its own
// monotonic clock, so it ends later than the holder's, which runs from before
// its request. No two machines' clocks are compared: a lease is never judged by
// a time that is written in the table.
//
// A request whose reply was lost is repeated by the SDK. A repeated acquire is
// refused by what its first attempt has done, finds its own token, and
// succeeds; so does a repeated release. A repeated renewal is carried out
// again.
//
// There is no push: a Locker is not a [driver.Watcher], and its users poll.
//
// # Costs
//
// In requests, and in units of a table on demand (items are below 1 KB, so a
// write is one write unit, also one that is refused):
//
//	acquire a free lease         1 request    1 write; if it was seen held just before, 2, and 1 read
//	see a held lease at first    1 request    1 write; from emulators 2, and 1 read
//	see it again                 1 request    1 read
//	take it over                 2 requests   1 read, 1 write
//	renew                        1 request    1 write
//	release                      1 request    1 write
//	lose a lease                 1 request    1 write; 2, and 1 read, if the item is gone
//
// So a rebuild costs two writes, and each process that waits for it one write
// and then one read for each look. One item takes about 1,000 writes and 3,000
// reads a second, refused writes included.
//
// # What stays in the table
//
// A released item stays for a day at least. Each item has the attribute
// "expires", a date of a day after its lease's end, which the table's time to
// live is set to, and DynamoDB deletes it some time after that, usually within a
// few days, at no cost. So the table has one item of about 200 bytes for every
// different key that was leased in the last days, and not one for each lease.
// Nothing but this clean-up looks at the date.
//
// # Tokens
//
// [driver.Tokener]'s Token is the version with which the lease began. It
// rises with every lease for as long as the item is there, across takeovers,
// without gaps that mean anything and without any clock. When the item is gone,
// because time to live has cleared it or somebody has deleted it or the table,
// the next version starts from the date of the client that makes it, in
// microseconds. That is greater than any before if that client's clock is not
// behind the clock of the one that made the former item by more than the time
// that has passed in between: by a day after the clean-up. After a deletion by
// hand there is no such day, and the clocks have to be right. A backup that is
// restored in place of the table brings old versions back, and with them
// tokens that were given out before.
//
// # Limits
//
// A client whose clock is behind by more than a day writes dates that have
// passed, and DynamoDB may then clear a lease that is held; there are two
// holders until the first one renews, and it is the store's epochs that let
// only one of them write.
//
// The table has to be in one region. In a global table of the usual kind
// (multi-region eventual consistency) every region decides conditions by its
// own copy and the last writer wins, so each region elects a holder of its own;
// the versions run backwards, too. Let all processes use one region's endpoint.
// A global table with multi-region strong consistency decides conditions
// correctly (an update that meets another region's is sent again), but has no
// time to live: its items stay for good. All reads here are consistent ones; a
// cache in between that answers them otherwise (and a read replica) breaks what
// is told of a holder's end.
//
// A request that is still on its way when its caller's context ends goes on to
// its reply, and an acquire that succeeds then is undone. So is one without a
// reply, and a release that fails is repeated, behind the caller, with growing
// pauses for half a minute. If DynamoDB does not answer for so long, or a request
// is delayed beyond that, the item is held by nobody, until its length has been
// observed.
//
// A lease longer than a year is shortened to that.
//
// The SDK retries what is throttled or fails, three times in all by default and
// with pauses of up to 20 s. Bellwether has a breaker of its own: set
// RetryMaxAttempts to 2, of which the second finds a lost reply. It is made when
// the first has ended, and nothing ends that on a connection which has gone silent,
// unless the HTTP client does: give its Transport a ResponseHeaderTimeout of a
// second or two. The SDK's standard retryer also stops repeating after some hundred
// failures; ratelimit.None as its RateLimiter has it go on.
package dynamolock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

const (
	// callTimeout bounds a call that has no context to end it, and what goes on
	// after a caller has left.
	callTimeout = 10 * time.Second

	// lately is for how long after the end that was announced a lease is looked
	// at before it is asked for: then it may be one to take over. A lease that
	// ended longer ago was most likely released.
	lately = 2 * time.Second

	// maxTTL is the longest lease: two of them added up are still a Duration.
	maxTTL = 365 * 24 * time.Hour
)

// A Client is what the Locker needs of a [*dynamodb.Client].
type Client interface {
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
}

// A Locker is a [driver.Locker] on a DynamoDB table. It is safe for
// concurrent use. Create one with [New].
type Locker struct {
	// Prefix begins the name of every item, so that several can share a table.
	// Set it before the first use; the default is "bellwether:".
	Prefix string

	client Client
	table  string
	seen   adapter.Observations[record]
}

var (
	_ driver.Locker  = (*Locker)(nil)
	_ driver.Tokener = (*lease)(nil)
)

// New returns a Locker that keeps its leases in a table which [CreateTable] has
// made. The client needs leave for dynamodb:UpdateItem and dynamodb:GetItem.
// Without a client or a table it panics.
func New(client Client, table string) *Locker {
	if adapter.Missing(client) || table == "" {
		panic(errors.New("dynamolock: New needs a client, such as dynamodb.NewFromConfig makes, and a table's name"))
	}
	return &Locker{Prefix: "bellwether:", client: client, table: table}
}

// TryAcquire implements [driver.Locker]. It costs one request if the lease
// is free or held, two if it is taken over, or free after it was held. The error's Until is counted from
// when this Locker first saw the lease as it is, so a holder that died long ago
// is waited for at most as long as it had announced. A ttl that is not positive
// is an error. The lease is a [driver.Tokener].
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("dynamolock: acquire %.100q: ttl %v is not positive", key, ttl)
	}
	ttl = min(ttl, maxTTL)
	mine := &lease{
		locker: l,
		item:   l.Prefix + adapter.Name(key),
		owner:  adapter.Token(),
		end:    time.Now().Add(ttl),
	}
	return adapter.Await(ctx, func() (driver.Lease, error) {
		detached, cancel := detached(ctx)
		defer cancel()
		if err := l.acquire(detached, key, mine, ttl); err != nil {
			if ctx.Err() == nil && mine.mayHave(err) {
				mine.freeLater(ctx, firstPause)
			}
			return nil, mine.wrap(ctx, "acquire", err)
		}
		return mine, nil
	}, func(_ driver.Lease, err error) {
		// Nobody waits for this lease any more.
		if mine.mayHave(err) {
			mine.freeLater(ctx, 0)
		}
	})
}

// acquire makes mine the lease on its item, or returns why it is not.
func (l *Locker) acquire(ctx context.Context, key string, mine *lease, ttl time.Duration) error {
	change := take(mine.owner, ttl)
	if time.Now().Before(l.seen.Last(mine.item).Add(lately)) {
		now, err := l.look(ctx, mine.item)
		switch {
		case err != nil:
			return err
		case !now.held:
			l.seen.Forget(mine.item)
		default:
			if held := l.observe(key, mine.item, now); held != nil {
				return held
			}
			change = takeOver(now, mine.owner, ttl)
		}
	}
	for {
		mine.asked = true
		version, instead, err := l.update(ctx, mine.item, change)
		switch {
		case err != nil:
			return err
		case instead == nil:
			l.seen.Forget(mine.item)
			mine.began(version)
			return nil
		case instead.held && instead.owner == mine.owner:
			// The request was carried out, its reply was lost, and the SDK has
			// repeated it.
			mine.began(instead.version)
			return nil
		case !instead.held:
			// Released between our look and our takeover; or, from an emulator,
			// between the refusal and the look that it costs.
			change = take(mine.owner, ttl)
			continue
		}
		if held := l.observe(key, mine.item, *instead); held != nil {
			return held
		}
		// If another is quicker, the refusal shows whose the lease is. It is a
		// new one then, with an end ahead, so the loop ends.
		change = takeOver(*instead, mine.owner, ttl)
	}
}

// observe returns the error of one who has just read that the lease is held. It
// is nil if the holder was silent for so long that the lease is to be taken
// over.
func (l *Locker) observe(key, item string, now record) error {
	until := l.seen.Until(item, now, now.length)
	if time.Now().Before(until) {
		return &driver.HeldError{Key: key, Until: until}
	}
	return nil
}

// detached returns a context with the values of ctx that does not end with it.
// A request that was sent goes on to its reply: given up halfway, nobody would
// know whether it took a lease, and an attempt to undo it on another connection
// might be carried out first.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
}

// A lease is the holder's side of an item.
type lease struct {
	locker *Locker
	item   string
	owner  string
	token  uint64 // set before the lease is given out
	asked  bool   // whether the item may have become this lease's; set before it is given out

	mu      sync.Mutex // guards version and end
	version uint64     // of the item, as of the last change whose reply was read
	end     time.Time  // of the lease as its holder counts
}

// Token implements [driver.Tokener].
func (l *lease) Token() uint64 { return l.token }

// Renew implements [driver.Lease]. It costs one request.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("dynamolock: renew %s: ttl %v is not positive", l.item, ttl)
	}
	ttl = min(ttl, maxTTL)
	end := time.Now().Add(ttl)
	if l.over() {
		// The item may still be there, and an observer may be about to take it
		// over: whoever holds it after its end holds a promise that nobody has
		// to keep. So it is given up, not prolonged.
		return l.Release(ctx)
	}
	err := adapter.Do(ctx, func() error {
		// Not detached: a renewal that its caller has given up may be carried
		// out or not, and the next one finds out which.
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return l.renew(bounded, ttl, end)
	})
	return l.wrap(ctx, "renew", err)
}

// renew prolongs the item if it is this lease's, else returns ErrLeaseLost.
//
// The condition names the version because a request can be late. Without it
// this would be possible: a renewal to 5 s hangs in the network until its
// caller gives it up; the next one, to 60 s, succeeds; now the first arrives,
// and observers count 5 s while the holder believes in 60.
func (l *lease) renew(ctx context.Context, ttl time.Duration, end time.Time) error {
	l.mu.Lock()
	version := l.version
	l.mu.Unlock()
	for {
		next, instead, err := l.locker.update(ctx, l.item, prolong(l.owner, version, ttl))
		switch {
		case err != nil:
			return err
		case instead == nil:
			l.mu.Lock()
			defer l.mu.Unlock()
			if next > l.version { // else a renewal that came later has overtaken this reply
				l.version, l.end = next, end
			}
			return nil
		case !instead.held || instead.owner != l.owner:
			return driver.ErrLeaseLost
		case ctx.Err() != nil:
			return ctx.Err() // only he who still waits may go after a later version
		}
		// A renewal beside this one was quicker, or one that was given up has
		// been carried out, or this one has, and its reply was lost. Each time
		// round is such a renewal's success, so the loop ends.
		version = instead.version
	}
}

// Release implements [driver.Lease]. It costs one request. It also clears
// what is left of a lease that has expired, so that nobody has to observe it,
// but returns ErrLeaseLost then.
func (l *lease) Release(ctx context.Context) error {
	over := l.over()
	err := l.free(ctx)
	switch {
	case err == nil && over:
		err = driver.ErrLeaseLost
	case stays(err):
		l.freeLater(ctx, firstPause)
	}
	return l.wrap(ctx, "release", err)
}

// mayHave reports whether an acquire that has ended with err, or with success, may
// have been carried out.
func (l *lease) mayHave(err error) bool { return l.asked && !refused(err) }

const (
	firstPause = 250 * time.Millisecond
	lastPause  = 16 * time.Second
)

// freeLater frees the item after a pause, and if that fails once more after twice the
// pause, for half a minute. DynamoDB ends no lease: who meets the item at the key's next
// expiry, hours later perhaps, would wait for as long as it announces.
func (l *lease) freeLater(ctx context.Context, pause time.Duration) {
	if pause > lastPause {
		return
	}
	time.AfterFunc(pause, func() {
		if stays(l.free(context.WithoutCancel(ctx))) {
			l.freeLater(ctx, max(2*pause, firstPause))
		}
	})
}

// began notes the version with which the lease was taken.
func (l *lease) began(version uint64) {
	l.token = version
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version = version
}

// stays reports whether after free the item may be the lease's still.
func stays(err error) bool {
	return err != nil && !errors.Is(err, driver.ErrLeaseLost) && !errors.Is(err, driver.ErrCorrupt)
}

// over reports whether the lease has ended as its holder counts.
func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.end)
}

// free makes the item nobody's if it is this lease's, else returns
// ErrLeaseLost.
//
// The condition needs no version: the owner's token is this lease's alone, and
// however late the request arrives, what it ends was to be ended. The item gets
// a token of this call's own, so that an attempt which is refused by an earlier
// one of its own is told from the second of two calls.
func (l *lease) free(ctx context.Context) error {
	return adapter.Do(ctx, func() error {
		ctx, cancel := detached(ctx)
		defer cancel()
		call := adapter.Token()
		_, instead, err := l.locker.update(ctx, l.item, release(l.owner, call))
		if err == nil && instead != nil && instead.owner != call {
			err = driver.ErrLeaseLost
		}
		return err
	})
}

// wrap says what was being done when the engine failed, and how to mend it.
// What the contract names, and ctx's own error, go through as they are.
func (l *lease) wrap(ctx context.Context, doing string, err error) error {
	switch {
	case err == nil, errors.Is(err, driver.ErrLeaseLost), errors.Is(err, driver.ErrHeld):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("dynamolock: %s %s: %w", doing, l.item, explain(l.locker.table, err))
}
