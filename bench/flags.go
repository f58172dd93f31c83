package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

// This file is the common part of the commands' flags.

type flagSet struct {
	*flag.FlagSet
	isQuick, isFull *bool  // nil: the command has one size
	dir             string // of pictures; empty: the command draws none
}

func newFlags(command string) *flagSet {
	return &flagSet{FlagSet: flag.NewFlagSet(command, flag.ExitOnError)}
}

func (f *flagSet) sizes(quick, full string) {
	f.isQuick = f.Bool("quick", false, quick+" (the default)")
	f.isFull = f.Bool("full", false, full)
}

// recorded adds the flags of a command with a record.
func (f *flagSet) recorded() (rounds *int, json, note *string) {
	return f.Int("rounds", 0, "number of rounds, of which the medians are printed (default: by size)"),
		f.String("json", "", "write all rounds to this `file`"),
		f.String("note", "", "a note for the record, such as what else the machine does")
}

// some adds a flag that selects members of all by name. Call chosen after the flags are parsed.
func some[T any](f *flagSet, name string, all []T, of func(T) string) (chosen func() ([]T, error)) {
	names := f.String(name, "", "only these, with commas: "+strings.Join(each(all, of), ", "))
	return func() ([]T, error) { return choose(all, of, *names) }
}

// choose returns the members of all that names lists. Empty names: all.
func choose[T any](all []T, name func(T) string, names string) ([]T, error) {
	if names == "" {
		return all, nil
	}
	var chosen []T
	parts := strings.Split(names, ",")
	for len(parts) > 0 {
		n := len(parts) // number of parts in the name, which may have commas
		for ; n > 0; n-- {
			one := strings.TrimSpace(strings.Join(parts[:n], ","))
			if i := slices.IndexFunc(all, func(x T) bool { return name(x) == one }); i >= 0 {
				chosen = append(chosen, all[i])
				break
			}
		}
		if n == 0 {
			return nil, fmt.Errorf("there is no %q; -h lists what there is", strings.TrimSpace(parts[0]))
		}
		parts = parts[n:]
	}
	return chosen, nil
}

func (f *flagSet) draws() { f.StringVar(&f.dir, "o", "docs", "write the pictures to this `directory`") }

// parse reads the arguments, and creates the directory.
func (f *flagSet) parse(args []string) error {
	f.Parse(args)
	if f.NArg() > 0 || f.isFull != nil && *f.isQuick && *f.isFull {
		return fmt.Errorf("%s: unexpected argument; -h explains the flags", f.Name())
	}
	if f.dir == "" {
		return nil
	}
	return os.MkdirAll(f.dir, 0o755)
}

func sized[T any](f *flagSet, quick, full T) T {
	if *f.isFull {
		return full
	}
	return quick
}
