package zklock

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/internal/leasetest"
)

// TestTryAcquire_Refused has ZooKeeper's answers to a transaction that ZooKeeper never carries out: the error has the
// remedy, and the request is not sent again, unless the answer may be of a session that has just ended.
func TestTryAcquire_Refused(t *testing.T) {
	for name, c := range map[string]struct {
		code, want string
		again      bool
	}{
		"no credentials":               {"\xff\xff\xff\x84", "AuthScheme", false},
		"a used-up quota":              {"\xff\xff\xff\x83", "setquota", false},
		"a leader's local session":     {"\xff\xff\xff\x88", "localSessionsUpgradingEnabled", false},
		"a follower's local session":   {"\xff\xff\xff\x90", "localSessionsUpgradingEnabled", true},
		"an access list without leave": {"\xff\xff\xff\x9a", "AuthScheme", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{bodies: map[int32]string{opMulti: "\xff\xff\xff\xff" + result + c.code + last}}
				l := New("fake:2181")
				l.Dial = f.dial
				defer l.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_, err := l.TryAcquire(ctx, "key", time.Minute)
				n := f.requests.Load()
				leasetest.MustBeNoAnswer(t, "TryAcquire", err)
				if err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("err = %v, want %q", err, c.want)
				}
				if again := n > 1; again != c.again {
					t.Errorf("%d requests, want further ones: %v", n, c.again)
				}
			})
		})
	}
}
