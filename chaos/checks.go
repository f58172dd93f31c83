package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// This file checks a fleet's history against Bellwether's promises.

const (
	breakerPause = 1200 * time.Millisecond // how long the cache does not ask an engine that has not answered
	boundSlack   = time.Second             // of a running process over a bound: a busy machine wakes goroutines late
)

// A being is a process.
type being struct{ worker, life int }

// A past is a history in the order of the checks.
type past struct {
	*fleetRun
	*findings
	all  []event
	keys []string
	// failures are when each process got no answer from an engine, gaps when it did not run.
	failures map[being][]int64
	gaps     map[being][]span
	closed   map[being]int64 // when its cache was closed
	// commits are the ends of all processes' commits without an answer.
	commits []int64
	begun   map[string]map[int]int64 // by key and version, when the version's load began
}

// check returns the violations of the run.
func (r *fleetRun) check() *findings {
	p := &past{fleetRun: r, findings: newFindings(), all: latest(r.events), failures: map[being][]int64{}, gaps: map[being][]span{}, closed: map[being]int64{}, begun: map[string]map[int]int64{}}
	for _, l := range r.loads {
		if p.begun[l.key] == nil {
			p.begun[l.key] = map[int]int64{}
			p.keys = append(p.keys, l.key)
		}
		p.begun[l.key][l.version] = l.begin
	}
	slices.Sort(p.keys)
	for _, e := range p.all {
		who := being{e.Worker, e.Life}
		switch {
		case e.Kind == kindGap:
			p.gaps[who] = append(p.gaps[who], span{e.Begin, e.End})
		case e.Kind == kindClose:
			p.closed[who] = e.Begin
		case e.failed():
			p.failures[who] = append(p.failures[who], e.End)
			if e.Kind == kindPut {
				p.commits = append(p.commits, e.End)
			}
		}
	}
	allHedged := map[callID]bool{}
	for _, key := range p.keys {
		events, hedging := only(p.all, key), only(p.all, hedgeLease+key)
		hedged := hedgesAmong(p.all, key)
		maps.Copy(allHedged, hedged)
		p.contracts(key, events, hedging)
		p.one(key, events, hedged)
		p.order(events)
		p.drops(key, events)
		p.near(events)
		p.failure(events)
		p.pause(key, events)
		p.loser(events)
		p.hedge(events, hedged)
	}
	p.share(allHedged)
	p.bounds()
	p.recovered()
	return p.findings
}

// restarts returns when the engine came back empty.
func (p *past) restarts(engine int) []span {
	var out []span
	for _, f := range p.faults {
		if f.forgot == engine {
			out = append(out, f.span)
		}
	}
	return out
}

// contracts checks the engines' answers against their models. hedging are the hedge lease's calls.
func (p *past) contracts(key string, events, hedging []event) {
	ops := storeCalls(events, p.engines[0].atomic, p.restarts(0))
	p.judged[checkStore] += len(ops)
	switch text, known := linearizable(storeModel, ops); {
	case !known:
		p.undecided++
	case text != "":
		p.add(checkStore, "the store's answers for %q are not linearizable:%s", key, text)
	}
	for _, calls := range [][]event{events, hedging} {
		ops = lockCalls(calls, p.restarts(len(p.engines)-1))
		p.judged[checkLock] += len(ops)
		switch text, known := linearizable(lockModel, ops); {
		case !known:
			p.undecided++
		case text != "":
			p.add(checkLock, "the locker's answers for %q are not linearizable:%s", calls[0].Key, text)
		}
	}
}

// calm reports whether nothing in s excuses a process's view of its engines: no fault, no call
// without an answer, no pause of the process or the supervisor, and no closed cache.
func (p *past) calm(who being, s span) bool {
	for _, f := range p.faults {
		if (f.worker == who.worker || f.worker < 0) && f.meets(s) {
			return false
		}
	}
	return p.atWork(who, s) && overlap(p.gaps[who], s.begin, s.end) == 0 && p.fleetRun.gaps.within(s.begin, s.end) == 0
}

// atWork reports whether the process's calls in s had answers, and its cache was open.
func (p *past) atWork(who being, s span) bool {
	at, closed := p.closed[who]
	return p.answered(who, s) && !(closed && at <= s.end)
}

// answered reports whether the process has had an answer to every call that ended in s.
func (p *past) answered(who being, s span) bool {
	return !slices.ContainsFunc(p.failures[who], func(t int64) bool { return s.begin <= t && t <= s.end })
}

// one checks the loads against "at most one rebuild of a key at a time while the engines are
// healthy", in s and for a lease and a breaker's pause before.
//
// A cancelled load ends when it was last seen to be wanted. After any process's commit without an
// answer, an entry may stand for a while that sends each process to a load of its own.
//
// A hedge may run beside a holder's load, but not beside another hedge, for as long as a rebuild may.
func (p *past) one(key string, events []event, hedged map[callID]bool) {
	loads := loadsAmong(events)
	before := p.before()
	healthy := func(e event, s span) bool { return p.healthy(events, e, s) }
	for i, b := range loads {
		if !healthy(b, span{b.Begin - before, b.Begin}) {
			p.excused[checkOne]++
			continue
		}
		p.judged[checkOne]++
		for _, a := range loads[:i] {
			if a.End <= b.Begin || hedged[a.call()] != hedged[b.call()] {
				continue
			}
			s := span{a.Begin - before, b.Begin}
			if hedged[a.call()] {
				s.begin -= int64(p.plan.times.Rebuild)
			}
			if p.silence(s) || !healthy(a, s) || !healthy(b, s) {
				p.excused[checkOne]++
				continue
			}
			p.add(checkOne, "two loads of %q at one time, without any fault:\n\t%s, wanted for %v\n\t%s, %v later",
				key, a, time.Duration(a.End-a.Begin), b, time.Duration(b.Begin-a.Begin))
		}
	}
}

// before is how long before an event a fault excuses it: a lease and a breaker's pause.
func (p *past) before() int64 {
	return int64(p.plan.times.Lease + p.plan.times.Engine + breakerPause)
}

// healthy reports whether a load's process was calm in s, and its commits of these events get answers.
func (p *past) healthy(events []event, load event, s span) bool {
	if !p.calm(being{load.Worker, load.Life}, s) {
		return false
	}
	// After commits without an answer the lease is given back early, until a commit succeeds.
	last := done
	for _, c := range events {
		if c.Kind == kindPut && c.Worker == load.Worker && c.Life == load.Life && c.Begin < load.Begin {
			last = c.Result
		}
	}
	return last == done || last == fenced
}

// silence reports whether any process's commit has got no answer in s.
func (p *past) silence(s span) bool {
	return slices.ContainsFunc(p.commits, func(t int64) bool { return s.begin <= t && t <= s.end })
}

func loadsAmong(events []event) []event {
	var loads []event
	for _, e := range events {
		if e.Kind == kindLoad {
			loads = append(loads, e)
		}
	}
	return loads
}

// claimOf returns the claim with which a load began. The result is false if the load may have begun
// without its store: if that claim, or a later call, has no answer.
func claimOf(events []event, load event) (claim event, ok bool) {
	for _, e := range events {
		if e.Begin >= load.Begin {
			break
		}
		if e.Worker == load.Worker && e.Life == load.Life {
			switch e.Kind {
			case kindTake, kindRead, kindClaim, kindLoad:
				claim = e
			}
		}
	}
	return claim, claim.Kind == kindClaim && claim.Result == done
}

// A commit is the earliest commit of a version that was surely carried out.
type commit struct {
	epoch uint64 // the least
	end   int64
}

// epochs returns under which epochs versions were committed: surely, and at most (the greatest tried
// epoch). A load's failure has its load's version, and so has the value that its commit keeps.
func epochs(events []event) (sure map[int]commit, tried map[int]uint64) {
	sure, tried = map[int]commit{}, map[int]uint64{}
	for _, e := range events {
		if e.Kind != kindPut {
			continue
		}
		for _, version := range [...]int{e.Version, e.Failure} {
			if version == 0 {
				continue
			}
			tried[version] = max(tried[version], e.Epoch)
			if c, ok := sure[version]; e.Result == done && (!ok || e.Epoch < c.epoch) {
				sure[version] = commit{e.Epoch, e.End}
			}
		}
	}
	return sure, tried
}

// answers reports whether the event is a call that was answered with a load's value or failure.
func (e *event) answers() bool {
	return e.Kind == kindGet && (e.Result == done || e.Result == failed) && e.Version > 0
}

// order checks the answers of each process against "versions never fall".
//
// The order of rebuilds is the order of their epochs. The origin numbers a version when it is asked:
// a process that pauses between its claim and its load has an old epoch and a new version. And a
// failed rebuild commits the previous value under its own epoch. So a falling version is a violation
// only if all epochs that were ever tried for it are lower than each sure epoch of the greater
// version. Versions that were made without the store, and never offered to it, are not judged.
//
// Failures have versions too: no failure is served after something newer. After a failure no older
// answer is served, except the value that its commit has kept.
func (p *past) order(events []event) {
	sure, tried := epochs(events)
	served := map[being][]event{}
	for _, e := range events {
		if e.answers() {
			who := being{e.Worker, e.Life}
			served[who] = append(served[who], e)
		}
	}
	for _, gets := range served {
		byEnd := slices.SortedFunc(slices.Values(gets), func(a, b event) int { return cmp.Compare(a.End, b.End) })
		var seen []event // the first of each version to end, greatest version first
		for _, g := range gets {
			for len(byEnd) > 0 && byEnd[0].End < g.Begin {
				at, found := slices.BinarySearchFunc(seen, byEnd[0].Version, func(e event, v int) int { return cmp.Compare(v, e.Version) })
				if !found {
					seen = slices.Insert(seen, at, byEnd[0])
				}
				byEnd = byEnd[1:]
			}
			p.judged[checkOrder]++
			if g.Near {
				p.judged[hitsOver(p.engines[0].name)]++
			}
			for _, e := range seen {
				if e.Version <= g.Version {
					break
				}
				c, ok := sure[e.Version]
				if !ok || c.end > g.Begin || tried[g.Version] == 0 || tried[g.Version] >= c.epoch {
					p.excused[checkOrder]++
					continue
				}
				p.add(checkOrder, "a process has gone back:\n\t%s, committed under epoch %d\n\t%s, begun %v after that, was never tried to be committed above %d",
					e, c.epoch, g, time.Duration(g.Begin-e.End), tried[g.Version])
				break
			}
		}
	}
}

// drops checks the answers against "no value computed before an invalidation is served after it":
// in the invalidating process at once, in other processes after NearTTL.
//
// A process that cannot ask its store goes on with its values. It is judged if all its calls were
// answered for as long as a value could last that it made, or confirmed, without the store.
func (p *past) drops(key string, events []event) {
	t := p.plan.times
	before := int64(2*t.Lease + 2*t.Engine + breakerPause + t.Near)
	for _, d := range events {
		if d.Kind != kindDrop || d.Result != done {
			continue
		}
		for _, g := range events {
			if !g.answers() || g.Begin <= d.End {
				continue
			}
			own := g.Worker == d.Worker && g.Life == d.Life
			if !own && g.Begin <= d.End+int64(t.Near) {
				continue
			}
			p.judged[checkDrop]++
			if p.begun[key][g.Version] >= d.Begin {
				continue
			}
			if !own && !p.answered(being{g.Worker, g.Life}, span{g.Begin - before, g.End}) {
				p.excused[checkDrop]++
				continue
			}
			p.add(checkDrop, "served after it was invalidated:\n\t%s, ended at %.1f ms\n\t%s, begun %v later; its load had begun %v before the invalidation",
				d, float64(d.End)/1e6, g, time.Duration(g.Begin-d.End), time.Duration(d.Begin-p.begun[key][g.Version]))
		}
	}
}

// bounds checks all calls against MaxWait, without the time in which their process did not run.
func (p *past) bounds() {
	limit := p.plan.times.maxWait() + boundSlack
	for _, e := range p.all {
		if e.Kind != kindGet {
			continue
		}
		p.judged[checkBound]++
		took := time.Duration(e.End - e.Begin)
		if took > limit && took-overlap(p.gaps[being{e.Worker, e.Life}], e.Begin, e.End) > limit {
			p.add(checkBound, "a call took %v of at most %v: %s", took, limit, e)
		}
	}
}

// recovered checks the time after faults against "one rebuild, and all processes fresh within seconds".
func (p *past) recovered() {
	if p.calmAt == 0 {
		return // a run with a bug of another check, which does not wait for recovery
	}
	if !p.whole && (p.slow > 0 || p.fleetRun.gaps.within(p.calmAt, now()) > time.Second) {
		p.excused[checkRecovery]++
		return
	}
	p.judged[checkRecovery]++
	if !p.whole {
		p.add(checkRecovery, "%v after the last fault a new key is still not loaded once and served to all", recovery)
	}
	for n := range fleetKeys {
		key := fmt.Sprint("k", n)
		var last event
		for _, e := range p.all {
			if e.Kind == kindDrop && e.Key == key {
				last = e
			}
		}
		if last.Result != done {
			p.add(checkRecovery, "after the faults %q cannot be invalidated: %s", key, last)
			continue
		}
		for w := range fleetWorkers {
			if !slices.ContainsFunc(p.all, func(e event) bool {
				return e.Kind == kindGet && e.Key == key && e.Worker == w && e.Begin > last.End && e.Result == done && p.begun[key][e.Version] > last.Begin
			}) {
				p.add(checkRecovery, "after the faults worker %d gets no fresh value of %q", w, key)
			}
		}
	}
}
