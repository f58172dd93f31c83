package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/internal/lookout"
)

// This file is how a flight that queues or waits hears of its key: by planned looks and by notices.

// planLook plans the flight's next look after the pause, instead of its last plan.
func (r *run) planLook(pause time.Duration) (look <-chan *lookout.Reply) {
	r.planned = r.engine.lookout.Plan(r.planned, r.key, r.budget, pause)
	return r.planned.Reply()
}

func (r *run) dropLook() {
	r.engine.lookout.End(r.planned)
	r.planned = nil
}

// lookByReply is lookAnew with a reply. Without a reply, or with a reply from before an invalidation, it looks.
func (r *run) lookByReply(ctx context.Context, there *lookout.Reply) bool {
	if there == nil || there.Silent() || !r.renewLookAsOf(there.Asked) {
		return r.lookAnew(ctx)
	}
	return r.lookBy(ctx, r.replyAtHand(there))
}

// lookPause is how often a flight looks although its locker pushes: a push may die with its engine.
const lookPause = time.Second

// lookEvery is the pause between two looks for another process's commit. It is lookPause if the store
// sends notices: looks then only make up for lost notices. Otherwise it is poll.
func (e *engine) lookEvery(poll time.Duration) time.Duration {
	if e.notified {
		return lookPause
	}
	return poll
}

// answerByNotice ends a waiting flight by the notice's entry, or looks. It reports whether the flight ended.
func (r *run) answerByNotice(ctx context.Context, n timedNotice) bool {
	known, now := r.engine.near.Get(r.key)
	if !n.credible(now, r.engine.NearTTL) || !r.renewLookAsOf(n.made) {
		return r.lookAnew(ctx)
	}
	r.looking.askedBefore, r.looking.asked = n.made, n.made
	if !r.considerReply(n.reply(), known) {
		return false
	}
	if r.waiting.holder != nil { // otherwise the flight waits for a slot or a turn
		r.committed = max(n.made, r.waiting.since)
	}
	return true
}

// renewLookAsOf is renewLook as of made. It returns false if made is before the flight, or before the key's last
// invalidation here, which may have overtaken the notice: callers after it must not get the value.
func (f *flight) renewLookAsOf(made instant) bool {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if made <= f.validSince {
		return false
	}
	f.renewLookLocked()
	return true
}
