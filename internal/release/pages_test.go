package main

import (
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests in this file hold the pages of pkg.go.dev.

// suites are packages of tests, without examples: tests call them.
var suites = map[string]bool{"lockers/lockertest": true, "stores/storetest": true}

// TestPages_Packages wants synopses of public packages and programs, and packages' runnable examples.
func TestPages_Packages(t *testing.T) {
	for _, m := range released(modules(t)) {
		out, err := output(filepath.Join(repository, m.folder), "go", "list", "-f", "{{.Name}} {{.Dir}}", "./...")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			name, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
			folder, err := filepath.Rel(absolute(t, repository), dir)
			if err != nil {
				t.Fatal(err)
			}
			if folder = filepath.ToSlash(folder); folder == "docs" || strings.HasPrefix(folder, "docs/") || strings.Contains("/"+folder+"/", "/internal/") {
				continue
			}
			begins := "Package " + name + " "
			if name == "main" {
				begins = strings.ToUpper(path.Base(folder)[:1]) + path.Base(folder)[1:] + " "
			}
			if got := synopsis(t, dir); !strings.HasPrefix(got, begins) {
				t.Errorf("%s has the synopsis %q, want the beginning %q", folder, got, begins)
			}
			if name != "main" && !suites[folder] && len(examples(t, folder)) == 0 {
				t.Errorf("%s has no example that is a program by itself", folder)
			}
		}
	}
}

// synopsis returns the first sentence of a package's documentation.
func synopsis(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if file.Doc != nil && !strings.HasSuffix(name, "_test.go") {
			return new(doc.Package).Synopsis(file.Doc.Text())
		}
	}
	return ""
}

// TestPages_READMEs holds that pkg.go.dev resolves each relative link, from the README's folder, to a file.
func TestPages_READMEs(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	for _, m := range released(modules(t)) {
		readme, err := os.ReadFile(filepath.Join(repository, m.folder, "README.md"))
		if os.IsNotExist(err) && m.folder != "." {
			continue // the page begins with the documentation
		} else if err != nil {
			t.Fatal(err)
		}
		for _, l := range link.FindAllStringSubmatch(string(readme), -1) {
			target, _, _ := strings.Cut(l[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			if info, err := os.Stat(filepath.Join(repository, m.folder, target)); err != nil || path.IsAbs(target) {
				t.Errorf("%s/README.md has a link to %s, which pkg.go.dev does not find: %v", m.folder, l[1], err)
			} else if info.IsDir() {
				t.Errorf("%s/README.md has a link to the folder %s", m.folder, l[1])
			}
		}
	}
}

// TestPages_Licence holds the text by which pkg.go.dev recognises the licence. Each archive gets the root's.
func TestPages_Licence(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "Apache License\n                           Version 2.0, January 2004") {
		t.Error("LICENSE is not the text of Apache-2.0")
	}
}
