package redislock_test

import (
	"testing"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/enginetable"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

func TestDocument_Requests(t *testing.T) {
	t.Parallel()
	for name, tokens := range map[string]bool{"redislock": false, "redislock with Tokens": true} {
		at := func(addr string) func(testing.TB) driver.Locker {
			return func(tb testing.TB) driver.Locker { return withTokens(newLocker(tb, addr), tokens) }
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meter := testserver.NewMeter(t, testserver.Redis(t))
			enginetable.Check(t, enginetable.Row{Name: name, New: at(meter.Addr), Count: meter.RoundTrips})
		})
		inCommands := name + ", in commands"
		t.Run(inCommands, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t).OwnOrSkip(t)
			admin := newClient(t, server.Addr)
			enginetable.Check(t, enginetable.Row{Name: inCommands, New: at(server.Addr), Count: func() int {
				all := 0
				for name, n := range commands(t, admin) {
					switch name {
					case "hello", "client|setinfo", "client|maint_notifications": // of new connections
					default:
						all += n
					}
				}
				return all
			}})
		})
	}
}
