package chaos

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// This file checks the promises for losing rebuilds: hedges, hedged holders, and late commits.

// hedgeLease is the prefix of a hedge lease's key.
const hedgeLease = "\x00hedge\x00"

// A callID identifies a call in a history.
type callID struct {
	being
	id uint64
}

func (e *event) call() callID { return callID{being{e.Worker, e.Life}, e.ID} }

// hedgesAmong returns the loads of a key that began as hedges: their process has last acquired the
// hedge lease. A process has one flight of a key at a time.
func hedgesAmong(all []event, key string) map[callID]bool {
	hedged, elected := map[callID]bool{}, map[being]bool{}
	for _, e := range all {
		if strings.TrimPrefix(e.Key, hedgeLease) != key {
			continue
		}
		who := being{e.Worker, e.Life}
		switch {
		case e.Kind == kindTake && e.Result == done:
			elected[who] = e.Key != key
		case e.Kind == kindLoad:
			if elected[who] {
				hedged[e.call()] = true
			}
			elected[who] = false
		}
	}
	return hedged
}

// mostRefused is the number of failed loads after which a flight gives its value to callers before
// the last load.
const mostRefused = 5

// loser checks the answers against "first commit wins": no call gets a value that the store refused, or
// that a process with an epoch for it gave up. The callers of a flight whose loads all fail are exempt.
//
// A commit without an answer may have been the first. A process without answers makes values
// without its store. And a store that commits in two steps may have had in between a value that it
// refused in the end (memcachestore): a process that has read the value there serves it.
func (p *past) loser(events []event) {
	type fate struct{ kept, refused bool }
	fates := map[int]fate{}
	for _, e := range events {
		if e.Kind != kindPut {
			continue
		}
		own := cmp.Or(e.Failure, e.Version) // the load's: the commit of a failure repeats an earlier value
		for _, version := range [...]int{e.Version, e.Failure} {
			f := fates[version]
			f.kept, f.refused = f.kept || e.Result != fenced, f.refused || e.Result == fenced && version == own
			fates[version] = f
		}
	}
	vain := map[being]int{} // failed loads in a row
	for _, l := range loadsAmong(events) {
		who := being{l.Worker, l.Life}
		f := fates[l.Version]
		if vain[who]++; l.Version > 0 && f.kept {
			vain[who] = 0
		}
		if l.Result != done || f.kept {
			continue
		}
		claim, claimed := claimOf(events, l)
		if !f.refused && !claimed {
			p.excused[checkLoser]++
			continue
		}
		p.judged[checkLoser]++
		for _, g := range events {
			if g.Kind != kindGet || g.Result != done || g.Version != l.Version {
				continue
			}
			if f.refused && (g.Worker == l.Worker && g.Life == l.Life && g.Begin <= l.Begin && vain[who] >= mostRefused || readFor(events, g)) ||
				!f.refused && !p.atWork(who, span{claim.Begin, g.End}) {
				p.excused[checkLoser]++
				continue
			}
			p.add(checkLoser, "the value of a load that has lost is served:\n\t%s, refused by the store: %v\n\t%s, begun %v after the load",
				l, f.refused, g, time.Duration(g.Begin-l.Begin))
			break
		}
	}
}

// readFor reports whether the process that served g had read the value in the store.
func readFor(events []event, g event) bool {
	return slices.ContainsFunc(events, func(e event) bool {
		return (e.Kind == kindRead || e.Kind == kindClaim) && e.Result == done && e.Version == g.Version &&
			e.Worker == g.Worker && e.Life == g.Life && e.Begin < g.End
	})
}

// hedge checks that a key's hedges are harmless: a hedge that finds the holder's commit after its
// load commits nothing. Nor does a hedge whose load has failed.
//
// A hedge cannot find that commit without answers, or if the holder's value expired or was invalidated.
func (p *past) hedge(events []event, hedged map[callID]bool) {
	for _, l := range loadsAmong(events) {
		if !hedged[l.call()] {
			continue
		}
		claim, ok := claimOf(events, l)
		if !ok {
			p.excused[checkHedge]++
			continue
		}
		p.judged[checkHedge]++
		who := being{l.Worker, l.Life}
		for _, e := range events {
			switch {
			case l.Result == failed && (e.Kind == kindPut && e.Failure == l.Version || e.Kind == kindGet && e.Result == failed && e.Version == l.Version):
				p.add(checkHedge, "the failure of a hedge is told:\n\t%s\n\t%s", l, e)
			case l.Result == done && e.Kind == kindPut && e.Version == l.Version && e.Worker == l.Worker && e.Life == l.Life && e.Failure == 0:
				first := slices.IndexFunc(events, func(c event) bool {
					return c.Kind == kindPut && c.Result == done && c.Version > 0 && c.Failure == 0 && c.Epoch < e.Epoch && claim.End < c.Begin && c.End < l.End
				})
				switch {
				case first < 0:
				case e.Begin > events[first].Begin+int64(events[first].Keep-slackOfLife), disownedIn(events, span{events[first].Begin, e.Begin}), !p.atWork(who, span{claim.Begin, e.Begin}):
					p.excused[checkHedge]++
				default:
					p.add(checkHedge, "a hedge does not mind that the holder was first:\n\t%s, ended %v before the hedge's load\n\t%s\n\t%s",
						events[first], time.Duration(l.End-events[first].End), l, e)
				}
			}
		}
	}
}

// share checks the hedges of each process against their share of its own rebuilds, with or without
// a claim. hedged has the hedges of all keys. One more is allowed for rebuilds without a trace.
func (p *past) share(hedged map[callID]bool) {
	type tally struct {
		own, hedges int
		claimed     map[string]bool
	}
	tallies := map[being]*tally{}
	for _, e := range p.all {
		who := being{e.Worker, e.Life}
		t := tallies[who]
		if t == nil {
			t = &tally{claimed: map[string]bool{}}
			tallies[who] = t
		}
		switch {
		case e.Kind == kindClaim:
			t.own++
			t.claimed[e.Key] = true
		case e.Kind != kindLoad:
		case hedged[e.call()]:
			if t.claimed[e.Key] {
				t.own--
				t.claimed[e.Key] = false
			}
			t.hedges++
			if most := 1 + p.plan.times.Share*float64(t.own); float64(t.hedges) > most {
				p.add(checkHedge, "a process has begun %d hedges beside %d rebuilds of its own, of which they may be %v: %s", t.hedges, t.own, p.plan.times.Share, e)
			}
		default:
			if !t.claimed[e.Key] {
				t.own++
			}
			t.claimed[e.Key] = false
		}
	}
}
