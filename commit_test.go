package bellwether_test

import (
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
)

func TestSize_OnceForAValueThatIsConfirmed(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		sizes := 0
		f := newFleet(t, 1, by, bellwether.Options{
			TTL: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Second},
			Size: func(string, any) int { sizes++; return 100 },
		})
		for range 10 {
			if got := f.get(1, "k"); got.values["v1"] != 1 {
				t.Fatalf("answers %v", got.count)
			}
			time.Sleep(2 * time.Second)
		}
		if looks := f.processes[0].store.count("get", "elect"); looks < 10 {
			t.Errorf("the store was asked %d times, want once for each NearTTL", looks)
		}
		if sizes != 1 {
			t.Errorf("Size was called %d times for one value", sizes)
		}
	})
}
