package fleettest

import (
	"fmt"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// TestSentinel has a replica take over under a herd: no caller fails, and the fleet returns to one load.
func TestSentinel(t *testing.T) {
	for name, failOver := range map[string]func(*testserver.Sentinel){
		"planned failover": (*testserver.Sentinel).Failover,
		"killed master": func(s *testserver.Sentinel) {
			s.Master.Kill()
			s.AwaitMaster(s.Replica)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s *testserver.Sentinel
			kind := RedisSentinel
			kind.Start = func(tb testing.TB) []*testserver.Server {
				s = testserver.RedisSentinel(tb)
				testserver.Restrict(tb, testserver.RedisRules, s.Master, s.Replica)
				return s.Servers()
			}
			f := newFleet(t, kind, 3, fleetOptions{LeaseTTL: 2 * time.Second, EngineTimeout: patient})
			f.origin.delay.Store(int64(300 * time.Millisecond))
			if r := f.herd("cold", 100); r.Values["cold#1"] != 300 || f.origin.count("cold") != 1 {
				t.Errorf("%d loads, answers %v; want 1 load for 300 callers", f.origin.count("cold"), r.Values)
			}

			during := make(chan report)
			go func() { during <- f.herd("during", 100) }()
			failOver(s)
			over := time.Now()
			noneFailed(t, <-during)
			if n := f.origin.count("during"); n > 3 {
				t.Errorf("%d loads during the failover, want at most one in each process", n)
			}
			for round, once := 0, false; !once; round++ {
				if time.Since(over) > 15*time.Second {
					t.Fatal("15 s after the failover there is still more than one load per fleet")
				}
				key := fmt.Sprint("after", round)
				r := f.herd(key, 50)
				noneFailed(t, r)
				once = r.Values[key+"#1"] == 150 && f.origin.count(key) == 1
			}
			t.Logf("one load per fleet %v after the failover", time.Since(over))
		})
	}
}
