package bellwether

import (
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
)

// This file is the store's word on a key: its reply to a read, or its notice of a change.

// A storeReply is the store's answer for a key. Its entry may wait: only came tells when it had its Age.
type storeReply struct {
	entry driver.Entry
	asked instant // before the store read the entry; for a notice, before the entry's commit
	came  instant
	err   error
}

func (r *storeReply) silent() bool { return errors.Is(r.err, ErrUnavailable) }

// A mark is what an entry without a value says about the next load.
type mark struct {
	unshared  uint64 // the epoch of a KindUnshared entry: the process loads alone; 0: none
	unelected bool   // a KindUnelected entry below its TTL: the process loads without an election
}

// A timedNotice is a notice with the times of the engine's clock before its change and when it came.
type timedNotice struct {
	driver.Notice
	made, came instant
}

func (n *timedNotice) reply() storeReply { return storeReply{n.Entry, n.made, n.came, nil} }

// carriesEntry reports whether the notice has the entry of its change.
func (n *timedNotice) carriesEntry() bool { return n.Entry.Epoch != 0 && n.Entry.Epoch == n.Epoch }

// credible reports whether the notice's entry may be believed now. After NearTTL it may be invalidated.
func (n *timedNotice) credible(now instant, nearTTL time.Duration) bool {
	return n.carriesEntry() && now < durations.Add(n.made, nearTTL)
}
