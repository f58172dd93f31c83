package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/lookout"
)

// This file is the state looking: the flight reads the store. The entry there ends the flight, is
// offered to callers as a stale item, or is no answer.

// look is the state looking. Each flight comes here first.
func (r *run) look(ctx context.Context) rebuildOutcome {
	first := !r.looking.lookedOnce
	r.looking.lookedOnce = true
	if first && r.queues {
		defer r.engine.count.awaitingFirstLook.Add(-1)
	}
	// Callers gather in the pause after a void load for the next load. Without it a quick load that invalidates its own
	// key would answer no caller: all callers would have come after the load began.
	time.Sleep(r.looking.pause)
	r.looking.pause = 0
	r.loaded = false
	var there *lookout.Reply
	if first && r.member != nil {
		there = r.member.firstReply(ctx)
	}
	ended := false
	switch {
	case ctx.Err() != nil: // no caller waits for a look
	case there != nil: // the batch has read the key after the flight began
		ended = r.lookBy(ctx, r.replyAtHand(there))
	case r.electsAtOnce() && r.takeFreeSlot(): // the slot first, since the elected flight has to load
		r.renewLook()
		ended = r.lookBy(ctx, r.readAndStand)
	default:
		ended = r.lookAnew(ctx)
	}
	if ended {
		return outcomeAnswered
	}
	return outcomeNothing
}

// lookAnew looks without an election. It reports whether the flight has ended.
func (r *run) lookAnew(ctx context.Context) bool {
	r.renewLook()
	return r.lookBy(ctx, r.readWithLog)
}

// lookBy is a look by one of the reads of reading.go and election.go. It reports whether the flight has ended.
func (r *run) lookBy(ctx context.Context, read func(context.Context) lookout.Reply) bool {
	e := r.engine
	r.looking.mark = mark{}
	known, now := e.near.Get(r.key)
	if e.Store == nil {
		r.present = known
		// Set, or another way without a flight, may have brought a fresh item.
		return known != nil && known.Fresh(now) && r.consider(known, false)
	}
	var held *items.Item
	if known != nil && judge(&known.Lifetime, now) != rebuild {
		// A silent store cannot void the item, which answers as if the store had confirmed it now.
		held = known.Found(durations.Add(now, e.NearTTL))
		// During an outage no caller waits for the flight that probes the store. After two seconds
		// without a failure the store is asked first: another process may have invalidated the key.
		if held.Held && e.store.Fails(r.key) {
			r.offer(held, false)
		}
	}
	there := read(ctx)
	r.looking.askedBefore, r.looking.asked = r.looking.asked, there.Asked
	if there.Entry.Fresh() {
		r.looking.unfitEpoch = there.Entry.Epoch
	}
	r.storeDown = there.Silent() && ctx.Err() == nil // of a deserted flight: it would trust its item as in an outage
	switch {
	case there.Err == nil:
		return r.considerReply(there, known)
	case ctx.Err() != nil:
		return false // Close or desertion, not silence, ended the request: the item stays unconfirmed
	case r.storeDown:
		r.noAnswer(ctx, "reading", there.Err)
		if held != nil {
			// The item answers also the callers that came while the store was silent.
			return r.consider(held.Found(max(held.TrustedUntil, e.clock.Now()+1)), false)
		}
		r.present = known
	default:
		if !errors.Is(there.Err, ErrNotFound) {
			e.OnError(r.key, &keyError{"reading", r.key, there.Err}) // no valid entry
		}
		r.present = nil
		r.endOffer() // the item was invalidated
	}
	return false
}

func (r *run) considerReply(there lookout.Reply, known *items.Item) bool {
	it, is := r.decode(there, known)
	r.looking.mark = is
	return r.consider(it, true)
}

// consider ends the flight with an item that answers, or offers a stale item, unless the key was invalidated since
// the last look. It reports whether the flight has ended. fromStore is false for an item that was at hand.
func (r *run) consider(it *items.Item, fromStore bool) bool {
	r.present = it
	r.committed = 0
	if it == nil {
		return false
	}
	if fromStore && r.waiting.sees(it.Epoch) {
		r.committed = max(it.Born, r.waiting.since)
		if r.waiting.first == 0 {
			r.waiting.first, r.waiting.missing = it.Epoch, r.looking.askedBefore
		}
	}
	if r.want.Fits != nil && !r.want.Fits(it) {
		return false // the item answers other calls, never the call that began this flight
	}
	is, suitsBefore := r.verdictOn(it, r.engine.clock.Now()), instant(0)
	declined := is == serve && r.declines(it, fromStore)
	if declined && fromStore {
		suitsBefore = r.laterLoad(it)
	}
	switch {
	case is == rebuild:
	case is == serveStale, declined && suitsBefore == 0:
		// The call that began this flight declines the item or has it replaced. Other callers may take it.
		r.offer(it, fromStore)
	default:
		r.noteOthersBuild(it)
		if r.settle(it, it.TrustedUntil, suitsBefore) {
			r.loaded = false // also in a look that follows a failed load
			if fromStore {
				r.engine.count.storeHits.Add(1)
			}
			return true
		}
	}
	return false
}

func (r *run) verdictOn(it *items.Item, now instant) verdict {
	is, offered := judge(&it.Lifetime, now), r.state.Load().offered
	if is != rebuild || !r.waiting.sees(it.Epoch) || offered != nil && offered.Epoch == it.Epoch {
		return is
	}
	// Another process's load has ended while this flight waited. A failure without a pause, and ErrNotFound
	// without a TTL, still answer the flights that waited: otherwise they would load one after another. An
	// item that was on offer, and has expired, is no news to the callers that wait now.
	switch {
	case it.Failures > 0:
		return fail
	case it.Kind == driver.KindNotFound:
		return serve
	}
	return is
}

// declines reports whether the call that began the flight does not take the item. During a failure's
// pause the call takes any item: a client's wish is no reason for an earlier try, see items.Want.
func (r *run) declines(it *items.Item, fromStore bool) bool {
	now := r.engine.clock.Now()
	if r.want.Accept == nil || it.BackingOff(now) {
		return false
	}
	judged := it
	if fromStore { // its age counts from when the reply came, and may have been more when the store sent it
		older := *it
		older.Born -= now - r.looking.asked
		judged = &older
	}
	return !r.want.Accept(judged, now)
}

// laterLoad returns when the item's load began in another process, if this load is later than the flight's wait, and
// otherwise 0. The value answers the callers from before this load whatever they want, as the flight's own load
// would. Otherwise each process with a client that wants a new value would load after the other.
//
// The order of events: this flight finds a holder at waiting.since. The holder's load began before,
// and commits first. The next committer claimed after this first commit, so the next load is new
// enough if every lease held. After a lost lease two loads may have overlapped. So the entry's age
// must agree: the load must not have begun before waiting.since. Both times are taken as early as
// possible. A Build of 0 is a value without a flight, and its age says nothing about a load.
func (r *run) laterLoad(it *items.Item) instant {
	if !r.waiting.sees(it.Epoch) {
		return 0
	}
	underWay := r.engine.clock.Now() - r.looking.asked // the longest that the reply can have taken
	began := it.Born - it.Build - underWay
	if it.Epoch == r.waiting.first || it.Build == 0 || began < r.waiting.since {
		return 0
	}
	return min(began, r.waiting.missing) + 1 // + 1 as in items.Item.LoadBegan
}
