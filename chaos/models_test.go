package chaos

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// The histories here are of one key, their times in milliseconds.

const msec = int64(time.Millisecond)

func TestStoreModel(t *testing.T) {
	at := func(k kind, r result, begin, end int64) event {
		return event{Kind: k, Result: r, Begin: begin * msec, End: end * msec, Keep: time.Minute}
	}
	claim := func(begin, end int64, claimed, present uint64) event {
		e := at(kindClaim, done, begin, end)
		e.Claimed, e.Epoch, e.Sum = claimed, present, present
		return e
	}
	commit := func(begin, end int64, epoch uint64, r result) event {
		e := at(kindPut, r, begin, end)
		e.Epoch, e.Sum = epoch, epoch
		return e
	}
	read := func(begin, end int64, epoch uint64) event {
		e := at(kindRead, done, begin, end)
		if e.Epoch, e.Sum = epoch, epoch; epoch == 0 {
			e.Result = notFound
		}
		return e
	}
	for _, c := range []struct {
		name     string
		events   []event
		restarts []span
		atomic   bool
		want     bool
	}{
		{"a rebuild", []event{claim(0, 1, 5, 0), commit(2, 3, 5, done), read(4, 5, 5)}, nil, true, true},
		{"a read of what was never committed", []event{claim(0, 1, 5, 0), read(4, 5, 5)}, nil, true, false},
		{"an epoch given out twice", []event{claim(0, 1, 5, 0), claim(2, 3, 5, 0)}, nil, true, false},
		{"a commit below one that was committed", []event{claim(0, 1, 5, 0), claim(2, 3, 6, 0), commit(4, 5, 6, done), commit(6, 7, 5, done)}, nil, true, false},
		{"the same in either order", []event{claim(0, 1, 5, 0), claim(2, 3, 6, 0), commit(4, 7, 6, done), commit(4, 7, 5, done)}, nil, true, true},
		{"a commit after an invalidation", []event{claim(0, 1, 5, 0), at(kindVoid, done, 2, 3), commit(4, 5, 5, done)}, nil, true, false},
		{"a commit of a claim after it", []event{at(kindVoid, done, 2, 3), claim(4, 5, 5, 0), commit(6, 7, 5, done)}, nil, true, true},
		{"a commit of a claim that a restart has lost", []event{claim(0, 1, 5, 0), commit(4, 5, 5, done)}, []span{{2 * msec, 3 * msec}}, true, false},
		{"an entry that a restart has lost", []event{claim(0, 1, 5, 0), commit(2, 3, 5, done), read(6, 7, 0)}, []span{{4 * msec, 5 * msec}}, true, true},
		{"an entry that nothing has taken away", []event{claim(0, 1, 5, 0), commit(2, 3, 5, done), read(6, 7, 0)}, nil, true, false},
		{"a claim that does not look", []event{claim(0, 1, 5, 0), commit(2, 3, 5, done), claim(6, 7, 6, 0)}, nil, true, false},
		{"an invalidation that may have been carried out", []event{claim(0, 1, 5, 0), commit(2, 3, 5, done), at(kindVoid, silent, 4, 5), read(6, 7, 0)}, nil, true, true},
		{"a commit without an answer", []event{claim(0, 1, 5, 0), commit(2, 3, 5, silent), read(6, 7, 5)}, nil, true, true},
		{"the end of one that nobody heard of", []event{claim(0, 1, 5, 0), commit(2, 0, 5, began), read(6, 7, 5)}, nil, true, true},
		{"its repetition, which it refuses", []event{claim(0, 1, 5, 0), commit(2, 3, 5, silent), commit(4, 5, 5, fenced), read(6, 7, 5)}, nil, true, true},
		{"its repetition, which was carried out", []event{claim(0, 1, 5, 0), commit(2, 3, 5, silent), commit(4, 5, 5, done), read(6, 7, 5)}, nil, true, true},
		{"one that was seen after an invalidation had ended it", []event{claim(0, 1, 5, 0), at(kindVoid, done, 2, 3), commit(4, 5, 5, silent), read(6, 7, 5)}, nil, false, false},
		{"one that was refused and seen before", []event{claim(0, 1, 5, 0), commit(2, 9, 5, fenced), read(3, 4, 5), at(kindVoid, done, 5, 6)}, nil, false, true},
		{"an entry that comes back", []event{claim(0, 1, 5, 0), commit(2, 3, 5, done), at(kindVoid, done, 4, 5), read(6, 7, 5)}, nil, false, false},
	} {
		ops := storeCalls(c.events, c.atomic, c.restarts)
		if got := porcupine.CheckOperations(storeModel, ops); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestLockModel(t *testing.T) {
	at := func(k kind, r result, worker int, begin, end int64) event {
		return event{Kind: k, Result: r, Worker: worker, Lease: 1, Begin: begin * msec, End: end * msec, TTL: 100 * time.Millisecond}
	}
	for _, c := range []struct {
		name     string
		events   []event
		restarts []span
		want     bool
	}{
		{"one after another", []event{at(kindTake, done, 1, 0, 1), at(kindFree, done, 1, 2, 3), at(kindTake, done, 2, 4, 5)}, nil, true},
		{"two at one time", []event{at(kindTake, done, 1, 0, 1), at(kindTake, done, 2, 4, 5)}, nil, false},
		{"while it is released", []event{at(kindTake, done, 1, 0, 1), at(kindFree, done, 1, 2, 9), at(kindTake, done, 2, 4, 5)}, nil, true},
		{"a takeover after the end", []event{at(kindTake, done, 1, 0, 50), at(kindTake, done, 2, 90, 101)}, nil, true},
		{"a takeover before it, from when the holder asked", []event{at(kindTake, done, 1, 0, 50), at(kindTake, done, 2, 90, 99)}, nil, false},
		{"a takeover of what was renewed", []event{at(kindTake, done, 1, 0, 1), at(kindRenew, done, 1, 50, 51), at(kindTake, done, 2, 110, 120)}, nil, false},
		{"a renewal without an answer counts for nobody", []event{at(kindTake, done, 1, 0, 1), at(kindRenew, silent, 1, 50, 51), at(kindTake, done, 2, 110, 120)}, nil, true},
		{"a renewal after another's takeover", []event{at(kindTake, done, 1, 0, 1), at(kindTake, done, 2, 110, 120), at(kindRenew, done, 1, 130, 131)}, nil, false},
		{"a loss before the end", []event{at(kindTake, done, 1, 0, 1), at(kindRenew, lost, 1, 50, 60)}, nil, false},
		{"a loss after it", []event{at(kindTake, done, 1, 0, 1), at(kindRenew, lost, 1, 110, 111)}, nil, true},
		{"a release of another's lease", []event{at(kindTake, done, 1, 0, 1), at(kindTake, done, 2, 110, 120), at(kindFree, done, 1, 130, 131)}, nil, false},
		{"a release without an answer", []event{at(kindTake, done, 1, 0, 1), at(kindFree, began, 1, 2, 0), at(kindTake, done, 2, 4, 5)}, nil, true},
		{"an engine that has forgotten", []event{at(kindTake, done, 1, 0, 1), at(kindTake, done, 2, 6, 7)}, []span{{2 * msec, 5 * msec}}, true},
	} {
		if got := porcupine.CheckOperations(lockModel, lockCalls(c.events, c.restarts)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	falling := []event{at(kindTake, done, 1, 0, 1), at(kindFree, done, 1, 2, 3), at(kindTake, done, 2, 4, 5)}
	falling[0].Token, falling[2].Token = 7, 7
	if porcupine.CheckOperations(lockModel, lockCalls(falling, nil)) {
		t.Error("a token that does not rise is linearizable")
	}
}

func TestDraw_IsTheSeeds(t *testing.T) {
	a, b, c := draw(7, time.Minute, 2), draw(7, time.Minute, 2), draw(8, time.Minute, 2)
	same := func(a, b schedule) bool {
		if a.times != b.times || len(a.steps) != len(b.steps) {
			return false
		}
		for i := range a.steps {
			if a.steps[i] != b.steps[i] {
				return false
			}
		}
		return true
	}
	if !same(a, b) || same(a, c) {
		t.Error("a seed does not stand for its schedule")
	}
	met := map[deed]bool{}
	for _, s := range a.steps {
		met[s.do] = true
	}
	if len(met) != 7 {
		t.Errorf("a minute of chaos has only %v", met)
	}
}
