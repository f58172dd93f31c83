package dynamolock_test

import (
	"testing"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/enginetable"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

func TestDocument_Requests(t *testing.T) {
	t.Parallel()
	server := testserver.DynamoDB(t)
	for name, real := range map[string]bool{"dynamolock": true, "dynamolock, on an emulator": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t, server)
			var wires []*wire
			asked := 0
			enginetable.Check(t, enginetable.Row{
				Name: name,
				New: func(tb testing.TB) driver.Locker {
					l, w := table.wired(tb)
					w.real = real
					wires = append(wires, w)
					return l
				},
				Count: func() int {
					for _, w := range wires {
						for _, n := range w.counted() {
							asked += n
						}
					}
					return asked
				},
			})
		})
	}
}
