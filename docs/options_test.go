package docs_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// The tests in this file hold the tables of docs/options.md to the code.

// optionRows returns the rows below a heading of docs/options.md, by their option.
func optionRows(t *testing.T, heading string) map[string][]string {
	t.Helper()
	_, section, found := strings.Cut(read(t, "docs/options.md"), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/options.md has no heading %s", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	table := map[string][]string{}
	for _, row := range rows(section) {
		if len(row) != 5 {
			t.Fatalf("docs/options.md, %s: a row with %d cells: %q", heading, len(row), row)
		}
		name := strings.Trim(row[0], "`")
		if table[name] != nil {
			t.Errorf("docs/options.md has two rows of %s.%s", heading, name)
		}
		table[name] = row
	}
	return table
}

// fieldComments returns the comments of the exported fields of a struct of the root package.
func fieldComments(t *testing.T, file, name string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != name {
			return true
		}
		for _, field := range spec.Type.(*ast.StructType).Fields.List {
			for _, id := range field.Names {
				if id.IsExported() {
					comments[id.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
				}
			}
		}
		return false
	})
	if len(comments) == 0 {
		t.Fatalf("%s has no struct %s with fields", file, name)
	}
	return comments
}

// structs are the structs of options, by their headings in docs/options.md.
var structs = map[string]string{"Options": "options.go", "Fleet": "options.go", "Limits": "options.go", "HTTPOptions": "middleware.go"}

// TestOptions_Fields holds the tables' rows to the fields, and numeric defaults to the fields' comments.
func TestOptions_Fields(t *testing.T) {
	for name, file := range structs {
		table, comments := optionRows(t, name), fieldComments(t, file, name)
		for field := range table {
			if _, ok := comments[field]; !ok {
				t.Errorf("docs/options.md has a row for %s.%s, and there is no such field", name, field)
			}
		}
		for field, comment := range comments {
			row := table[field]
			if row == nil {
				t.Errorf("docs/options.md has no row for %s.%s", name, field)
				continue
			}
			number := regexp.MustCompile(`^\d[\d.,]*(?: (?:ms|s|MiB))?`).FindString(row[2])
			if want := "Zero means " + number; number != "" && !strings.Contains(comment, want) {
				t.Errorf("docs/options.md has %s as the default of %s.%s, and its comment has no %q", number, name, field, want)
			}
		}
	}
}

// TestOptions_Negative holds that a negative value is refused or turns the option off, as in the tables.
func TestOptions_Negative(t *testing.T) {
	refused := func(build func()) (refused bool) {
		defer func() { refused = recover() != nil }()
		build()
		return false
	}
	checked := 0
	check := func(name string, options reflect.Value, build func()) {
		table := optionRows(t, name)
		for i := range options.NumField() {
			field, own := options.Type().Field(i).Name, options.Field(i)
			want := "-"
			before := reflect.ValueOf(own.Interface())
			switch {
			case own.CanInt():
				own.SetInt(-1)
			case own.CanFloat():
				own.SetFloat(-1)
			}
			if own.CanInt() || own.CanFloat() {
				checked++
				if want = "off"; refused(build) {
					want = "refused"
				}
				own.Set(before)
			}
			if row := table[field]; row != nil && row[3] != want {
				t.Errorf("docs/options.md: a negative %s.%s is %q, want %q", name, field, row[3], want)
			}
		}
	}
	o := bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Engine: memstore.New(), Namespace: "values"}}
	newCache := func() {
		bellwether.New(func(context.Context, string) (string, error) { return "", nil }, o).Close()
	}
	check("Options", reflect.ValueOf(&o).Elem(), newCache)
	check("Fleet", reflect.ValueOf(&o.Fleet).Elem(), newCache)
	check("Limits", reflect.ValueOf(&o.Limits).Elem(), newCache)
	var h bellwether.HTTPOptions
	check("HTTPOptions", reflect.ValueOf(&h).Elem(), func() { bellwether.NewMiddleware(h).Close() })
	if checked < 30 {
		t.Errorf("only %d options were checked", checked)
	}
}
