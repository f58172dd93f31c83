package main

import (
	"bytes"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"testing"

	modversion "golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

// serve writes dir's released modules at their version tags as a proxy's files, and returns the folder's URL.
func serve(t *testing.T, dir, version string) string {
	t.Helper()
	proxy := t.TempDir()
	modules, err := readModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range released(modules) {
		escaped, err := modversion.EscapePath(m.path())
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
		put := func(name, text string) {
			t.Helper()
			writeFile(t, filepath.Join(folder, name), text)
		}
		put("list", version+"\n")
		put(version+".info", fmt.Sprintf(`{"Version": %q, "Time": "2026-01-01T00:00:00Z"}`, version))
		put(version+".mod", git(t, dir, "show", m.tag(version)+":"+path.Join(m.folder, "go.mod"))+"\n")
		// Like the go command, CreateFromVCS takes the tag's files, and the root's licence for each module.
		var zip bytes.Buffer
		at := modversion.Version{Path: m.path(), Version: version}
		if err := modzip.CreateFromVCS(&zip, at, dir, m.tag(version), strings.TrimPrefix(m.folder, ".")); err != nil {
			t.Fatal(err)
		}
		put(version+".zip", zip.String())
	}
	return "file://" + filepath.ToSlash(proxy)
}
