// Package dynamolock is a [driver.Locker] on a DynamoDB table, over the client
// github.com/aws/aws-sdk-go-v2/service/dynamodb.
//
// Its leases are [driver.Tokener]s. A lease is an item with its owner, a random token; its version,
// a number that rises with every change; its length in milliseconds; and whether it is held.
// [CreateTable] creates the table. The protocol:
//
//  1. Acquire is one UpdateItem on the condition that there is no item, or that it is not held. A refusal has
//     the item, with its owner and announced length. (For an emulator without the item in its refusals, a
//     consistent read follows.) A Locker that has seen the lease lately reads before it tries: a refusal
//     costs a write, and the holder needs the item's writes.
//  2. Renew is an UpdateItem to the new length and the next version, on the condition of owner and version.
//  3. Release is an UpdateItem that makes the item free, on the condition of the owner. The item
//     stays, so its version goes on rising.
//  4. A Locker takes over a dead holder's lease, on the condition of owner and version, after it has seen
//     both unchanged for the whole announced length. Of several Lockers, DynamoDB lets one win.
//
// The observer counts from after it has read the item, on its own monotonic clock, so it ends later
// than the holder, which counts from before its request. Clocks of two machines are never compared:
// no time in the table decides about a lease.
//
// The SDK repeats a request after a lost reply. A repeated acquire is refused by its first attempt's
// item, finds its own token, and succeeds, as a repeated release does. A renewal is carried out again.
//
// DynamoDB has no push: a Locker is not a [driver.Watcher], and waiters poll.
//
// # Costs
//
// In requests, and in units of a table on demand (items are below 1 KB, so a write is one write
// unit, even if refused):
//
//	acquire a free lease         1 request    1 write; if it was seen held just before, 2, and 1 read
//	see a held lease at first    1 request    1 write; from emulators 2, and 1 read
//	see it again                 1 request    1 read
//	take it over                 2 requests   1 read, 1 write
//	renew                        1 request    1 write
//	release                      1 request    1 write
//	lose a lease                 1 request    1 write; 2, and 1 read, if the item is gone
//
// A rebuild thus costs two writes, and each waiting process one write and then one read for each
// look. One item takes about 1,000 writes and 3,000 reads a second, including refused writes.
//
// # What stays in the table
//
// Each item has the attribute "expires", a date one day after its lease's end. Only the table's time to live
// reads it: DynamoDB deletes the item later, usually within a few days, at no cost. So the table has one item
// of about 200 bytes for every key leased in the last days, not one for each lease.
//
// # Tokens
//
// The Token of [driver.Tokener] is the version at the start of the lease. It rises with every lease while the
// item exists, across takeovers and without any clock; gaps have no meaning. After the item is gone, the next
// version starts from the client's date, in microseconds. The date is greater than all earlier versions
// unless the client's clock is behind the clock that made the former item by more than the time in between.
// This time is at least a day after the clean-up, but may be short after a deletion by hand. A table restored
// from a backup issues old tokens again.
//
// # Limits
//
// A client whose clock is behind by more than a day writes past dates, and DynamoDB may clear a held lease.
// Then there are two holders until the first renews, and the store's epochs let only one write. A lease is at
// most a year long.
//
// All processes have to use one region's endpoint, unless a global table has multi-region strong consistency.
// In a usual global table (multi-region eventual consistency) the last writer wins, so each region elects its
// own holder, and versions run backwards. With strong consistency conditions are checked correctly (an update
// in conflict with another region's is sent again), but there is no time to live: items stay for good. All
// reads here are consistent. A cache that answers them otherwise breaks the observation of a holder's end.
//
// An acquire or a release under way when its caller's context ends goes on to its reply, for ten seconds at
// most, and an acquire that then succeeds is undone. A failed release is repeated in the background, with
// pauses from 250 ms to 16 s: seven times, in 32 s to 100 s. If an attempt to acquire had no reply, the
// Locker frees the item in the same way, after the acquire has failed or found another holder, or after the
// release. If DynamoDB gives no answer for so long, or carries the attempt out after it, the item has no
// holder and is free after its length has been observed.
//
// The SDK tries throttled and failed requests three times by default, with pauses of up to 20 s. Bellwether
// has its own breaker: set RetryMaxAttempts to 2; the second attempt finds a lost reply. On a silent
// connection only the HTTP client ends the first attempt: give its Transport a ResponseHeaderTimeout of a
// second or two. The SDK's standard retryer also stops repeating after some hundred failures; with
// ratelimit.None as its RateLimiter it goes on.
package dynamolock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/middleware"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

const (
	// callTimeout bounds a call without a deadline, and a request after its caller has left.
	callTimeout = 10 * time.Second

	// lately is the time after a lease's announced end in which it is read before a try, since it
	// may need a takeover. A lease that ended earlier was most likely released.
	lately = 2 * time.Second

	// maxTTL is the longest lease: the sum of two is still a Duration.
	maxTTL = 365 * 24 * time.Hour
)

// A Client is the part of a [*dynamodb.Client] that the Locker needs.
type Client interface {
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
}

// A Locker is a [driver.Locker] on DynamoDB. Create it with [New]. It is safe for concurrent use.
type Locker struct {
	// Prefix begins the name of every item, so programs can share a table. The default is
	// "bellwether:". Set Prefix before first use.
	Prefix string

	client Client
	table  string
	seen   adapter.Observations[record]
}

var (
	_ driver.Locker  = (*Locker)(nil)
	_ driver.Tokener = (*lease)(nil)
)

// New returns a Locker with its leases in table, as created by [CreateTable]. The client needs
// permission for dynamodb:UpdateItem and dynamodb:GetItem. New panics without a client or a table.
func New(client Client, table string) *Locker {
	if adapter.Missing(client) || table == "" {
		panic(errors.New("dynamolock: New needs a client, such as dynamodb.NewFromConfig makes, and a table's name"))
	}
	return &Locker{Prefix: "bellwether:", client: client, table: table}
}

// TryAcquire implements [driver.Locker]. It costs 1 request, or 2 for a takeover or a lease that was held
// until lately. A HeldError's Until counts from this Locker's first sight of the unchanged lease, so a
// long-dead holder costs at most its announced length.
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
		outlasting, cancel := detached(ctx)
		defer cancel()
		if err := l.acquire(outlasting, key, mine, ttl); err != nil {
			if mine.unaccounted {
				mine.freeLater(ctx, firstPause)
			}
			return nil, mine.wrap(ctx, "acquire", err)
		}
		return mine, nil
	}, func(_ driver.Lease, err error) {
		if err == nil { // the caller has left
			mine.Release(context.WithoutCancel(ctx))
		}
	})
}

func (l *Locker) acquire(ctx context.Context, key string, mine *lease, ttl time.Duration) error {
	wanted := take(mine.owner, ttl)
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
			wanted = takeOver(now, mine.owner, ttl)
		}
	}
	for {
		version, instead, err := l.update(ctx, mine.item, wanted, mine.account)
		switch {
		case err != nil:
			mine.unaccounted = mine.unaccounted || !isRefusal(err)
			return err
		case instead == nil:
			l.seen.Forget(mine.item)
			mine.began(version)
			return nil
		case instead.held && instead.owner == mine.owner:
			// The request was carried out, its reply was lost, and the SDK has repeated it.
			mine.began(instead.version)
			return nil
		case !instead.held:
			// Released before our takeover, or with an emulator, between the refusal and its look.
			wanted = take(mine.owner, ttl)
			continue
		}
		if held := l.observe(key, mine.item, *instead); held != nil {
			return held
		}
		// A quicker caller's lease has its end ahead, so the loop ends.
		wanted = takeOver(*instead, mine.owner, ttl)
	}
}

// observe returns the error for a lease just read as held, or nil after enough silence for a takeover.
func (l *Locker) observe(key, item string, now record) error {
	until := l.seen.Until(item, now, now.length)
	if time.Now().Before(until) {
		return &driver.HeldError{Key: key, Until: until}
	}
	return nil
}

// detached returns a context with the values of ctx that does not end with ctx. A request given up halfway
// may have taken a lease, and an undo on another connection might be carried out first.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
}

// A lease is the holder's side of an item.
type lease struct {
	locker *Locker
	item   string
	owner  string
	token  uint64 // set before the lease is shared
	// unaccounted is whether an attempt to acquire has ended without DynamoDB's answer: it may have
	// been carried out, or may be yet. Set before the lease is shared.
	unaccounted bool

	mu      sync.Mutex // guards version and end
	version uint64     // of the item, as of the last change with a reply
	end     time.Time  // of the lease, as its holder counts
}

// Token implements [driver.Tokener].
func (l *lease) Token() uint64 { return l.token }

// Renew implements [driver.Lease], with 1 request.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("dynamolock: renew %s: ttl %v is not positive", l.item, ttl)
	}
	ttl = min(ttl, maxTTL)
	end := time.Now().Add(ttl)
	if l.over() {
		// An observer may be about to take the lease over: after its end, no process has to respect it.
		return l.Release(ctx)
	}
	err := adapter.Do(ctx, func() error {
		// Not detached: an abandoned renewal may be carried out or not, and the next one finds out.
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return l.renew(bounded, ttl, end)
	})
	return l.wrap(ctx, "renew", err)
}

// renew prolongs the item if this lease has it, else returns ErrLeaseLost. Without the version in the
// condition: a renewal to 5 s hangs in the network until its caller gives up. The next one, to 60 s,
// succeeds. Now the first arrives, and observers count 5 s while the holder believes in 60 s.
func (l *lease) renew(ctx context.Context, ttl time.Duration, end time.Time) error {
	l.mu.Lock()
	version := l.version
	l.mu.Unlock()
	for {
		next, instead, err := l.locker.update(ctx, l.item, prolong(l.owner, version, ttl))
		switch {
		case err != nil:
			if !isRefusal(err) {
				l.mayEnd(end, version)
			}
			return err
		case instead == nil:
			l.mu.Lock()
			defer l.mu.Unlock()
			if next > l.version { // else a later renewal has overtaken this reply
				l.version, l.end = next, end
			}
			return nil
		case !instead.held || instead.owner != l.owner:
			return driver.ErrLeaseLost
		case ctx.Err() != nil:
			return ctx.Err() // only a waiting caller may try a later version
		}
		// Another renewal was carried out, or this one was and its reply was lost. Each round is such a
		// success, so the loop ends.
		version = instead.version
	}
}

// mayEnd ends the lease no later than a renewal of that version without an answer: if it was carried out, observers
// read its length. A later version known here is another renewal's; an earlier one only lacks a lost reply.
func (l *lease) mayEnd(end time.Time, version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version <= version && end.Before(l.end) {
		l.end = end
	}
}

// Release implements [driver.Lease], with 1 request. For an expired lease it clears the item, so no
// process has to observe it, and returns ErrLeaseLost.
func (l *lease) Release(ctx context.Context) error {
	over := l.over()
	err := l.free(ctx)
	if stays(err) || l.unaccounted { // a late attempt to acquire would take the item again
		l.freeLater(ctx, firstPause)
	}
	if err == nil && over {
		err = driver.ErrLeaseLost
	}
	return l.wrap(ctx, "release", err)
}

// account makes an acquire's request see each of the SDK's attempts. The answer to the last attempt
// tells nothing of the others.
func (l *lease) account(o *dynamodb.Options) {
	see := func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
		out, metadata, err := next.HandleDeserialize(ctx, in)
		l.unaccounted = l.unaccounted || err != nil && !isRefusal(err)
		return out, metadata, err
	}
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("bellwether:account", see), middleware.Before)
	})
}

const (
	firstPause = 250 * time.Millisecond
	lastPause  = 16 * time.Second
)

// freeLater frees the item after a pause, and after failures again with doubled pauses, seven times in all.
// DynamoDB ends no lease: a process that finds the item at the key's next expiry, perhaps hours later, would
// wait for its announced length.
func (l *lease) freeLater(ctx context.Context, pause time.Duration) {
	if pause > lastPause {
		return
	}
	time.AfterFunc(pause, func() {
		if stays(l.free(context.WithoutCancel(ctx))) {
			l.freeLater(ctx, 2*pause)
		}
	})
}

func (l *lease) began(version uint64) {
	l.token = version
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version = version
}

// stays reports whether the lease may still have the item after free.
func stays(err error) bool {
	return err != nil && !errors.Is(err, driver.ErrLeaseLost) && !errors.Is(err, driver.ErrCorrupt)
}

func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.end)
}

// free makes the item free if this lease has it, else returns ErrLeaseLost. The condition needs no version:
// even a late request ends only this lease. The item gets a token of this call, to tell a repeated attempt of
// one call from a second call.
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

// wrap adds the operation and a remedy to an engine's error. Errors of the contract and ctx's own
// error pass unchanged.
func (l *lease) wrap(ctx context.Context, doing string, err error) error {
	switch {
	case err == nil, errors.Is(err, driver.ErrLeaseLost), errors.Is(err, driver.ErrHeld):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("dynamolock: %s %s: %w", doing, l.item, explain(l.locker.table, err))
}
