// Package docs_test holds the documentation to the code.
package docs_test

import (
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// The tests in this file hold that the snippets of README.md and of the guides are programs. A snippet
// after a marker is a part of the marker's function, word for word. All other snippets pass go vet, in
// a module of their own that requires this module. The README's snippets that end are built and run.

func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// documents returns README.md and the guides. The design has sketches, and is no guide.
func documents(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(name string) bool { return name == "docs/design.md" })
	return append([]string{"README.md"}, all...)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A snippet is a block of Go in a document.
type snippet struct {
	title    string // the document, and the line before the block
	code     string
	file     string // the snippet is a part of this file, or ""
	function string // and of this function, or ""
}

func snippets(t *testing.T, document string) (all []snippet) {
	t.Helper()
	text := read(t, document)
	block := regexp.MustCompile("(?m)^(.*)\n(?:<!-- (?:(\\S+\\.go) ?)?(\\w+)? -->\n)?```go\n((?:.*\n)*?)```$")
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		s := snippet{title: document + ": " + m[1], file: m[2], function: m[3], code: m[4]}
		if s.function != "" {
			s.file = cmp.Or(s.file, "example_test.go")
		}
		all = append(all, s)
	}
	if n := strings.Count(text, "```go"); n != len(all) {
		t.Fatalf("%s has %d blocks of Go, of which %d were understood", document, n, len(all))
	}
	return all
}

// packages are the packages that a snippet may use without an import.
var packages = map[string]string{
	"bellwether":     "github.com/bellwether-go/bellwether",
	"bellwetherprom": "github.com/bellwether-go/bellwether/bellwetherprom",
	"bellwetherslog": "github.com/bellwether-go/bellwether/bellwetherslog",
	"etcdlock":       "github.com/bellwether-go/bellwether/lockers/etcdlock",
	"redisfleet":     "github.com/bellwether-go/bellwether/engines/redisfleet",
	"redislock":      "github.com/bellwether-go/bellwether/lockers/redislock",
	"redisstore":     "github.com/bellwether-go/bellwether/stores/redisstore",
	"memcachelock":   "github.com/bellwether-go/bellwether/lockers/memcachelock",
	"memcachestore":  "github.com/bellwether-go/bellwether/stores/memcachestore",
	"observe":        "github.com/bellwether-go/bellwether/observe",
	"locallock":      "github.com/bellwether-go/bellwether/lockers/locallock",
	"memstore":       "github.com/bellwether-go/bellwether/stores/memstore",
	"memcache":       "github.com/bradfitz/gomemcache/memcache",
	"redis":          "github.com/redis/go-redis/v9",
	"clientv3":       "go.etcd.io/etcd/client/v3",
	"prometheus":     "github.com/prometheus/client_golang/prometheus",
	"chi":            "github.com/go-chi/chi/v5",
	"middleware":     "github.com/go-chi/chi/v5/middleware",
	"gin":            "github.com/gin-gonic/gin",
	"echo":           "github.com/labstack/echo/v4",
	"errors":         "errors", "fmt": "fmt", "http": "net/http", "io": "io", "json": "encoding/json", "log": "log", "slog": "log/slog",
	"strings": "strings", "synctest": "testing/synctest", "testing": "testing", "time": "time",
}

// known are the variables that a snippet may use without a declaration, in this order.
var known = []struct{ name, declaration string }{
	{"ctx", "ctx := context.Background()"},
	{"users", "users := bellwether.New(loadUser, bellwether.Options{TTL: time.Minute})"},
	{"mw", "mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})"},
	{"mux", "mux := http.NewServeMux()"},
	{"rdb", `rdb := redis.NewClient(&redis.Options{Addr: "redis:6379"})`},
	{"mc", `mc := memcache.New("memcached:11211")`},
}

// program makes a program of a snippet: its functions and types unchanged, and the rest in main.
func (s snippet) program() string {
	var functions, body strings.Builder
	outside := false
	for line := range strings.Lines(s.code) {
		if regexp.MustCompile(`^(func|type) `).MatchString(line) {
			outside = true
		}
		if outside {
			functions.WriteString(line)
		} else {
			body.WriteString(line)
		}
		if line[0] == '}' {
			outside = false
		}
	}
	main := strings.Builder{}
	for _, k := range known {
		uses := regexp.MustCompile(`\b` + k.name + `\b`).MatchString(body.String())
		declares := regexp.MustCompile(`(?m)^(\w+, )*` + k.name + `(, \w+)* :=`).MatchString(body.String())
		if uses && !declares {
			fmt.Fprintf(&main, "%s\n", k.declaration)
		}
	}
	main.WriteString(body.String())
	for _, m := range regexp.MustCompile(`(?m)^(\w+(?:, \w+)*) :=`).FindAllStringSubmatch(main.String(), -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			if name != "_" {
				fmt.Fprintf(&main, "_ = %s\n", name)
			}
		}
	}
	code := functions.String() + `
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
` + main.String() + "}\n"
	var imports strings.Builder
	for name, path := range packages {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(code) {
			fmt.Fprintf(&imports, "\t%s %q\n", name, path)
		}
	}
	return "package main\n\nimport (\n\t\"context\"\n" + imports.String() + ")\n\n" + code
}

func TestREADME_SnippetsAreShort(t *testing.T) {
	for _, s := range snippets(t, "README.md") {
		if lines := strings.Count(s.code, "\n"); lines > 12 {
			t.Errorf("%s has %d lines, want at most 12", s.title, lines)
		}
	}
}

// TestGuides_SnippetsOfFunctions holds snippets to their markers. An Example's snippet runs, with its output.
func TestGuides_SnippetsOfFunctions(t *testing.T) {
	found := map[string]int{}
	for _, document := range documents(t) {
		for _, s := range snippets(t, document) {
			if s.file == "" {
				continue
			}
			found[document]++
			body := read(t, s.file)
			if s.function != "" {
				body = bodies(t, s.file)[s.function]
			}
			if !strings.Contains(body, "\n"+s.code) {
				t.Errorf("%s: the snippet is not in %s %s:\n%s", s.title, s.file, s.function, s.code)
			}
			if strings.HasPrefix(s.function, "Example") && !strings.Contains(body, "\n// Output:") {
				t.Errorf("%s: %s has no output", s.title, s.function)
			}
		}
	}
	if found["README.md"] == 0 {
		t.Error("no snippet of README.md is an Example")
	}
}

// bodies returns the functions of a file, each line without its first tab.
func bodies(t *testing.T, name string) map[string]string {
	t.Helper()
	source := read(t, name)
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			body := source[fset.Position(f.Body.Lbrace).Offset:fset.Position(f.Body.Rbrace).Offset]
			all[f.Name.Name] = strings.ReplaceAll(body, "\n\t", "\n")
		}
	}
	return all
}

// modules are the modules of this repository with packages for snippets, by their folders.
var modules = []string{".", "bellwetherprom", "lockers/etcdlock"}

// standIns are two frameworks that the repository does not require, with the recipes' few names.
var standIns = map[string]string{
	"github.com/gin-gonic/gin":    "docs/testdata/gin.go",
	"github.com/labstack/echo/v4": "docs/testdata/echo.go",
}

// requirements returns a go.mod and a go.sum with the repository's requirements: no build needs the network.
func requirements(t *testing.T) (mod, sum string) {
	t.Helper()
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	required := map[string]string{}
	var replaced, sums strings.Builder
	for _, folder := range modules {
		text := read(t, filepath.Join(folder, "go.mod"))
		name := strings.Fields(text)[1]
		required[name] = "v0.0.0"
		fmt.Fprintf(&replaced, "replace %s => %s\n", name, filepath.Join(root, folder))
		for _, m := range regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`).FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(m[1], packages["bellwether"]) {
				required[m[1]] = m[2]
			}
		}
		sums.WriteString(read(t, filepath.Join(folder, "go.sum")))
	}
	for name := range standIns {
		required[name] = "v4.0.0"
		if !strings.HasSuffix(name, "/v4") {
			required[name] = "v0.0.0"
		}
		fmt.Fprintf(&replaced, "replace %s => ./standin/%s\n", name, path.Base(strings.TrimSuffix(name, "/v4")))
	}
	var b strings.Builder
	b.WriteString("module snippets\n\ngo 1.26.0\n\n")
	for name, version := range required {
		fmt.Fprintf(&b, "require %s %s\n", name, version)
	}
	return b.String() + replaced.String(), sums.String()
}

func TestREADME_SnippetsBuildAndRun(t *testing.T) {
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
	mod, sum := requirements(t)
	write("go.mod", mod)
	write("go.sum", sum)
	for name, file := range standIns {
		folder := "standin/" + path.Base(strings.TrimSuffix(name, "/v4"))
		write(folder+"/go.mod", "module "+name+"\n\ngo 1.26.0\n")
		write(folder+"/"+path.Base(file), read(t, file))
	}
	engines := map[string]func(testing.TB, ...string) *testserver.Server{
		"redis:6379": testserver.Redis, "memcached:11211": testserver.Memcached,
	}
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = dir
		// With the race detector: "make test" has compiled the packages with it.
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -race")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	ending := map[string]string{} // the snippets that end, by package name
	for d, document := range documents(t) {
		for i, s := range snippets(t, document) {
			p, name := s.program(), fmt.Sprintf("snippet%d_%d", d, i)
			switch {
			case document != "README.md":
				if s.file != "" {
					continue // its own package compiles it
				}
			case !strings.Contains(s.code, "ListenAndServe"):
				ending[name] = s.title
				for addr, server := range engines {
					if strings.Contains(p, addr) {
						p = strings.ReplaceAll(p, addr, server(t).Addr)
					}
				}
				p = strings.NewReplacer("package main\n", "package "+name+"\n", "\nfunc main() {", "\nfunc Main() {").Replace(p)
			}
			write(name+"/main.go", "// "+s.title+"\n"+p)
		}
	}
	var imports, mains strings.Builder // of one program for all snippets, because linking takes the most time
	for name := range ending {
		fmt.Fprintf(&imports, "import %q\n", "snippets/"+name)
		fmt.Fprintf(&mains, "%q: %s.Main,\n", name, name)
	}
	write("ending/main.go", "package main\n\nimport \"os\"\n"+imports.String()+"\nfunc main() { map[string]func(){\n"+mains.String()+"}[os.Args[1]]() }\n")
	run("go", "vet", "./...")
	run("go", "build", "-ldflags=-w", "-o", "bin/ending", "./ending")
	for name, title := range ending {
		if got, want := run("bin/ending", name), "user 42 <nil>\n"; got != want {
			t.Errorf("%s prints %q, want %q", title, got, want)
		}
	}
	if len(ending) < 2 {
		t.Errorf("%d snippets of README.md end, want the loader and a fleet", len(ending))
	}
}
