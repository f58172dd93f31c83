package docs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The tests in this file hold the order of files in docs/design.md, and the files and names in CONTRIBUTING.md, to the code.

const (
	// heldRow begins the row of the files that need each other.
	heldRow = "flights and what they hold"
	// stateRow begins the row of the files that do not know each other.
	stateRow = "a state each"
)

var goFile = regexp.MustCompile(`\b\w+\.go\b`)

// TestDesign_FilesInOrder reports each file that uses a name of a file before it in its package's table. So a
// reader who opens the files from the last row up meets no name before its declaration.
func TestDesign_FilesInOrder(t *testing.T) {
	t.Run("root", func(t *testing.T) { filesInOrder(t, ".", "\nThe root package, ") })
	t.Run("internal/page", func(t *testing.T) { filesInOrder(t, "internal/page", "\nThe files of internal/page, ") })
}

func filesInOrder(t *testing.T, dir, begin string) {
	_, section, found := strings.Cut(read(t, "docs/design.md"), begin)
	if !found {
		t.Fatalf("docs/design.md has no paragraph %q", begin)
	}
	_, section, _ = strings.Cut(section, "\n|---|---|\n")
	section, _, _ = strings.Cut(section, "\n\n")
	var order, together, states []string
	for _, row := range rows(section) {
		names := goFile.FindAllString(row[1], -1)
		order = append(order, names...)
		switch row[0] {
		case heldRow:
			together = names
		case stateRow:
			states = names
		}
	}
	if dir == "." && (len(together) == 0 || len(states) == 0) {
		t.Errorf("docs/design.md lacks the row %q or %q", heldRow, stateRow)
	}
	files, uses := usesOf(t, dir)
	for _, name := range files {
		if name != "doc.go" && !slices.Contains(order, name) {
			t.Errorf("docs/design.md does not place %s", name)
		}
	}
	for i, name := range order {
		if !slices.Contains(files, name) || slices.Index(order, name) != i {
			t.Errorf("docs/design.md places %s, which is not there or has its place already", name)
		}
	}
	for use, object := range uses {
		by, of := slices.Index(order, use[0]), slices.Index(order, use[1])
		if by > of && !(slices.Contains(together, use[0]) && slices.Contains(together, use[1])) {
			t.Errorf("%s uses %s of %s, a file before it in docs/design.md", use[0], object, use[1])
		}
		if slices.Contains(states, use[0]) && slices.Contains(states, use[1]) {
			t.Errorf("%s uses %s of %s, another state", use[0], object, use[1])
		}
	}
	if len(uses) < len(files) {
		t.Errorf("%s has only %d uses between its %d files", dir, len(uses), len(files))
	}
}

// usesOf returns the files of a package, and a name for each pair of a file and a file that it uses.
func usesOf(t *testing.T, dir string) (names []string, uses map[[2]string]string) {
	t.Helper()
	exports := map[string]string{}
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export,GoFiles", "./"+dir)
	list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as "make build" has compiled the packages
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Export string
			GoFiles            []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath], names = p.Export, p.GoFiles // the package itself comes last
	}
	set := token.NewFileSet()
	files := parsed(t, set, dir, names)
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	checker := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	pkg, err := checker.Check(dir, set, files, info)
	if err != nil {
		t.Fatal(err)
	}
	file := func(p token.Pos) string { return filepath.Base(set.Position(p).Filename) }
	uses = map[[2]string]string{}
	for id, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		if by, of := file(id.Pos()), file(object.Pos()); by != of {
			uses[[2]string{by, of}] = object.Name()
		}
	}
	return names, uses
}

// parsed returns the syntax of files of a package.
func parsed(t *testing.T, set *token.FileSet, dir string, names []string) (files []*ast.File) {
	t.Helper()
	for _, name := range names {
		file, err := parser.ParseFile(set, filepath.Join(dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// typedFiles may have type parameters: what users call, and what gives a value of the engine its type.
var typedFiles = []string{"cache.go", "batch.go", "loader.go", "codec.go"}

// TestDesign_EngineWithoutTypeParameter reports type parameters below the faces. With one the compiler makes the engine
// anew for each type of value, in each package that has a cache.
func TestDesign_EngineWithoutTypeParameter(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	typed := map[string]bool{}
	for i, file := range parsed(t, token.NewFileSet(), ".", names) {
		ast.Inspect(file, func(n ast.Node) bool {
			var parameters *ast.FieldList
			switch n := n.(type) {
			case *ast.TypeSpec:
				parameters = n.TypeParams
			case *ast.FuncType:
				parameters = n.TypeParams
			}
			if parameters != nil {
				typed[names[i]] = true
			}
			return true
		})
	}
	for name := range typed {
		if !slices.Contains(typedFiles, name) {
			t.Errorf("%s has a type parameter", name)
		}
	}
	if len(typed) != len(typedFiles) {
		t.Errorf("%d files have type parameters, want %v", len(typed), typedFiles)
	}
}

// named is a file or a package in CONTRIBUTING.md, with the names that it has there, in parentheses.
var named = regexp.MustCompile(`(internal/[a-z/]*[a-z]+(?:\.go)?|\b\w+\.go)(?: \(([^)]*)\))?`)

// TestContributing_NamesExist reports each file or name in a table of CONTRIBUTING.md that the code does not have. A
// file without a folder is in the folder of the path before it in its cell, or in the root.
func TestContributing_NamesExist(t *testing.T) {
	found := 0
	for _, row := range rows(read(t, "CONTRIBUTING.md")) {
		for _, cell := range row {
			dir := "."
			for _, m := range named.FindAllStringSubmatch(cell, -1) {
				path := m[1]
				switch {
				case strings.HasSuffix(path, ".go") && strings.Contains(path, "/"):
					dir = filepath.Dir(path)
				case strings.HasSuffix(path, ".go"):
					path = filepath.Join(dir, path)
				}
				files, err := filepath.Glob(path)
				if !strings.HasSuffix(path, ".go") {
					files, err = filepath.Glob(filepath.Join(path, "*.go"))
				}
				if err != nil || len(files) == 0 {
					t.Errorf("CONTRIBUTING.md names %s, which is not there", path)
					continue
				}
				declares := declared(parsed(t, token.NewFileSet(), ".", files))
				for _, name := range quoted.FindAllStringSubmatch(m[2], -1) {
					found++
					if !declares[name[1]] {
						t.Errorf("CONTRIBUTING.md names %s of %s, which does not declare it", name[1], path)
					}
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d names found", found)
	}
}

// declared are the functions, types, fields and parameters that files declare.
func declared(files []*ast.File) map[string]bool {
	names := map[string]bool{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names[n.Name.Name] = true
			case *ast.TypeSpec:
				names[n.Name.Name] = true
			case *ast.Field:
				for _, name := range n.Names {
					names[name.Name] = true
				}
			}
			return true
		})
	}
	return names
}

var quoted = regexp.MustCompile("`(\\w+)`")
