package chaos

import (
	"slices"
	"time"
)

// This file is what is promised of loads that fail: the failure is shared, and
// the next try comes when it is due. That failures are in the order of epochs,
// and that none outlives an invalidation, is held by order and drop.

// clockSlack is by how much an engine's stamp may be off: it counts in
// microseconds, and not by the clock of the history.
const clockSlack = 10 * time.Millisecond

// failure holds the calls of a key against "a context error or a lost lease is
// nobody's failure": a call fails with what a load of the origin has failed with,
// with a bound of the cache's, or by its own caller's end.
func (p *past) failure(events []event) {
	for _, g := range events {
		if g.Kind != kindGet {
			continue
		}
		switch g.Result {
		case failed:
			p.judged[checkFailure]++
		case bounded:
			p.excused[checkFailure]++ // how long it is told is nobody's promise
		case silent:
			p.judged[checkFailure]++
			p.add(checkFailure, "a call failed with an error that is not for it: %s", g)
		}
	}
}

// pause holds the loads of a key against "the next try comes when it is due": who
// has found a failure when it claimed does not load before the time that the
// failure's commit has announced. Nothing else excuses it: the claim was answered.
// Who got no answer since may have loaded without it, and who knew of something
// later than the store did went by that. Who has failed itself, and has had a load of
// another key succeed since, may try before that.
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

// disownedIn reports whether the key, whose events these are, may have been
// invalidated in s.
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
