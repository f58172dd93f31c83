package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// The test in this file uses the next release: it tags the modules in a copy of the repository, serves
// them from a proxy of files, and builds programs outside of the repository, without a workspace or a
// replacement. The programs are the examples of the packages, so they follow each change of the API.

// servers has the engines by their ports in the examples.
var servers = map[string]func(testing.TB) *testserver.Server{
	"6379":  func(tb testing.TB) *testserver.Server { return testserver.Redis(tb) },
	"11211": func(tb testing.TB) *testserver.Server { return testserver.Memcached(tb) },
	"2379":  func(tb testing.TB) *testserver.Server { return testserver.Etcd(tb) },
	"2181":  func(tb testing.TB) *testserver.Server { return testserver.ZooKeeper(tb) },
	"8000":  testserver.DynamoDB,
}

func TestInstall(t *testing.T) {
	dir, version := taggedCopy(t)
	u := &user{t: t, version: version, home: t.TempDir(), proxy: serve(t, dir, version)}
	t.Run("programs", u.buildsPrograms)
	t.Run("server", u.installsTheServer)
	if !testing.Short() {
		t.Run("bench", u.installsTheBenchmarks) // its rivals take minutes to compile
	}
}

// copyOfTheRepository copies the working tree's files, without those that git ignores.
func copyOfTheRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name := range strings.SplitSeq(git(t, repository, "ls-files", "-co", "--exclude-standard"), "\n") {
		from, to := filepath.Join(repository, name), filepath.Join(dir, name)
		if _, err := os.Stat(from); os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := copyFile(from, to); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// taggedCopy makes a repository of the working tree, tagged with the version that the modules require.
func taggedCopy(t *testing.T) (dir, version string) {
	t.Helper()
	dir = copyOfTheRepository(t)
	for _, m := range modules(t) {
		for _, r := range m.siblings() {
			version = r.Mod.Version
		}
	}
	changelog := filepath.Join(dir, "CHANGELOG.md")
	text, err := os.ReadFile(changelog)
	if err != nil {
		t.Fatal(err)
	}
	title := "\n## [" + strings.TrimPrefix(version, "v") + "] - 2026-01-01\n"
	writeFile(t, changelog, strings.Replace(string(text), "\n## [Unreleased]\n", title, 1))
	commit(t, dir)
	if err := tag(dir, version, io.Discard); err != nil {
		t.Fatal(err)
	}
	return dir, version
}

// A user has an own module cache without modules of this repository.
type user struct {
	t              *testing.T
	home           string // outside of the repository
	proxy, version string
}

func (u *user) command(ctx context.Context, folder string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = filepath.Join(u.home, folder)
	machine := strings.Split(goEnv(u.t, "GOMODCACHE", "GOPROXY"), "\n")
	// The machine's module cache has the form of a proxy. The machine's proxy has the rest.
	proxies := []string{u.proxy, "file://" + filepath.ToSlash(filepath.Join(machine[0], "cache", "download")), machine[1]}
	cmd.Env = append(os.Environ(),
		"GOPROXY="+strings.Join(proxies, ","), "GOMODCACHE="+filepath.Join(u.home, "modules"), "GOBIN="+filepath.Join(u.home, "bin"),
		// No database has an unreleased version's sums. All other sums are compared with the repository's.
		"GOSUMDB=off", "GONOSUMDB=", "GOPRIVATE=", "GONOPROXY=",
		// A machine may have no C compiler.
		"CGO_ENABLED=0",
		// With -trimpath the compiled packages of any module cache are the same.
		"GOWORK=off", "GOFLAGS=-trimpath -modcacherw -mod=mod", "GOTOOLCHAIN=local")
	return cmd
}

func goEnv(t *testing.T, names ...string) string {
	t.Helper()
	out, err := output(".", "go", append([]string{"env"}, names...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (u *user) run(t *testing.T, folder string, args ...string) string {
	t.Helper()
	began := time.Now()
	defer func() { t.Logf("%.1f s: %s", time.Since(began).Seconds(), strings.Join(args[:min(3, len(args))], " ")) }()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	out, err := u.command(ctx, folder, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// buildsPrograms builds and runs a program per example, in short mode one program: linking takes longest.
func (u *user) buildsPrograms(t *testing.T) {
	dir := filepath.Join(u.home, "programs")
	var sums bytes.Buffer
	get := []string{"go", "get"}
	programs := map[string]example{}
	for _, m := range modules(t) {
		if m.kind != library {
			continue
		}
		get = append(get, m.path()+"@"+u.version)
		sum, err := os.ReadFile(filepath.Join(repository, m.folder, "go.sum"))
		if err != nil {
			t.Fatal(err)
		}
		sums.Write(sum)
		for _, folder := range publicPackages(t, m) {
			for _, e := range chosen(t, folder) {
				programs[strings.ReplaceAll(path.Join(folder, e.name), "/", "-")] = e
			}
		}
	}
	put := func(name, text string) {
		t.Helper()
		writeFile(t, filepath.Join(dir, name), text)
	}
	started := map[string]bool{}
	var imports, mains strings.Builder
	number := 0
	for name, e := range programs {
		// The address comes from the environment, so that each run compiles the same text.
		variables := "package main\n\nimport \"os\"\n"
		for port, server := range servers {
			if !strings.Contains(e.program, "localhost:"+port) {
				continue
			}
			if !started[port] {
				started[port] = true
				t.Setenv("TEST_ADDR_"+port, server(t).Addr)
			}
			e.program = strings.ReplaceAll(e.program, "localhost:"+port, `"+addr`+port+`+"`)
			variables += fmt.Sprintf("\nvar addr%s = os.Getenv(%q)\n", port, "TEST_ADDR_"+port)
		}
		if testing.Short() {
			e.program = strings.NewReplacer("package main\n", "package example\n", "\nfunc main() {", "\nfunc Main() {").Replace(e.program)
			variables = strings.Replace(variables, "package main", "package example", 1)
			number++
			fmt.Fprintf(&imports, "import p%d %q\n", number, "programs/"+name)
			fmt.Fprintf(&mains, "%q: p%d.Main,\n", name, number)
		}
		put(name+"/main.go", e.program)
		if strings.Contains(variables, "var") {
			put(name+"/addr.go", variables)
		}
	}
	u.run(t, "programs", "go", "mod", "init", "programs")
	put("go.sum", sums.String())
	u.run(t, "programs", get...)
	built := "./..."
	if testing.Short() {
		built = "./all"
		put("all/main.go", "package main\n\nimport \"os\"\n"+imports.String()+"\nfunc main() { map[string]func(){\n"+mains.String()+"}[os.Args[1]]() }\n")
	}
	u.run(t, "programs", "go", "build", "-ldflags=-w", "-o", "bin/", built)
	for name, e := range programs {
		t.Run(name, func(t *testing.T) {
			command := []string{filepath.Join(dir, "bin", name)}
			if testing.Short() {
				command = []string{filepath.Join(dir, "bin", "all"), name}
			}
			if got := u.run(t, "programs", command...); got != e.output {
				t.Errorf("the program prints %q, want %q", got, e.output)
			}
		})
	}
	if len(programs) < 12 {
		t.Errorf("only %d programs were built", len(programs))
	}
}

// installsTheServer installs example/server and asks it for a page twice.
func (u *user) installsTheServer(t *testing.T) {
	u.install(t, "example/server")
	addr := testserver.FreeAddr(t)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := u.command(ctx, "", filepath.Join(u.home, "bin", "server"), "-addr", addr)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cancel()
	var got string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		response, err := http.Get("http://" + addr + "/slow?delay=1ms")
		if err != nil {
			continue // it does not listen yet
		}
		response.Body.Close()
		if got = response.Header.Get("Cache-Status"); strings.Contains(got, ";hit") {
			return
		}
	}
	t.Errorf("the server answers with Cache-Status %q, want a hit", got)
}

func (u *user) installsTheBenchmarks(t *testing.T) {
	u.install(t, "bench")
	u.run(t, "", filepath.Join(u.home, "bin", "bench"), "herd", "-h")
}

// install installs a program, and holds that its modules are the modules of its tests.
func (u *user) install(t *testing.T, folder string) {
	t.Helper()
	u.run(t, "", "go", "install", root+"/"+folder+"@"+u.version)
	text, err := os.ReadFile(filepath.Join(repository, folder, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	sums := strings.Split(string(text), "\n")
	checked := 0
	for line := range strings.Lines(u.run(t, "", "go", "version", "-m", filepath.Join("bin", path.Base(folder)))) {
		f := strings.Fields(line)
		switch {
		case f[0] != "dep":
		case f[1] == root || strings.HasPrefix(f[1], root+"/"):
			if f[2] != u.version {
				t.Errorf("%s is built with %s, want %s", folder, strings.Join(f[1:], " "), u.version)
			}
		default:
			checked++
			if want := strings.Join(f[1:], " "); !slices.Contains(sums, want) {
				t.Errorf("%s is built with %s, which its go.sum does not have", folder, want)
			}
		}
	}
	if checked < 5 {
		t.Errorf("%s is built with %d modules of others", folder, checked)
	}
}

// publicPackages returns the folders of a module's packages that a user can import.
func publicPackages(t *testing.T, m module) (folders []string) {
	t.Helper()
	out, err := output(filepath.Join(repository, m.folder), "go", "list", "-f", "{{.Name}} {{.ImportPath}}", "./...")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		folder := strings.TrimPrefix(strings.TrimPrefix(f[1], root), "/")
		if f[0] != "main" && !slices.Contains(strings.Split(folder, "/"), "internal") && folder != "docs" {
			folders = append(folders, folder)
		}
	}
	return folders
}

// An example is a program that a package's documentation shows.
type example struct {
	name            string // as in go/doc
	program, output string
}

// examples returns the examples of a package that are programs by themselves.
func examples(t *testing.T, folder string) (all []example) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	names, err := fs.Glob(os.DirFS(filepath.Join(repository, folder)), "*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		file, err := parser.ParseFile(fset, filepath.Join(repository, folder, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	for _, e := range doc.Examples(files...) {
		if e.Play == nil {
			continue
		}
		var program bytes.Buffer
		if err := format.Node(&program, fset, e.Play); err != nil {
			t.Fatal(err)
		}
		output := e.Output
		if output == "" {
			output = "user 42 <nil>\n" // of each example that needs a server
		}
		all = append(all, example{e.Name, program.String(), output})
	}
	return all
}

// chosen returns the examples that TestInstall builds: two of the root package, one of each other package.
func chosen(t *testing.T, folder string) []example {
	t.Helper()
	all := examples(t, folder)
	if folder == "" {
		all = slices.DeleteFunc(all, func(e example) bool { return e.name != "New" && e.name != "Middleware_Handler" })
		if len(all) != 2 {
			t.Errorf("the root package has no ExampleNew or no ExampleMiddleware_Handler")
		}
		return all
	}
	return all[:min(1, len(all))]
}
