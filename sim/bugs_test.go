//go:build !race

package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var plant = flag.String("bugs", "", `which planted bugs the scenarios have to find: "all", or one name; empty: the quickest`)

const (
	// bugRuns is how many runs look for a bug, each from another seed: 1, 1001, ...
	bugRuns   = 5
	bugStride = 1000
	bugBound  = 1000                              // scenarios in a run, at most
	quickest  = "expired lease believed too long" // the bug of the plain run
)

// modelFiles are the model's test files: without the others a module compiles in a third of the time.
var modelFiles = []string{"model_test.go", "network_test.go", "abilities_test.go", "graveyard_test.go", "export_test.go"}

// modelOnly returns an overlay that empties all other test files.
func modelOnly() (map[string][]byte, error) {
	overlay := map[string][]byte{}
	files, err := filepath.Glob("../*_test.go")
	for _, file := range files {
		if name := filepath.Base(file); !slices.Contains(modelFiles, name) {
			overlay[name] = []byte("package bellwether_test\n")
		}
	}
	return overlay, err
}

func overlayOf(t *testing.T, b bug) map[string][]byte {
	t.Helper()
	planted, err := b.planted("..")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := modelOnly()
	if err != nil {
		t.Fatal(err)
	}
	overlay[b.File] = planted
	return overlay
}

// TestBugs_AreThere holds that the text of each bug occurs in the code.
func TestBugs_AreThere(t *testing.T) {
	names := map[string]bool{}
	for _, b := range bugs {
		if _, err := b.planted(".."); err != nil {
			t.Error(err)
		}
		if names[b.Name] {
			t.Errorf("two bugs are called %q", b.Name)
		}
		names[b.Name] = true
	}
	if !names[quickest] {
		t.Errorf("no bug is called %q", quickest)
	}
}

// TestBugs_AreFound plays scenarios with each bug until one breaks a promise, and logs their number.
func TestBugs_AreFound(t *testing.T) {
	t.Parallel()
	name := *plant
	if name == "" {
		name = quickest
	}
	planted := 0
	for _, b := range bugs {
		if name != "all" && name != b.Name {
			continue
		}
		planted++
		t.Run(strings.ReplaceAll(b.Name, " ", "_"), func(t *testing.T) {
			module, err := build("..", overlayOf(t, b))
			if err != nil {
				t.Fatal(err)
			}
			h, err := newHost(context.Background(), module, "")
			if err != nil {
				t.Fatal(err)
			}
			defer h.close()
			median, violations := find(t, h)
			if median == 0 {
				t.Fatalf("most of %d runs do not find it by %d schedules, only these do: %q", bugRuns, bugBound, violations)
			}
			t.Logf("| %s | %s | %d |", b.Name, b.File, median)
			t.Logf("%q", violations)
		})
	}
	if planted == 0 {
		t.Fatalf("no bug is called %q", name)
	}
}

// find plays the runs side by side. It returns after how many scenarios most have broken a promise, or 0
// after bugBound: a median, so the slower runs may stop. Each failed run has its violation.
func find(t *testing.T, h *host) (median int, violations []string) {
	violations = make([]string, bugRuns)
	for played := 1; played <= bugBound; played++ {
		each(0, bugRuns, func(run int) bool {
			if violations[run] != "" {
				return true
			}
			p, err := h.play(context.Background(), bugStride*run+played, "")
			if err != nil {
				t.Error(err)
			}
			if len(p.Violations) > 0 {
				violations[run] = p.Violations[0]
			}
			return true
		})
		found := 0
		for _, v := range violations {
			if v != "" {
				found++
			}
		}
		if found > bugRuns/2 {
			return played, violations
		}
	}
	return 0, violations
}

// TestBugs_TableInTheDocs holds that docs/chaos.md has the bugs, in their order.
func TestBugs_TableInTheDocs(t *testing.T) {
	doc, err := os.ReadFile("../docs/chaos.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "| bug | file | median schedules |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if len(rows) != len(bugs) {
		t.Fatalf("docs/chaos.md has %d bugs, want %d", len(rows), len(bugs))
	}
	for i, b := range bugs {
		if want := fmt.Sprintf("| %s | %s | ", b.Name, b.File); !strings.HasPrefix(rows[i], want) {
			t.Errorf("docs/chaos.md has %q, want %q", rows[i], want)
		}
	}
}
