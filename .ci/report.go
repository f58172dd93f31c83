// Report reads what "go test -json" writes and prints what matters of it.
//
//	go test -json ... | report          each package's result, and what failed
//	report again FILE                   -run's pattern of what failed in FILE, if it may be run again
//	report total FILE...                what ran in all; the last line is "N passed, N failed"
//
// It ends with status 1 if a test failed, or if there was none.
//
// A busy machine makes tests fail that keep to a real clock. Where nothing else
// has happened, the failed tests are run a second time, which counts: the file
// "again-X" has the second run of X. The total says what passed only then. Nothing
// is run again after a data race, a panic, a leaked goroutine, a test that did not
// end, a failure that is no test's, or a package that does not compile. But if the
// race detector has ended the process by a fault of its own, all its tests are run
// again: testing/synctest may use one of the detector's contexts on two threads
// (go.dev/issue/78156).
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

// A run is what one go test has come to.
type run struct {
	passed, skipped int
	skips           []string
	failures        []id
	good            map[id]bool // what passed, tests with subtests too
	grave           bool        // something happened that no busy machine explains
	ended           bool        // the race detector has ended the process by a fault of its own
}

// An id is a test; of a package if it has no name.
type id struct{ pkg, test string }

// Signs of more than lateness: of a race, which is the process's, in whatever test
// has just printed something; of the rest in what has failed.
var (
	raceSigns = []string{"DATA RACE", "race detected during execution"}
	failSigns = []string{"panic: ", "fatal error: ", "unexpected goroutines"}
)

// detectorFault is what the race detector prints before it ends the process for a
// fault of its own.
const detectorFault = "ThreadSanitizer: CHECK failed: tsan_"

func hasAny(output string, signs []string) bool {
	return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(output, sign) })
}

// read reads a run. It prints results to live as they come, if live is not nil.
//
// Of a test with subtests only these are counted: it has no result but theirs,
// unless it fails by itself.
func read(in io.Reader, live io.Writer) (r run, err error) {
	r.good = map[id]bool{}
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
			// What has failed only because something within it did is one
			// failure, that one.
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
		// A test that neither passed nor failed: the binary ended under it.
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

// total prints what the runs in the files have come to together, and reports
// whether that is good.
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

// pattern is the argument of go test's -run for what failed, "" for all tests.
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

// after returns what the run and a second run of its pattern have come to.
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
