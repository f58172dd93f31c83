package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
)

// This file is `bench compare A B`: the medians of two records side by side.

func runCompare(args []string) error {
	if len(args) != 2 {
		return errors.New("compare: wants two files that -json has written")
	}
	a, err := readRecord(args[0])
	if err != nil {
		return err
	}
	b, err := readRecord(args[1])
	if err != nil {
		return err
	}
	return compare(os.Stdout, a, b)
}

// compare prints each figure's medians and ratio. "~" marks a change within the range of one side's rounds.
func compare(w io.Writer, a, b *record) error {
	if a.Bench != b.Bench {
		return fmt.Errorf("compare: one is of %q, the other of %q", a.Bench, b.Bench)
	}
	fmt.Fprint(w, "A: ")
	a.where(w)
	fmt.Fprint(w, "B: ")
	b.where(w)
	if a.CPU != b.CPU || a.Cores != b.Cores || a.Go != b.Go || a.sizeText() != b.sizeText() {
		fmt.Fprintln(w, "WARNING: not the same machine, Go or size; only ratios within one run mean anything")
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "\nwhat\tfigure\tA\tB\tB/A\t\t")
	for _, f := range a.figures() {
		old, has := f.values, false
		for _, g := range b.figures() {
			if g.what == f.what && g.name == f.name {
				x, y := medianOf(old), medianOf(g.values)
				fmt.Fprintf(out, "%s\t%s\t%.4g\t%.4g\t%s\t%s\t\n", f.what, f.name, x, y, ratio(x, y), noise(old, g.values))
				has = true
			}
		}
		if !has {
			fmt.Fprintf(out, "%s\t%s\t%.4g\t-\t\t\t\n", f.what, f.name, medianOf(old))
		}
	}
	return out.Flush()
}

// sizeText is equal for a written and a read record.
func (r *record) sizeText() string {
	var v any
	b, _ := json.Marshal(r.Size) // a value that was read can be written
	json.Unmarshal(b, &v)
	return fmt.Sprint(v)
}

// A figure is a column of a row, in all rounds.
type figure struct {
	what, name string
	values     []float64
}

// figures are the compared figures, in the record's order.
func (r *record) figures() []figure {
	var fs []figure
	at := map[[2]string]int{}
	add := func(what, name string, v float64) {
		k := [2]string{what, name}
		i, ok := at[k]
		if !ok {
			i = len(fs)
			at[k] = i
			fs = append(fs, figure{what: what, name: name})
		}
		fs[i].values = append(fs[i].values, v)
	}
	for _, m := range r.Measurements {
		for _, c := range columns {
			switch c.name {
			case "loads/expiry", "p50 ms", "p99 ms", "commands/process", "failures":
				add(m.Scenario+": "+m.Strategy, c.name, c.of(m))
			}
		}
	}
	for _, m := range r.HTTP {
		for _, c := range httpColumns {
			add(m.Load+": "+m.Server, c.name, c.of(m))
		}
	}
	return fs
}

func ratio(x, y float64) string {
	if x <= 0 || y < 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", y/x)
}

func noise(x, y []float64) string {
	if slices.Max(x) < slices.Min(y) || slices.Max(y) < slices.Min(x) {
		return ""
	}
	return "~"
}
