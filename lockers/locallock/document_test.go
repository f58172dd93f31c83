package locallock_test

import (
	"testing"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/enginetable"
	"github.com/bellwether-go/bellwether/lockers/locallock"
)

func TestDocument_Requests(t *testing.T) {
	engine := locallock.New()
	enginetable.Check(t, enginetable.Row{
		Name:  "locallock",
		New:   func(testing.TB) driver.Locker { return engine },
		Count: func() int { return 0 }, // no engine to ask
	})
}
