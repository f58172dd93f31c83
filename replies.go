package bellwether

import (
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/lookout"
)

// This file is the store's word on a key beside an item: the mark of an entry without a value, or the notice of a
// change, which replaces the reply to a read (lookout.Reply).

// A mark is what an entry without a value says about the next load.
type mark struct {
	unshared  uint64 // the epoch of a KindUnshared entry: the process loads alone; 0: none
	unelected bool   // a KindUnelected entry below its TTL: the process loads without an election
}

// waives reports whether the next load needs no election: no process waits for it.
func (m mark) waives() bool { return m != mark{} }

// A timedNotice is a notice with the times of the engine's clock before its change and when it came.
type timedNotice struct {
	driver.Notice
	made, came instant
}

func (n *timedNotice) reply() lookout.Reply {
	return lookout.Reply{Entry: n.Entry, Asked: n.made, Came: n.came}
}

// carriesEntry reports whether the notice has the entry of its change.
func (n *timedNotice) carriesEntry() bool { return n.Entry.Epoch != 0 && n.Entry.Epoch == n.Epoch }

// credible reports whether the notice's entry may be believed now. After NearTTL it may be invalidated.
func (n *timedNotice) credible(now instant, nearTTL time.Duration) bool {
	return n.carriesEntry() && now < durations.Add(n.made, nearTTL)
}
