package leasetest

import (
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// LostReplies tests a Locker that loses replies: it finds a lost call's effect, and leaves no lease behind.
type LostReplies struct {
	// A loses replies. B is another process's Locker, and loses none.
	A, B driver.Locker

	// NewKey returns a key that nobody has used.
	NewKey func() string

	// Lose has A's next call on key lose its reply. held is the lease that a takeover will end, else nil.
	Lose func(call, key string, held *driver.HeldError)

	// Armed reports whether no reply was lost since Lose.
	Armed func() bool

	// Silent takes the lease on key for ttl and falls silent. Nil: B leaves a lease to itself.
	Silent func(key string, ttl time.Duration)

	// ReleaseIsLost: a release with a lost reply finds its own lease gone.
	ReleaseIsLost bool
}

// Run tests the calls: acquire, refused acquire, takeover, renewal and release.
func (r LostReplies) Run(t *testing.T, calls ...string) {
	for _, call := range calls {
		t.Run(call, func(t *testing.T) {
			key := r.NewKey()
			lose := func(held *driver.HeldError) { r.Lose(call, key, held) }
			var lease driver.Lease
			switch call {
			case "acquire":
				lose(nil)
				lease = Acquire(t, r.A, key, time.Minute)
			case "refused acquire":
				other := Acquire(t, r.B, key, time.Minute)
				lose(nil)
				MustBeHeld(t, r.A, key)
				Release(t, other)
			case "takeover":
				if r.Silent != nil {
					r.Silent(key, 500*time.Millisecond)
				} else {
					Acquire(t, r.B, key, 500*time.Millisecond)
				}
				held := MustBeHeld(t, r.A, key)
				time.Sleep(time.Until(held.Until))
				lose(held)
				lease = Acquire(t, r.A, key, time.Minute)
			case "renewal":
				lease = Acquire(t, r.A, key, time.Minute)
				lose(nil)
				Renew(t, lease, time.Hour)
				if until := MustBeHeld(t, r.B, key).Until; time.Until(until) < 50*time.Minute {
					t.Errorf("the renewed lease ends in %v, want an hour", time.Until(until))
				}
			case "release":
				released := Acquire(t, r.A, key, time.Minute)
				lose(nil)
				if err := released.Release(t.Context()); r.ReleaseIsLost {
					MustBeLost(t, "Release whose first attempt has freed the lease", err)
				} else if err != nil {
					t.Errorf("Release: %v", err)
				}
				MustBeLost(t, "a second Release", released.Release(t.Context()))
			}
			if r.Armed() {
				t.Fatal("no reply was lost: the test tests nothing")
			}
			if lease != nil {
				MustBeHeld(t, r.B, key)
				Renew(t, lease, time.Hour)
				Release(t, lease)
			}
			next := Acquire(t, r.B, key, time.Minute)
			if _, ok := lease.(driver.Tokener); ok && Token(t, next) <= Token(t, lease) {
				t.Errorf("token %d after %d, want a greater one", Token(t, next), Token(t, lease))
			}
			Release(t, next)
		})
	}
}
