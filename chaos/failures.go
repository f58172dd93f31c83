package chaos

import (
	"slices"
	"time"
)

// This file checks the promises for failing loads: a failure is shared, and the next try comes when
// it is due. The checks order and drop hold the order of failures and their end by an invalidation.

// clockSlack is the largest error of an engine's stamp: in microseconds, on another clock.
const clockSlack = 10 * time.Millisecond

// failure checks the calls of a key against "a context error or a lost lease is not shared": a call
// fails with the origin's failure, with a bound of the cache, or by its own caller's end.
func (p *past) failure(events []event) {
	for _, g := range events {
		if g.Kind != kindGet {
			continue
		}
		switch g.Result {
		case failed:
			p.judged[checkFailure]++
		case bounded:
			p.excused[checkFailure]++ // the duration of its memory is no promise
		case silent:
			p.judged[checkFailure]++
			p.add(checkFailure, "a call failed with an error that is not for it: %s", g)
		}
	}
}

// pause checks the loads of a key against "the next try comes when it is due": a process whose
// claim has found a failure does not load before the time that the failure's commit has announced.
// Only three cases are excused, because the claim was answered:
//
//   - A process without an answer since then may have loaded without the store.
//   - A process may know something later than the store.
//   - A process whose own load failed may try earlier after a load of another key has succeeded.
func (p *past) pause(key string, events []event) {
	announced := map[uint64]event{} // by epoch
	for _, e := range events {
		if e.Kind == kindPut && e.Failure != 0 && e.Retry > 0 {
			announced[e.Epoch] = e
		}
	}
	for _, b := range loadsAmong(events) {
		claim, ok := claimOf(events, b)
		c := announced[claim.Epoch]
		if !ok || c.Failure == 0 || claim.Failure != c.Failure {
			continue
		}
		later := slices.ContainsFunc(events, func(e event) bool { return e.Kind == kindPut && e.Begin < b.Begin && e.Epoch > claim.Epoch })
		recovered := c.Worker == b.Worker && c.Life == b.Life && slices.ContainsFunc(p.all, func(e event) bool {
			return e.Kind == kindLoad && e.Worker == b.Worker && e.Life == b.Life && e.Result == done && c.Begin < e.End && e.End <= b.Begin
		})
		if later || recovered || !p.atWork(being{b.Worker, b.Life}, span{claim.Begin, b.Begin}) {
			p.excused[checkPause]++
			continue
		}
		p.judged[checkPause]++
		if early := c.Begin + int64(c.Retry) - b.Begin; early > int64(clockSlack) {
			p.add(checkPause, "%q is loaded %v before the next try is due:\n\t%s, announced a pause of %v\n\t%s\n\t%s",
				key, time.Duration(early), c, c.Retry, claim, b)
		}
	}
}

// disownedIn reports whether the key of these events may have been invalidated in s.
func disownedIn(events []event, s span) bool {
	for _, e := range events {
		if e.Kind != kindVoid {
			continue
		}
		if e.Result != done {
			e.End = e.Begin + lateness
		}
		if s.meets(span{e.Begin, e.End}) {
			return true
		}
	}
	return false
}
