// Package docs_test holds that the documentation is true where a test can say so.
package docs_test

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// The tests here hold that the README's snippets are programs: those that are
// an Example's body are that, word for word; all others pass go vet, in a module
// of their own that requires this one as a user's would, and those that end
// are built and run.

// TestMain has the tests see the repository from its root.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A snippet is a block of Go in the README.
type snippet struct {
	title   string // the line before it
	code    string
	example string // the Example that it is the body of, or ""
}

func snippets(t *testing.T) (all []snippet) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?m)^(.*)\n(?:<!-- (Example\\w*) -->\n)?```go\n((?:.*\n)*?)```$")
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		all = append(all, snippet{title: m[1], example: m[2], code: m[3]})
	}
	if n := strings.Count(string(text), "```go"); n != len(all) || n < 5 {
		t.Fatalf("%d blocks of Go, of which %d were understood", n, len(all))
	}
	return all
}

// packages are what a snippet may use without saying so.
var packages = map[string]string{
	"bellwether":    "github.com/bellwether-go/bellwether",
	"redislock":     "github.com/bellwether-go/bellwether/lockers/redislock",
	"redisstore":    "github.com/bellwether-go/bellwether/stores/redisstore",
	"memcachelock":  "github.com/bellwether-go/bellwether/lockers/memcachelock",
	"memcachestore": "github.com/bellwether-go/bellwether/stores/memcachestore",
	"memcache":      "github.com/bradfitz/gomemcache/memcache",
	"redis":         "github.com/redis/go-redis/v9",
	"chi":           "github.com/go-chi/chi/v5",
	"fmt":           "fmt", "http": "net/http", "log": "log", "time": "time",
}

// program makes a program of a snippet.
func (s snippet) program() string {
	var b strings.Builder
	b.WriteString("package main\n\nimport (\n\t\"context\"\n")
	for name, path := range packages {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(s.code) {
			fmt.Fprintf(&b, "\t%q\n", path)
		}
	}
	b.WriteString(`)

type User struct{ Name string }

func loadUser(_ context.Context, id string) (User, error) { return User{"user " + id}, nil }

func loadUsers(_ context.Context, ids []string) (map[string]User, error) {
	found := map[string]User{}
	for _, id := range ids {
		found[id] = User{"user " + id}
	}
	return found, nil
}

func main() {
	ctx := context.Background()
	_, _, _ = ctx, loadUser, loadUsers
`)
	b.WriteString(s.code)
	b.WriteString("}\n")
	return b.String()
}

func TestREADME_SnippetsAreShort(t *testing.T) {
	for _, s := range snippets(t) {
		if lines := strings.Count(s.code, "\n"); lines > 12 {
			t.Errorf("%s has %d lines, want at most 12", s.title, lines)
		}
	}
}

func TestREADME_SnippetsOfExamples(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "example_test.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]string{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			body := source[fset.Position(f.Body.Lbrace).Offset:fset.Position(f.Body.Rbrace).Offset]
			bodies[f.Name.Name] = strings.ReplaceAll(string(body), "\n\t", "\n")
		}
	}
	found := 0
	for _, s := range snippets(t) {
		if s.example == "" {
			continue
		}
		found++
		if !strings.Contains(bodies[s.example], "\n"+s.code) || !strings.Contains(bodies[s.example], "\n// Output:") {
			t.Errorf("%s is not what %s runs:\n%s\nwant it in\n%s", s.title, s.example, s.code, bodies[s.example])
		}
	}
	if found == 0 {
		t.Error("no snippet is an Example")
	}
}

func TestREADME_SnippetsBuildAndRun(t *testing.T) {
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	// The same requirements, so that the build needs no network.
	_, requirements, _ := bytes.Cut(module, []byte("\nrequire"))
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", fmt.Sprintf("module snippets\n\ngo 1.26.0\n\nrequire %s v0.0.0\n\nreplace %[1]s => %s\n\nrequire%s", packages["bellwether"], root, requirements))
	write("go.sum", string(sums))
	engines := map[string]func(testing.TB, ...string) *testserver.Server{
		"redis:6379": testserver.Redis, "memcached:11211": testserver.Memcached,
	}
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = dir
		// With the race detector, as "make test" has compiled all that they need.
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -race")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	ending := map[string]string{} // those that end, by the name of their program
	for i, s := range snippets(t) {
		p, name := s.program(), fmt.Sprint("snippet", i)
		for addr, server := range engines {
			if strings.Contains(p, addr) {
				p = strings.ReplaceAll(p, addr, server(t).Addr)
			}
		}
		write(name+"/main.go", p)
		if !strings.Contains(s.code, "ListenAndServe") {
			ending[name] = s.title
		}
	}
	run("go", "vet", "./...")
	build := []string{"go", "build", "-ldflags=-w", "-o", "bin/"}
	for name := range ending {
		build = append(build, "./"+name)
	}
	run(build...)
	for name, title := range ending {
		if got, want := run("bin/"+name), "user 42 <nil>\n"; got != want {
			t.Errorf("%s prints %q, want %q", title, got, want)
		}
	}
	if len(ending) < 3 {
		t.Errorf("%d snippets end, want the three of the loader", len(ending))
	}
}

// TestREADME_Links holds that the files that the documentation points to are
// there.
func TestREADME_Links(t *testing.T) {
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/operations.md", "docs/design.md", "docs/conformance.md", "docs/engines.md", "docs/performance.md"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`).FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s points to %s: %v", name, m[1], err)
			}
		}
	}
}
