package bellwether_test

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// apiFile lists the exported API of every package of every module.
const apiFile = "testdata/api.txt"

func TestAPI(t *testing.T) {
	got := exported(t, ".")
	if os.Getenv("BELLWETHER_API") == "update" {
		if err := os.WriteFile(apiFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(apiFile)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for _, line := range wantLines {
		if !slices.Contains(gotLines, line) {
			t.Errorf("- %s", line)
		}
	}
	for _, line := range gotLines {
		if !slices.Contains(wantLines, line) {
			t.Errorf("+ %s", line)
		}
	}
	t.Error("the exported API differs from " + apiFile + ". If the change is intended, describe it in CHANGELOG.md (removals and changes break importers: CONTRIBUTING.md, Versions) and update the file:\n\tBELLWETHER_API=update go test -run TestAPI .")
}

// exported returns the exported declarations below dir. It only parses: it needs no module's requirements.
func exported(t *testing.T, dir string) string {
	t.Helper()
	decls := map[string][]string{} // by package
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); path != dir && (name[0] == '.' || slices.Contains([]string{"internal", "example", "bench", "testdata", "bin", "dist"}, name)) {
				return filepath.SkipDir
			}
			return nil
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.FileExports(file)
		name := filepath.ToSlash(filepath.Dir(path))
		for _, decl := range file.Decls {
			for _, d := range single(decl) {
				var b bytes.Buffer
				if err := printer.Fprint(&b, fset, d); err != nil {
					return err
				}
				decls[name] = append(decls[name], lines(b.String())...)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(decls)) {
		slices.Sort(decls[name])
		fmt.Fprintf(&out, "%s\n\t%s\n\n", cmp.Or(strings.TrimPrefix(name, "."), "bellwether"), strings.Join(decls[name], "\n\t"))
	}
	return out.String()
}

// lines returns a line for the declaration, its fields and its methods, each with the first line.
func lines(decl string) (out []string) {
	first, rest, _ := strings.Cut(decl, "\n")
	first = strings.Join(strings.Fields(strings.TrimSuffix(first, "{")), " ")
	out = append(out, first)
	for line := range strings.Lines(rest) {
		line = strings.Join(strings.Fields(line), " ")
		switch {
		case line == "", line == "}", strings.HasPrefix(line, "//"):
		default:
			out = append(out, first+", "+line)
		}
	}
	return out
}

// single splits a declaration into its exported declarations.
func single(decl ast.Decl) (out []ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil && !ast.IsExported(receiver(d.Recv.List[0].Type)) {
			return nil // a method of an unexported type
		}
		d.Body = nil
		return []ast.Decl{d}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ImportSpec:
				continue
			case *ast.ValueSpec:
				if d.Tok == token.VAR {
					s.Values = nil
				}
			}
			out = append(out, &ast.GenDecl{Tok: d.Tok, Specs: []ast.Spec{spec}})
		}
	}
	return out
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func TestImports(t *testing.T) {
	checked := 0
	for _, dir := range []string{"driver", "observe", "stores", "lockers", "engines", "internal"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "internal/fleettest") || strings.HasPrefix(path, "internal/walks") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			checked++
			for _, imported := range file.Imports {
				if imported.Path.Value == `"github.com/bellwether-go/bellwether"` {
					t.Errorf("%s imports the root package", path)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 30 {
		t.Errorf("only %d files were checked", checked)
	}
}
