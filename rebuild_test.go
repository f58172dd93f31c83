//go:build !wasip1

package bellwether

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

var outcomeNames = [outcomeCount]string{"", "answered", "nothing", "a place", "elected", "held", "outdated"}

func TestTransitions_InTheDesign(t *testing.T) {
	text, err := os.ReadFile("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| state | outcome | next state | causes |\n|---|---|---|---|\n")
	if !found {
		t.Fatal("docs/design.md has no table of states")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string]bool{}
	for row := range strings.Lines(table + "\n") {
		cells := strings.SplitN(row, "|", 5)
		rows[strings.Join(cells[1:4], "|")] = true
	}
	for _, s := range states {
		for o, next := range s.next {
			if next == 0 {
				continue
			}
			row := fmt.Sprintf(" %s | %s | %s ", s.name, outcomeNames[o], states[next].name)
			if !rows[row] {
				t.Errorf("the table lacks the row %q", row)
			}
			delete(rows, row)
		}
	}
	for row := range rows {
		t.Errorf("the table has the row %q, and the code has not", row)
	}
}
