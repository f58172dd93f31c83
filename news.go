package bellwether

import (
	"context"
	"time"
)

// This file is how a flight that queues or waits hears of its key: by planned looks and by notices.

// planLook plans the flight's next look, instead of its last plan: after the pause, or with another
// flight's look in the last quarter of the pause.
func (r *run[V]) planLook(pause time.Duration) *plannedLook {
	e := r.engine
	r.dropLook()
	p := &plannedLook{
		key: r.key, budget: r.budget, from: e.clock.Now() + pause - pause/4,
		due: time.After(pause),
	}
	r.planned = p
	// A flight without enough time for a shared request looks alone.
	if e.many != nil && !r.storeDown && r.budget.Left() > e.sharedPatience() {
		p.reply = make(chan *storeReply, 1)
		e.lookout.add(p)
	}
	return p
}

func (r *run[V]) dropLook() {
	if p := r.planned; p != nil {
		r.planned = nil
		r.engine.lookout.remove(p)
	}
}

// makePlannedLook makes the due look and other flights' looks. It reports whether the flight has ended.
func (r *run[V]) makePlannedLook(ctx context.Context, p *plannedLook) bool {
	e := r.engine
	if p.reply == nil {
		return r.lookAnew(ctx)
	}
	if !e.lookout.remove(p) {
		select {
		case there := <-p.reply: // another flight makes the look
			return r.lookByReply(ctx, there)
		case <-ctx.Done():
			return false
		}
	}
	others := e.lookout.takeDue(e.clock.Now())
	if len(others) == 0 {
		return r.lookAnew(ctx)
	}
	others = append(others, p)
	e.lookForAll(ctx, r.key, 1, e.sharedPatience(), func() []*plannedLook { return others })
	return r.lookByReply(ctx, <-p.reply)
}

// lookByReply is lookAnew with a reply. After silence, or a reply from before an invalidation, it looks.
func (r *run[V]) lookByReply(ctx context.Context, there *storeReply) bool {
	if there.silent() || !r.renewLookAsOf(there.asked) {
		return r.lookAnew(ctx)
	}
	return r.lookBy(ctx, r.replyAtHand(there))
}

// lookPause is how often a flight looks although its locker pushes: a push may die with its engine.
const lookPause = time.Second

// lookEvery is the pause between two looks for another process's commit. It is lookPause if the store
// sends notices: looks then only make up for lost notices. Otherwise it is poll.
func (e *engine[V]) lookEvery(poll time.Duration) time.Duration {
	if e.notified {
		return lookPause
	}
	return poll
}

// answerByNotice ends a waiting flight by the notice's entry, or looks. It reports whether the flight ended.
func (r *run[V]) answerByNotice(ctx context.Context, n timedNotice) bool {
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
func (f *flight[V]) renewLookAsOf(made instant) bool {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if made <= f.validSince {
		return false
	}
	f.renewLookLocked()
	return true
}
