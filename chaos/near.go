package chaos

import "time"

// This file is what is promised of near tiers beyond order and drop: where the
// store tells of changes, they follow at once.

// near holds what each process has served against "what was told to be
// invalidated is gone": once a process has taken the notice in, no call that
// begins then gets anything that was only ever to be committed under a lower
// epoch. There is no excuse: the process need not ask anybody for that. What was
// never offered to the store has no epoch, and is not judged.
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
		var last event // of those that it knew of, that of the greatest epoch
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
