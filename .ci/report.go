// Report reads the output of "go test -json" and prints its results.
//
//	go test -json ... | report          each package's result, and the output of failures
//	report again FILE                   -run's pattern of the failed tests in FILE, if they may run again
//	report total FILE...                the totals; the last line is "N passed, N failed"
//
// It ends with status 1 if a test failed, or if there was none.
//
// A busy machine makes tests fail that keep to a real clock. Such tests run a second time, which counts:
// the file "again-X" has the second run of X, and the total names the tests that passed only then. Nothing
// runs again after a data race, a panic, a leaked goroutine, a test without an end, a failure outside of
// tests, or a package that does not compile. But after a fault of the race detector itself all tests run
// again: testing/synctest may use one of the detector's contexts on two threads (go.dev/issue/78156).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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

// A run is the result of one go test.
type run struct {
	passed, skipped int
	skips           []string
	failures        []id
	good            map[id]bool // the tests that passed, also those with subtests
	grave           bool        // a busy machine does not explain a failure
	ended           bool        // the race detector has ended the process by a fault of its own
}

// An id is a test, or without a name a package.
type id struct{ pkg, test string }

// Signs of more than lateness. A race is the process's, so its sign counts in any test's output.
var (
	raceSigns = []string{"DATA RACE", "race detected during execution"}
	failSigns = []string{"panic: ", "fatal error: ", "unexpected goroutines"}
)

// detectorFault is in the race detector's output when it ends the process by a fault of its own.
const detectorFault = "ThreadSanitizer: CHECK failed: tsan_"

func hasAny(output string, signs []string) bool {
	return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(output, sign) })
}

// read reads a run, and prints results to live as they come, if live is not nil. A test with subtests is
// not counted beside them, unless it fails by itself.
func read(in io.Reader, live io.Writer) (r run, err error) {
	r.good = map[id]bool{}
	output := map[id]*strings.Builder{} // of tests that have not passed yet
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
			r.grave = r.grave || hasAny(e.Output, raceSigns)
			r.ended = r.ended || strings.Contains(e.Output, detectorFault)
			continue
		case "pass", "skip":
			r.good[at] = e.Action == "pass"
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
			// A failure because of a failure within is not counted.
			within := parents[at] > 0 || e.Test == "" && broken[e.Package] > 0
			if !within {
				r.failures = append(r.failures, at)
			}
			r.grave = r.grave || hasAny(said.String(), failSigns) || e.Test == "" && !within && !r.ended
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
		// The binary ended during this test.
		if at.test == "" || said.Len() == 0 {
			continue
		}
		r.grave = r.grave || !r.ended
		if live != nil {
			fmt.Fprintf(live, "UNDONE %s %s\n%s", at.pkg, at.test, said)
		}
	}
	return r, lines.Err()
}

// ancestors returns the possible tests around a subtest. Its own name may have slashes: some are no tests.
func ancestors(test string) []string {
	var names []string
	for i := range len(test) {
		if test[i] == '/' {
			names = append(names, test[:i])
		}
	}
	return names
}

// reason returns the first line of a skipped test's message.
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
	switch {
	case len(os.Args) == 1:
		r, err := read(os.Stdin, os.Stdout)
		exit(len(r.failures) == 0, err)
	case os.Args[1] == "again" && len(os.Args) == 3:
		r, err := readFile(os.Args[2])
		fmt.Println(r.pattern())
		exit(len(r.failures) > 0 && !r.grave, err)
	case os.Args[1] == "total":
		exit(total(os.Args[2:]))
	default:
		fmt.Fprintln(os.Stderr, "usage: go test -json ... | report, report again FILE, or report total FILE...")
		os.Exit(2)
	}
}

// total prints the sum of the files' runs, and reports whether it is good.
func total(files []string) (ok bool, err error) {
	var all run
	for _, name := range files {
		if strings.HasPrefix(filepath.Base(name), againPrefix) {
			continue
		}
		r, err := readFile(name)
		if err != nil {
			return false, err
		}
		if second := filepath.Join(filepath.Dir(name), againPrefix+filepath.Base(name)); slices.Contains(files, second) {
			again, err := readFile(second)
			if err != nil {
				return false, err
			}
			r = r.after(again)
		}
		all.passed += r.passed
		all.skipped += r.skipped
		all.skips = append(all.skips, r.skips...)
		all.failures = append(all.failures, r.failures...)
	}
	for _, s := range all.skips {
		fmt.Println("skipped:", s)
	}
	fmt.Printf("%d passed, %d failed\n", all.passed, len(all.failures))
	return len(all.failures) == 0 && all.passed+all.skipped > 0, nil
}

// pattern is the argument of go test's -run for the failed tests, "" for all tests.
func (r run) pattern() string {
	if r.ended {
		return ""
	}
	var names []string
	for _, f := range r.failures {
		name, _, _ := strings.Cut(f.test, "/")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// after returns the common result of the run and of a second run of its pattern.
func (r run) after(second run) run {
	both := r
	if r.ended {
		both = second
	}
	both.failures = second.failures
	for _, f := range r.failures {
		switch {
		case second.good[f]:
			fmt.Println("failed, and passed by itself:", f.pkg, f.test)
			if !r.ended {
				both.passed++
			}
		case !slices.Contains(both.failures, f):
			both.failures = append(both.failures, f)
		}
	}
	return both
}

// againPrefix begins the name of a second run's file.
const againPrefix = "again-"

func readFile(name string) (run, error) {
	f, err := os.Open(name)
	if err != nil {
		return run{}, err
	}
	defer f.Close()
	return read(f, nil)
}

func exit(ok bool, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
	os.Exit(0)
}
