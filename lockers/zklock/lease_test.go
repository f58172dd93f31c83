package zklock

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// TestRenewed_ShorterWithoutAnAnswer has a renewal's reply lost after the answer to a longer one: the
// shorter one may be the last one carried out.
func TestRenewed_ShorterWithoutAnAnswer(t *testing.T) {
	now := time.Now()
	short, long := now.Add(time.Hour), now.Add(3*time.Hour)
	l := &lease{end: now.Add(2 * time.Hour), expiry: time.NewTimer(time.Hour)}
	if !l.renewal(long) || !l.renewal(short) {
		t.Fatal("the lease has ended")
	}
	l.renewed(&zk.Stat{Version: 1}, long)
	l.renewed(nil, short)
	if l.end.After(short) {
		t.Errorf("the holder believes in its lease for %v longer than observers may", l.end.Sub(short))
	}
}
