package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// This file is the contracts of a store and a locker as models for porcupine: the answers to calls
// in sequence. A history is linearizable if an order of its calls agrees with their times, and the
// contract allows every answer in that order.
//
// Both models err on the side of the adapters. A call with an unknown end is left out if that
// allows more. If others have seen its effect, it was carried out by then, and is put in.

// forever is later than every moment.
const forever = int64(1) << 62

// slackOfLife is how long before its announced end an entry may be gone: the reader's estimate of
// the server's clock has an error of the reply's delay.
const slackOfLife = 4 * time.Second

// lateness is how long a call without an answer may still be carried out: as any fault delays it.
const lateness = int64(10 * time.Second)

// A span is an interval of time. end may be forever.
type span struct{ begin, end int64 }

func (s span) meets(o span) bool { return s.begin <= o.end && o.begin <= s.end }

type storeCall struct {
	event
	atomic  bool // the commit writes and fences at the same moment, and a call sees both or neither
	excused bool // an invalidation without an answer may have been carried out
	restart bool // the server was killed and came back empty
}

// storeState is a store's state of a key.
type storeState struct {
	counter, floor uint64 // lower bounds
	epoch, sum     uint64 // of the entry; 0: none
	until          int64  // until then it must be there
}

func (s storeState) step(c storeCall) (bool, storeState) {
	if c.restart {
		return true, s.disown()
	}
	switch c.Kind {
	case kindRead, kindClaim:
		if c.Epoch != 0 {
			if s.epoch != c.Epoch || s.sum != c.Sum {
				return false, s
			}
		} else if s.epoch != 0 && !c.excused && c.End < s.until {
			return false, s
		}
		if c.Kind == kindClaim {
			if c.Claimed <= s.counter {
				return false, s
			}
			s.counter = c.Claimed
		}
	case kindPut:
		if c.Epoch < s.floor || c.Epoch < s.epoch || c.Result != done && c.Epoch == s.floor {
			return false, s
		}
		if s.epoch == c.Epoch && s.sum != c.Sum {
			return false, s
		}
		if c.Result == done || c.atomic {
			s.floor = c.Epoch
		}
		s.epoch, s.sum, s.until = c.Epoch, c.Sum, c.Begin+int64(c.Keep-slackOfLife)
		if c.Keep <= 0 {
			s.epoch, s.sum = 0, 0
		}
	case kindVoid:
		s = s.disown()
	}
	return true, s
}

// disown drops the entry, and raises the floor above every claimed epoch, to an unused number.
func (s storeState) disown() storeState {
	n := max(s.floor, s.counter) + 1
	return storeState{counter: n, floor: n}
}

var storeModel = porcupine.Model{
	Init: func() any { return storeState{} },
	Step: func(state, input, _ any) (bool, any) { return state.(storeState).step(input.(storeCall)) },
}

// storeCalls returns porcupine's history of a key, for an atomic store or not, with its restarts.
func storeCalls(events []event, atomic bool, restarts []span) []porcupine.Operation {
	type identity struct{ epoch, sum uint64 }
	seen := map[identity]int64{}  // when the entry was first seen
	placed := map[identity]bool{} // commits that are in the history without an answer
	var unanswered []int64        // begins of invalidations
	for _, e := range events {
		switch {
		case (e.Kind == kindRead || e.Kind == kindClaim) && e.Result == done && e.Epoch != 0:
			id := identity{e.Epoch, e.Sum}
			if at, ok := seen[id]; !ok || e.End < at {
				seen[id] = e.End
			}
		case e.Kind == kindVoid && e.Result != done:
			unanswered = append(unanswered, e.Begin)
		}
	}
	var ops []porcupine.Operation
	add := func(c storeCall, begin, end int64) {
		ops = append(ops, porcupine.Operation{ClientId: len(ops), Input: c, Call: begin, Return: max(begin, end)})
	}
	for _, e := range events {
		c := storeCall{event: e, atomic: atomic}
		switch e.Kind {
		case kindRead, kindClaim:
			if e.Result != done && e.Result != notFound {
				continue
			}
			for _, at := range unanswered {
				c.excused = c.excused || at < e.End && e.Begin < at+lateness
			}
			add(c, e.Begin, e.End)
		case kindPut:
			end := e.End
			if e.Result != done {
				// Refused or not, the entry may have been there for a while: a store may replace an
				// entry before it raises the floor (memcachestore), or the reply to a first attempt
				// was lost. Only a call that has seen the entry proves it.
				id := identity{e.Epoch, e.Sum}
				at, ok := seen[id]
				if !ok || placed[id] {
					continue // a commit without an answer is repeated, and may refuse its own repetition
				}
				placed[id] = true
				if end = at; e.Result == fenced {
					end = min(at, e.End)
				}
			}
			add(c, e.Begin, end)
		case kindVoid:
			if e.Result == done {
				add(c, e.Begin, e.End)
			}
		}
	}
	for _, r := range restarts {
		add(storeCall{restart: true}, r.begin, r.end)
	}
	return ops
}

type lockCall struct {
	event
	owner   owner
	restart bool
	gone    bool // from here on the holder does not count on the lease, which may be free
}

type owner struct {
	worker, life int
	lease        uint64
}

// lockState is the holder of a key's lease.
type lockState struct {
	holder owner
	until  int64 // when the holder stops counting on the lease
	token  uint64
}

func (s lockState) step(c lockCall) (bool, lockState) {
	mine := s.holder == c.owner
	switch {
	case c.restart:
		return true, lockState{}
	case c.gone:
		if mine {
			s.until = min(s.until, c.Begin)
		}
		return true, s
	}
	switch c.Kind {
	case kindTake:
		// A takeover is allowed, but not while the holder counts on the lease.
		if s.holder != (owner{}) && c.End < s.until {
			return false, s
		}
		if c.Token != 0 && c.Token <= s.token {
			return false, s
		}
		return true, lockState{c.owner, c.Begin + int64(c.TTL), max(s.token, c.Token)}
	case kindRenew:
		if c.Result == lost {
			// Before the lease's end only a restart takes it away.
			return !mine || c.End >= s.until, s
		}
		if !mine {
			return false, s
		}
		s.until = c.Begin + int64(c.TTL)
	case kindFree:
		if c.Result == done && !mine {
			return false, s
		}
		if mine {
			s.holder, s.until = owner{}, 0
		}
	}
	return true, s
}

var lockModel = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) { return state.(lockState).step(input.(lockCall)) },
}

func lockCalls(events []event, restarts []span) []porcupine.Operation {
	var ops []porcupine.Operation
	add := func(c lockCall, begin, end int64) {
		ops = append(ops, porcupine.Operation{ClientId: len(ops), Input: c, Call: begin, Return: max(begin, end)})
	}
	for _, e := range events {
		c := lockCall{event: e, owner: owner{e.Worker, e.Life, e.Lease}}
		switch e.Kind {
		case kindTake:
			// No client counts on an acquire without an answer.
			if e.Result == done {
				add(c, e.Begin, e.End)
			}
		case kindRenew:
			// No holder counts on a renewal without an answer.
			if e.Result == done || e.Result == lost {
				add(c, e.Begin, e.End)
			}
		case kindFree:
			switch e.Result {
			case done, lost: // a repeated release may report lost
				add(c, e.Begin, e.End)
			default:
				c.gone = true
				add(c, e.Begin, e.Begin)
			}
		}
	}
	for _, r := range restarts {
		add(lockCall{restart: true}, r.begin, r.end)
	}
	return ops
}

// checkTime is porcupine's time limit for a key.
const checkTime = 30 * time.Second

// linearizable checks the history of a key against a model. text describes the violation, if any.
func linearizable(model porcupine.Model, ops []porcupine.Operation) (text string, known bool) {
	switch porcupine.CheckOperationsTimeout(model, ops, checkTime) {
	case porcupine.Ok:
		return "", true
	case porcupine.Unknown:
		return "", false
	}
	// The shortest prefix that is not linearizable ends with the wrong call.
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	bad := 1 + searchFirst(len(ops), func(n int) bool {
		// Calls that had begun by then may belong to the prefix.
		cut := ops[n].Return
		var part []porcupine.Operation
		for _, op := range ops {
			if op.Call <= cut {
				part = append(part, op)
			}
		}
		return porcupine.CheckOperationsTimeout(model, part, checkTime) == porcupine.Illegal
	})
	var b strings.Builder
	for _, op := range ops[max(0, bad-12):min(len(ops), bad+3)] {
		fmt.Fprintln(&b)
		if op.Return == ops[bad-1].Return {
			b.WriteString(" ->")
		}
		fmt.Fprintf(&b, "\t[%.1f, %.1f ms] %s", float64(op.Call-ops[0].Call)/1e6, float64(op.Return-ops[0].Call)/1e6, describe(op.Input))
	}
	return b.String(), true
}

func searchFirst(limit int, bad func(n int) bool) int {
	low, high := 0, limit-1
	for low < high {
		if mid := (low + high) / 2; bad(mid) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

func describe(input any) string {
	switch c := input.(type) {
	case storeCall:
		if c.restart {
			return "the store's server restarts"
		}
		return c.String()
	case lockCall:
		if c.restart {
			return "the locker's server restarts"
		}
		return c.String()
	}
	return fmt.Sprint(input)
}

func (e event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "worker %d.%d: %s %s: %s", e.Worker, e.Life, e.Kind, e.Key, e.Result)
	for _, n := range []struct {
		name string
		n    uint64
	}{{"epoch", e.Epoch}, {"claimed", e.Claimed}, {"version", uint64(e.Version)}, {"lease", e.Lease}, {"token", e.Token}} {
		if n.n != 0 {
			fmt.Fprintf(&b, ", %s %d", n.name, n.n)
		}
	}
	if e.Error != "" {
		fmt.Fprintf(&b, " (%s)", e.Error)
	}
	return b.String()
}
