package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// instrument returns the source of a Go file with a probe at the start of each function. It inserts
// text, and no lines: comments, directives and line numbers stay as they are.
func instrument(name string, source []byte) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	type insertion struct {
		at   int
		text string
	}
	insertions := []insertion{{fset.Position(file.Name.End()).Offset,
		`; import walkprobe "github.com/bellwether-go/bellwether/internal/walks/probe"`}}
	for _, d := range file.Decls {
		function := nameOf(d)
		ast.Inspect(d, func(n ast.Node) bool {
			var body *ast.BlockStmt
			switch n := n.(type) {
			case *ast.FuncDecl:
				body = n.Body
			case *ast.FuncLit:
				body = n.Body
			}
			if body != nil {
				insertions = append(insertions, insertion{fset.Position(body.Lbrace).Offset + 1,
					fmt.Sprintf(" walkprobe.Enter(%q, %q);", name, function)})
			}
			return true
		})
	}
	if len(insertions) == 1 {
		return source, nil // no function would use the import
	}
	var b strings.Builder
	done := 0
	for _, i := range insertions {
		b.Write(source[done:i.at])
		b.WriteString(i.text)
		done = i.at
	}
	b.Write(source[done:])
	return []byte(b.String()), nil
}

// nameOf is the name of a function with its receiver's type, or of the first variable of a declaration.
func nameOf(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			return typeName(d.Recv.List[0].Type) + "." + d.Name.Name
		}
		return d.Name.Name
	case *ast.GenDecl:
		if v, ok := d.Specs[0].(*ast.ValueSpec); ok {
			return v.Names[0].Name
		}
	}
	return "" // no function
}

// typeName is the name of a receiver's type, without star and parameters.
func typeName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.IndexExpr:
		return typeName(t.X)
	case *ast.IndexListExpr:
		return typeName(t.X)
	}
	return t.(*ast.Ident).Name
}
