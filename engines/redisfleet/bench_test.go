package redisfleet

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// BenchmarkServer measures the processor time of the Redis server for a key of a thousand that miss together: with the
// process that is elected, with one that is not, and with the commit. All processes of a fleet share this time.
func BenchmarkServer(b *testing.B) {
	addr := testserver.Redis(b).OwnOrSkip(b).Addr
	leader, follower := openTwo(b, addr)
	rdb := dial(b, addr)
	const keys = 1000
	value := []byte(strings.Repeat("v", 100))
	var times [3]time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		won := make([]driver.Election, keys)
		before := testserver.Busy(b, rdb)
		for i, step := range []func(n int, key string) error{
			func(n int, key string) (err error) {
				won[n], err = leader.Elect(b.Context(), key, 0, time.Minute)
				return err
			},
			func(_ int, key string) error {
				_, err := follower.Elect(b.Context(), key, 0, time.Minute)
				return err
			},
			func(n int, key string) error {
				entry := driver.Entry{Kind: driver.KindValue, Value: value, Epoch: won[n].Epoch, TTL: time.Minute}
				return leader.CommitAndRelease(b.Context(), key, entry, won[n].Lease)
			},
		} {
			var wg sync.WaitGroup
			for n := range keys {
				wg.Go(func() {
					if err := step(n, fmt.Sprint(rounds, " ", n)); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			after := testserver.Busy(b, rdb)
			times[i] += after - before
			before = after
		}
	}
	for i, unit := range []string{"elected-us/key", "not-elected-us/key", "commit-us/key"} {
		b.ReportMetric(float64(times[i].Microseconds())/float64(rounds*keys), unit)
	}
}
