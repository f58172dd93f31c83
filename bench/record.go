package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// This file is a run's record, as a file and as tables.

// A record is a run: the measurements, the machine and the versions.
type record struct {
	Bench        string            `json:"bench"` // herd, http
	Command      string            `json:"command"`
	Note         string            `json:"note,omitempty"`
	Date         time.Time         `json:"date"`
	Commit       string            `json:"commit,omitempty"`
	Go           string            `json:"go"`
	CPU          string            `json:"cpu"`
	Cores        int               `json:"cores"`
	LoadAverage  string            `json:"load_average"` // at the begin of the run
	Versions     map[string]string `json:"versions,omitempty"`
	Size         any               `json:"size"`
	Measurements []measurement     `json:"measurements,omitempty"`
	HTTP         []httpMeasurement `json:"http,omitempty"`
}

// A measurement is a strategy in one scenario, once. Times are milliseconds.
type measurement struct {
	Scenario       string  `json:"scenario"`
	Strategy       string  `json:"strategy"`
	Round          int     `json:"round"`
	Calls          int     `json:"calls"`
	Expiries       float64 `json:"expiries"`
	Loads          int     `json:"loads"`
	LoadsPerExpiry float64 `json:"loads_per_expiry"`
	Duplicates     int     `json:"duplicates"`   // loads that began while another load of the key ran
	Most           int     `json:"most_at_once"` // concurrent loads of all keys
	P50            float64 `json:"p50_ms"`
	P99            float64 `json:"p99_ms"`
	P999           float64 `json:"p999_ms"`
	Max            float64 `json:"max_ms"`
	Waiting        float64 `json:"waiting_s"`            // of all callers together
	Commands       float64 `json:"commands_per_process"` // -1: not counted
	Requests       float64 `json:"requests_per_miss,omitempty"`
	Bytes          float64 `json:"bytes_per_miss,omitempty"`
	CPU            float64 `json:"cpu_us_per_miss,omitempty"`
	Failures       int     `json:"failures"`
	Wrong          int     `json:"wrong"` // another key's value
	Hung           int     `json:"hung"`
	Error          string  `json:"error,omitempty"` // a failure
}

func newRecord(bench string, size any) *record {
	load, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(load))
	return &record{
		Bench: bench, Command: commandLine(os.Args[1:]), Date: time.Now().UTC().Truncate(time.Second),
		Commit: output("git", "rev-parse", "--short", "HEAD"), Go: runtime.Version(), CPU: cpu(), Cores: runtime.NumCPU(),
		LoadAverage: strings.Join(fields[:min(3, len(fields))], " "),
		Versions:    versions(), Size: size,
	}
}

func commandLine(args []string) string {
	line := "go run ./bench"
	for _, arg := range args {
		if strings.ContainsAny(arg, " \"'") {
			arg = strconv.Quote(arg)
		}
		line += " " + arg
	}
	return line
}

func cpu() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func versions() map[string]string {
	v := map[string]string{}
	for name, args := range map[string][]string{
		"redis-server": {"--version"}, "memcached": {"--version"}, "etcd": {"--version"},
		"nginx": {"-v"}, "varnishd": {"-V"}, "wrk": {"-v"},
	} {
		if out := output(name, args...); out != "" {
			v[name], _, _ = strings.Cut(out, "\n")
		}
	}
	return v
}

// output returns a program's output, empty if it cannot run.
func output(name string, args ...string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if name == "git" && err != nil { // outside a repository; wrk -v also ends with 1
		return ""
	}
	return strings.TrimSpace(string(out))
}

func (r *record) write(path string) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func readRecord(path string) (*record, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}

// where prints the conditions of a run.
func (r *record) where(w io.Writer) {
	fmt.Fprintf(w, "%s\n%s, commit %s; %d cores of %s, %s; load average before: %s\n", r.Command,
		r.Date.Format(time.RFC3339), r.Commit, r.Cores, r.CPU, r.Go, r.LoadAverage)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(w, "%s: %s\n", name, r.Versions[name])
	}
	if r.Note != "" {
		fmt.Fprintln(w, "NOTE:", r.Note)
	}
}

func each[T, X any](all []T, of func(T) X) (xs []X) {
	for _, x := range all {
		xs = append(xs, of(x))
	}
	return xs
}

// medianOf is 0 without values.
func medianOf(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	xs = slices.Sorted(slices.Values(xs))
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}

func median[T any](rounds []T, of func(T) float64) float64 { return medianOf(each(rounds, of)) }

// A column is a table's column: the median of a row's rounds, or the most, for the longest waits.
type column[T any] struct {
	name   string
	of     func(T) float64
	format string
	most   bool
}

// text is "-" for a figure that was not measured.
func (c column[T]) text(rounds []T) string {
	xs := each(rounds, c.of)
	v := medianOf(xs)
	if c.most {
		v = slices.Max(xs)
	}
	if v < 0 {
		return "-"
	}
	return fmt.Sprintf(c.format, v)
}

func (r *record) rounds(scenario, strategy string) []measurement {
	var ms []measurement
	for _, m := range r.Measurements {
		if m.Scenario == scenario && m.Strategy == strategy {
			ms = append(ms, m)
		}
	}
	return ms
}

// columns of the herd's tables.
var columns = []column[measurement]{
	{"loads/expiry", func(m measurement) float64 { return m.LoadsPerExpiry }, "%.4g", false},
	{"duplicates", func(m measurement) float64 { return float64(m.Duplicates) }, "%.4g", false},
	{"p50 ms", func(m measurement) float64 { return m.P50 }, "%.1f", false},
	{"p99 ms", func(m measurement) float64 { return m.P99 }, "%.1f", false},
	{"p99.9 ms", func(m measurement) float64 { return m.P999 }, "%.1f", false},
	{"max ms", func(m measurement) float64 { return m.Max }, "%.1f", true},
	{"waiting s", func(m measurement) float64 { return m.Waiting }, "%.4g", false},
	{"commands/process", func(m measurement) float64 { return m.Commands }, "%.4g", false},
	{"failures", func(m measurement) float64 { return float64(m.Failures) }, "%.4g", false},
	{"wrong", func(m measurement) float64 { return float64(m.Wrong) }, "%.4g", false},
	{"hung", func(m measurement) float64 { return float64(m.Hung) }, "%.4g", false},
}

func printHerd(w io.Writer, r *record, size size, chosen []scenario) {
	r.where(w)
	for _, sc := range chosen {
		out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, s := range strategies {
			ms := r.rounds(sc.name, s.name)
			if len(ms) == 0 {
				continue
			}
			if s.name == r.first(sc.name) {
				fmt.Fprintf(w, "\n%s: %s\n%d rounds; calls: %.0f, expiries: %.0f\n", sc.name, sc.what, len(ms),
					median(ms, func(m measurement) float64 { return float64(m.Calls) }), ms[0].Expiries)
				fmt.Fprint(out, "strategy\t")
				for _, c := range sc.shows() {
					fmt.Fprint(out, c.name, "\t")
				}
				fmt.Fprintln(out)
			}
			fmt.Fprint(out, s.name, "\t")
			for _, c := range sc.shows() {
				fmt.Fprint(out, c.text(ms), "\t")
			}
			fmt.Fprintln(out)
		}
		out.Flush()
	}
	printClaims(w, herdClaims(r, size), size.caveat())
	fmt.Fprintln(w, "\nCaveats:")
	for _, s := range strategies {
		if s.caveat != "" && slices.ContainsFunc(r.Measurements, func(m measurement) bool { return m.Strategy == s.name }) {
			fmt.Fprintf(w, "- %s: %s\n", s.name, s.caveat)
		}
	}
}

func (r *record) first(scenario string) string {
	for _, s := range strategies {
		if len(r.rounds(scenario, s.name)) > 0 {
			return s.name
		}
	}
	return ""
}
