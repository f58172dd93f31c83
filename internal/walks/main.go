// Walks counts the functions and files that a call goes through: a near hit, a cold miss through
// Redis, the same over HTTP, and a stale page that its handler revalidates.
//
//	go run ./internal/walks [-list] [REVISION...]
//
// It prints a table with a column for each revision and a last column for the working tree. It
// needs git, tar and redis-server, which it starts by itself.
//
// It counts the root package and its imports from the module, without adapters, their helpers and
// packages of tests. A function literal counts as the function or variable around it.
//
// A recording has the entries into functions in order, on all goroutines, from the call to its rebuild's
// end. A return is an entry into a file left before. Each number is the median of five recordings.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/internal/walks/probe"
)

func main() {
	list := flag.Bool("list", false, "print the functions that each walk enters, in their order")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, flag.Args(), *list)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "walks:", err)
		os.Exit(1)
	}
}

// A column is a tree with its walks.
type column struct {
	title string
	walks []probe.Walk
}

func run(ctx context.Context, revisions []string, list bool) error {
	temp, err := os.MkdirTemp("", "bellwether-walks-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	root, err := output(ctx, ".", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	var columns []column
	for i, revision := range append(revisions, "") {
		c := column{title: cmp.Or(revision, "working tree")}
		work := filepath.Join(temp, fmt.Sprint(i))
		tree := root
		if revision != "" {
			tree = filepath.Join(work, "tree")
			if err := checkOut(ctx, root, revision, tree); err != nil {
				return err
			}
		}
		if c.walks, err = trace(ctx, root, tree, work); err != nil {
			return fmt.Errorf("%s: %w", c.title, err)
		}
		columns = append(columns, c)
	}
	fmt.Print(table(columns))
	if list {
		for _, c := range columns {
			fmt.Print(listing(c))
		}
	}
	return nil
}

func checkOut(ctx context.Context, root, revision, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	archive := dir + ".tar"
	if _, err := output(ctx, root, "git", "archive", "-o", archive, revision); err != nil {
		return err
	}
	_, err := output(ctx, dir, "tar", "-xf", archive)
	return err
}

// trace runs the walks through the library in tree, with the program and probe of root. work is for
// files. The go command reads the probed files through an overlay, so no tree changes.
func trace(ctx context.Context, root, tree, work string) ([]probe.Walk, error) {
	overlay, err := probed(ctx, tree, filepath.Join(work, "probed"))
	if err != nil {
		return nil, err
	}
	const program = "internal/walks/walk"
	for _, own := range []string{"internal/walks/probe/probe.go", program + "/main.go", program + "/options.go", program + "/options_first.go"} {
		overlay[filepath.Join(tree, own)] = filepath.Join(root, own)
	}
	b, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return nil, err
	}
	overlayFile, binary := filepath.Join(work, "overlay.json"), filepath.Join(work, "walk")
	if err := os.WriteFile(overlayFile, b, 0o644); err != nil {
		return nil, err
	}
	tags := "first"
	if options, err := os.ReadFile(filepath.Join(tree, "options.go")); err == nil && strings.Contains(string(options), "type Fleet struct") {
		tags = ""
	}
	if _, err := output(ctx, tree, "go", "build", "-tags", tags, "-overlay", overlayFile, "-o", binary, "./"+program); err != nil {
		return nil, err
	}
	addr, end, err := startRedis(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	recorded, err := output(ctx, tree, binary, addr)
	if err != nil {
		return nil, err
	}
	var walks []probe.Walk
	return walks, json.Unmarshal([]byte(recorded), &walks)
}

// probed writes the counted files to dir, with probes, and returns their paths there by file of tree.
func probed(ctx context.Context, tree, dir string) (map[string]string, error) {
	counted, err := output(ctx, tree, "go", "list", "-deps", "-f",
		`{{if and .Module .Module.Main}}{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}`, ".")
	if err != nil {
		return nil, err
	}
	at := map[string]string{}
	for path := range strings.Lines(counted) {
		path = strings.TrimSpace(path)
		if path == "" {
			continue // of an uncounted package
		}
		name, err := filepath.Rel(tree, path)
		if err != nil {
			return nil, err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if source, err = instrument(filepath.ToSlash(name), source); err != nil {
			return nil, err
		}
		at[path] = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at[path]), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(at[path], source, 0o644); err != nil {
			return nil, err
		}
	}
	return at, nil
}

func startRedis(ctx context.Context) (addr string, end func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	server := exec.CommandContext(ctx, "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	if err := server.Start(); err != nil {
		return "", nil, err
	}
	end = func() {
		server.Process.Kill()
		server.Wait()
	}
	for range 1000 { // a real process is starting
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return addr, end, c.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	end()
	return "", nil, fmt.Errorf("redis-server does not listen at %s", addr)
}

// output runs a command in dir, outside of any workspace, and returns its standard output.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, &stderr)
	}
	return strings.TrimSpace(string(out)), nil
}

// table prints the walks of the columns, and the ratio of the last column to the first.
func table(columns []column) string {
	var b strings.Builder
	row := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	head, rule := []string{"walk", "number of"}, []string{"---", "---"}
	for _, c := range columns {
		head, rule = append(head, c.title), append(rule, "---:")
	}
	row(append(head, "last / first")...)
	row(append(rule, "---:")...)
	for w, walk := range columns[0].walks {
		for number, name := range numbers {
			cells := []string{walk.Name, name}
			var values []int
			for _, c := range columns {
				values = append(values, median(c.walks[w], number))
				cells = append(cells, fmt.Sprint(values[len(values)-1]))
			}
			ratio := "-"
			if first := values[0]; first != 0 {
				ratio = fmt.Sprintf("%.0f %%", 100*float64(values[len(values)-1])/float64(first))
			}
			row(append(cells, ratio)...)
		}
	}
	return b.String()
}

// listing prints the first recording of each walk, a line for each entry.
func listing(c column) string {
	var b strings.Builder
	for _, w := range c.walks {
		fmt.Fprintf(&b, "\n%s: %s\n", c.title, w.Name)
		goroutines := map[int]int{} // goroutine numbers in this walk
		for _, e := range w.Repeats[0] {
			if goroutines[e.Goroutine] == 0 {
				goroutines[e.Goroutine] = len(goroutines) + 1
			}
			fmt.Fprintf(&b, "  goroutine %d  %-32s %s\n", goroutines[e.Goroutine], e.File, e.Function)
		}
	}
	return b.String()
}

var numbers = [...]string{"functions", "files", "returns", "entries"}

func count(entries []probe.Entry) (n [len(numbers)]int) {
	type function struct{ file, name string }
	functions, files := map[function]bool{}, map[string]bool{}
	file, returns := "", 0
	for _, e := range entries {
		if e.File != file && files[e.File] {
			returns++
		}
		file = e.File
		functions[function{e.File, e.Function}], files[e.File] = true, true
	}
	return [...]int{len(functions), len(files), returns, len(entries)}
}

func median(w probe.Walk, number int) int {
	var values []int
	for _, entries := range w.Repeats {
		values = append(values, count(entries)[number])
	}
	slices.Sort(values)
	return values[len(values)/2]
}
