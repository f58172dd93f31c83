// Report reads what "go test -json" writes and prints what matters of it.
//
//	go test -json ... | report          each package's result, and what failed
//	report total FILE...                what ran in all; the last line is "N passed, N failed"
//
// It ends with status 1 if a test failed, or if there was none.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// An event is one line of go test -json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build's output
	Test       string
	Output     string
	Elapsed    float64
}

// A run is what one go test has come to.
type run struct {
	passed, skipped, failed int
	skips                   []string
}

// read reads a run. It prints results to live as they come, if live is not nil.
//
// Of a test with subtests only these are counted: it has no result but theirs,
// unless it fails by itself.
func read(in io.Reader, live io.Writer) (r run, err error) {
	type id struct{ pkg, test string }
	output := map[id]*strings.Builder{} // of what has not passed yet
	parents := map[id]int{}             // tests with subtests: how many of these failed
	broken := map[string]int{}          // packages: how many of their tests failed
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			e = event{Action: "output", Output: lines.Text() + "\n"} // go's own, before the first test
		}
		if e.Package == "" {
			e.Package, _, _ = strings.Cut(e.ImportPath, " ") // "x/b [x/b.test]"
		}
		at := id{e.Package, e.Test}
		if output[at] == nil {
			output[at] = &strings.Builder{}
		}
		said := output[at]
		_, isParent := parents[at]
		switch e.Action {
		case "run":
			for _, above := range ancestors(e.Test) {
				parents[id{e.Package, above}] += 0
			}
			continue
		case "output", "build-output":
			said.WriteString(e.Output)
			continue
		case "pass", "skip":
			switch {
			case e.Test == "":
			case isParent:
			case e.Action == "pass":
				r.passed++
			default:
				r.skipped++
				r.skips = append(r.skips, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(said.String())))
			}
			if e.Test == "" && live != nil {
				fmt.Fprintf(live, "%-6s %s  %.1fs\n", e.Action, e.Package, e.Elapsed)
			}
			delete(output, at)
		case "fail", "build-fail":
			// What has failed only because something within it did is one
			// failure, that one.
			within := parents[at] > 0 || e.Test == "" && broken[e.Package] > 0
			if !within {
				r.failed++
			}
			for _, above := range ancestors(e.Test) {
				parents[id{e.Package, above}]++
			}
			broken[e.Package]++
			if live != nil {
				fmt.Fprintf(live, "FAIL   %s %s  %.1fs\n", e.Package, e.Test, e.Elapsed)
				if e.Test != "" || !within {
					fmt.Fprint(live, said)
				}
			}
			delete(output, at)
		}
	}
	for at, said := range output {
		// A test that neither passed nor failed: the binary ended under it.
		if live != nil && at.test != "" && said.Len() > 0 {
			fmt.Fprintf(live, "UNDONE %s %s\n%s", at.pkg, at.test, said)
		}
	}
	return r, lines.Err()
}

// ancestors returns what may be the tests around a subtest: a name can have
// slashes of its own, and then some of these are no tests, which does no harm.
func ancestors(test string) []string {
	var names []string
	for i := range len(test) {
		if test[i] == '/' {
			names = append(names, test[:i])
		}
	}
	return names
}

// reason is what a skipped test has said about it.
func reason(output string) string {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			return line
		}
	}
	return "no reason given"
}

func main() {
	if len(os.Args) == 1 {
		r, err := read(os.Stdin, os.Stdout)
		exit(r, err)
	}
	if os.Args[1] != "total" {
		fmt.Fprintln(os.Stderr, "usage: go test -json ... | report, or report total FILE...")
		os.Exit(2)
	}
	var total run
	for _, name := range os.Args[2:] {
		f, err := os.Open(name)
		if err != nil {
			exit(total, err)
		}
		r, err := read(f, nil)
		if err != nil {
			exit(total, err)
		}
		total.passed += r.passed
		total.skipped += r.skipped
		total.failed += r.failed
		total.skips = append(total.skips, r.skips...)
	}
	for _, s := range total.skips {
		fmt.Println("skipped:", s)
	}
	fmt.Printf("%d passed, %d failed\n", total.passed, total.failed)
	exit(total, nil)
}

func exit(r run, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
	if r.failed > 0 || r.passed == 0 && r.skipped == 0 && len(os.Args) > 1 {
		os.Exit(1)
	}
	os.Exit(0)
}
