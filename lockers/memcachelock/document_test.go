package memcachelock_test

import (
	"testing"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/enginetable"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

func TestDocument_Requests(t *testing.T) {
	t.Parallel()
	for name, tokens := range map[string]bool{"memcachelock": false, "memcachelock with Tokens": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meter := testserver.NewMeter(t, testserver.Memcached(t))
			enginetable.Check(t, enginetable.Row{
				Name: name,
				New: func(tb testing.TB) driver.Locker {
					l := newLocker(tb, meter.Addr)
					l.Tokens = tokens
					return l
				},
				Count: meter.RoundTrips,
			})
		})
	}
}
