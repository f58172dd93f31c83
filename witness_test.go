package bellwether

import (
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/items"
)

// Witnesses of a key end in any order, and leave nothing behind.
func TestWitness_End(t *testing.T) {
	e := newTestEngine(t, nil)
	count := func() (n int) {
		for w := e.shards.of("k").witnesses["k"]; w != nil; w = w.next {
			n++
		}
		return n
	}
	first, second, third := e.beginWitness("k"), e.beginWitness("k"), e.beginWitness("k")
	for i, w := range []*witness{second, third, first} {
		e.endWitness("k", w)
		if n := count(); n != 2-i {
			t.Errorf("%d witnesses after the end of %d of 3", n, i+1)
		}
	}
	if err := e.set(t.Context(), "k", "v"); err != nil || count() != 0 {
		t.Errorf("%v, %d witnesses after a Set", err, count())
	}
	e.put(t.Context(), "k", "v", items.Windows{TTL: time.Hour}, 0, nil)
	if e.receive(driver.Notice{Key: "k", Epoch: 99, Made: time.Now()}); count() != 0 {
		t.Errorf("%d witnesses after a notice", count())
	}
}
