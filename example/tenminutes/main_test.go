package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// measure runs a step without disturbance by other programs.
func measure(t *testing.T, name string) (before, after Panel) {
	t.Helper()
	for _, s := range steps {
		if s.name == name {
			synctest.Test(t, func(t *testing.T) {
				panels := s.panels()
				before, after = panels[0], panels[1]
				time.Sleep(time.Second) // Close waits for no load, and this origin ignores its context
			})
			return before, after
		}
	}
	t.Fatalf("there is no step %q", name)
	return before, after
}

// count returns the waiting requests, the longest wait in ms, the stale answers and the failures.
func (p Panel) count() (waited, longest, old, failures int) {
	kinds := [3]int{}
	for _, r := range p.Requests {
		if r[1] > 0 {
			waited++
		}
		longest = max(longest, r[1])
		kinds[r[2]]++
	}
	return waited, longest, kinds[stale], kinds[failed]
}

// TestSteps holds the sentences of docs/ten-minutes.md on each step.
func TestSteps(t *testing.T) {
	t.Run("ttl", func(t *testing.T) {
		before, after := measure(t, "ttl")
		if _, longest, _, _ := before.count(); len(before.Loads) != len(before.Requests) || longest < 500 {
			t.Errorf("without a cache %d loads, longest wait %d ms", len(before.Loads), longest)
		}
		if _, longest, _, _ := after.count(); len(after.Loads) != 3 || longest != 100 {
			t.Errorf("with TTL %d loads, longest wait %d ms, want 3 and 100", len(after.Loads), longest)
		}
	})
	t.Run("stale-while-revalidate", func(t *testing.T) {
		before, after := measure(t, "stale-while-revalidate")
		if waited, _, old, _ := before.count(); waited < 25 || old > 0 {
			t.Errorf("with TTL alone %d requests waited, and %d got a stale report", waited, old)
		}
		if waited, _, old, _ := after.count(); len(after.Loads) != 3 || waited > 10 || old < 15 {
			t.Errorf("%d loads, %d requests waited, %d got a stale report", len(after.Loads), waited, old)
		}
	})
	t.Run("stale-if-error", func(t *testing.T) {
		before, after := measure(t, "stale-if-error")
		if _, _, _, failures := before.count(); failures < 100 || len(before.Loads) > 8 {
			t.Errorf("without StaleIfError %d failures, %d loads", failures, len(before.Loads))
		}
		if _, _, old, failures := after.count(); failures > 0 || old < 150 || len(after.Loads) > 8 {
			t.Errorf("with StaleIfError %d failures, %d stale reports, %d loads", failures, old, len(after.Loads))
		}
	})
	t.Run("max-wait", func(t *testing.T) {
		before, after := measure(t, "max-wait")
		if _, longest, _, failures := before.count(); longest != 1500 || failures > 0 {
			t.Errorf("without MaxWait the longest wait is %d ms, with %d failures", longest, failures)
		}
		if _, longest, _, failures := after.count(); longest != 200 || failures < 100 || len(after.Loads) != len(before.Loads) {
			t.Errorf("with MaxWait the longest wait is %d ms, with %d failures and %d loads", longest, failures, len(after.Loads))
		}
	})
	t.Run("fleet", func(t *testing.T) {
		before, after := measure(t, "fleet")
		if len(before.Loads) != 4*len(after.Loads) || len(after.Loads) != 4 {
			t.Errorf("%d loads without a store, %d with one, want 16 and 4", len(before.Loads), len(after.Loads))
		}
	})
}

// TestSteps_Document holds that the tables of docs/ten-minutes.md have the numbers of the charts.
func TestSteps_Document(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join("..", "..", "docs", "ten-minutes.md"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "pictures", "tenminutes.json"))
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string][]Panel{}
	if err := json.Unmarshal(data, &measured); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if len(measured[s.name]) != 2 {
			t.Errorf("%d panels of step %s", len(measured[s.name]), s.name)
		}
		for _, p := range measured[s.name] {
			if !strings.Contains(string(guide), "\n"+p.row()+"\n") {
				t.Errorf("docs/ten-minutes.md does not have\n%s", p.row())
			}
		}
	}
}
