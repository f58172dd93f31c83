package chaos

import "time"

// This file checks near tiers beyond order and drop: where the store sends notices, they follow at once.

// near checks the answers of each process against "a notice of an invalidation removes the value".
// When a process has applied the notice, later calls get no value whose tried epochs are all lower.
// There is no excuse: the process needs no engine for that. A value that was never offered to the
// store has no epoch, and is not judged.
func (p *past) near(events []event) {
	_, tried := epochs(events)
	told := map[being][]event{}
	for _, e := range events {
		if e.Kind == kindTold {
			who := being{e.Worker, e.Life}
			told[who] = append(told[who], e)
		}
	}
	for _, g := range events {
		if !g.answers() {
			continue
		}
		var last event // the applied notice with the greatest epoch
		for _, t := range told[being{g.Worker, g.Life}] {
			if t.Result == done && t.End < g.Begin && t.Epoch > last.Epoch {
				last = t
			}
		}
		switch {
		case last.Epoch == 0:
		case tried[g.Version] == 0:
			p.excused[checkNear]++
		case tried[g.Version] < last.Epoch:
			p.judged[checkNear]++
			p.add(checkNear, "a process that was told of an invalidation goes on with what was before it:\n\t%s\n\t%s, begun %v after that, was never tried to be committed above %d",
				last, g, time.Duration(g.Begin-last.End), tried[g.Version])
		case g.Near:
			p.judged[checkNear]++
		}
	}
}
