package zklock_test

import (
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/enginetable"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

func TestDocument_Requests(t *testing.T) {
	server := shared(t)
	meter := testserver.NewMeter(t, server)
	enginetable.Check(t, enginetable.Row{
		Name:   "zklock",
		New:    func(tb testing.TB) driver.Locker { return newLocker(tb, meter.Addr) },
		Count:  meter.RoundTrips,
		Silent: func(key string, ttl time.Duration) { silentHolder(t, server.Addr, key, ttl) }, // others clean up
	})
}
