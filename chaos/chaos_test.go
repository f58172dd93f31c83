package chaos

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(workerEnv); config != "" {
		if err := work(config); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestFleet_Smoke(t *testing.T) {
	for i, l := range lockers {
		t.Run(l, func(t *testing.T) {
			r := runFleet(t, int64(i+1), 8*time.Second, l, stores[i%2], bug{})
			found := r.check()
			t.Logf("%d events, %d loads, times %+v", len(r.events), len(r.loads), r.plan.times)
			t.Logf("judged %v, excused %v, undecided %d", found.judged, found.excused, found.undecided)
			for _, s := range r.plan.steps {
				if s.do != invalidate {
					t.Log(s)
				}
			}
			if len(found.violations) > 0 {
				t.Errorf("%s", found)
			}
		})
	}
}

func TestFleet_SmokeBugs(t *testing.T) {
	for _, b := range bugs {
		if b.store == "" {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			r := runFleet(t, b.seed, 5*time.Second, b.locker, b.store, b)
			found := r.check()
			t.Logf("judged %v, excused %v, undecided %d", found.judged, found.excused, found.undecided)
			t.Logf("caught %v", found.caught())
			t.Logf("%.1500s", found)
		})
	}
}
