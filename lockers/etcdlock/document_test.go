package etcdlock_test

import (
	"testing"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/enginetable"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

func TestDocument_Requests(t *testing.T) {
	t.Parallel()
	meter := testserver.NewMeter(t, testserver.Etcd(t))
	enginetable.Check(t, enginetable.Row{
		Name:  "etcdlock",
		New:   func(tb testing.TB) driver.Locker { return newLocker(tb, meter.Addr) },
		Count: meter.RoundTrips,
	})
}
