package redisentry

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

func FuzzDecode(f *testing.F) {
	whole := fmt.Appendf(nil, "%016d%016d%038d%016d%016d%016d", 1, 1, 0, int64(1760000000000000), int64(1760000000000001), int64(1760000000000001))
	whole = driver.Entry{Kind: driver.KindValue, Value: []byte("v"), TTL: time.Hour}.Append(whole, "k")
	f.Add(whole, int64(1760000000000001000))
	f.Add([]byte("+760000000000000BW"), int64(-1))
	f.Add([]byte(strings.Repeat("9", BareLen)), int64(math.MaxInt64))
	f.Add([]byte(strings.Repeat("9", HeadLen)), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, data []byte, now int64) {
		var e driver.Entry
		err := Decode("k", data, time.Duration(now), &e)
		switch {
		case err == nil && (e.Life() <= 0 || e.Age < 0):
			t.Fatalf("decoded %+v, whose life is over", e)
		case err != nil && !errors.Is(err, driver.ErrCorrupt) && !errors.Is(err, driver.ErrNotFound):
			t.Fatal(err)
		}
	})
}
