package main

import (
	"path/filepath"
	"slices"
	"testing"
)

const repository = "../.."

func absolute(t *testing.T, name string) string {
	t.Helper()
	name, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func modules(t *testing.T) []module {
	t.Helper()
	all, err := readModules(repository)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestModules_OneVersion holds that all requirements between the modules and go.work have one version.
func TestModules_OneVersion(t *testing.T) {
	versions := map[string][]string{}
	for _, m := range modules(t) {
		for _, r := range m.siblings() {
			versions[r.Mod.Version] = append(versions[r.Mod.Version], m.folder)
		}
	}
	work, err := readWork(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range work.Replace {
		versions[r.Old.Version] = append(versions[r.Old.Version], "go.work")
	}
	if len(versions) != 1 {
		t.Errorf("the modules require different versions of each other: %v; run \"make version\"", versions)
	}
}

func TestModules_Replacements(t *testing.T) {
	for _, m := range modules(t) {
		var got, want []string
		for _, r := range m.mod.Replace {
			got = append(got, r.Old.Path)
		}
		if m.kind != program {
			for _, r := range m.siblings() {
				want = append(want, r.Mod.Path)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s replaces %q, want %q", m.folder, got, want)
		}
	}
}

func TestModules_InTheWorkspace(t *testing.T) {
	work, err := readWork(repository)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, u := range work.Use {
		used[u.Path] = true
	}
	for _, m := range modules(t) {
		if !used[m.folder] && !used["./"+m.folder] {
			t.Errorf("go.work does not use %s", m.folder)
		}
	}
}

// TestModules_Alone holds that each module finds all its imports, also of tests, without the workspace.
func TestModules_Alone(t *testing.T) {
	all := modules(t)
	for _, m := range all {
		t.Run(m.folder, func(t *testing.T) {
			t.Parallel()
			cmd, err := alone(absolute(t, repository), m, all, t.TempDir(), "list", "-deps", "-test", "./...")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := outputOf(cmd); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestModules_Order(t *testing.T) {
	all := modules(t)
	slices.Reverse(all)
	got, err := sorted(all)
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]bool{}
	for _, m := range got {
		for _, r := range m.siblings() {
			if !before[r.Mod.Path] {
				t.Errorf("%s comes before its requirement %s", m.folder, r.Mod.Path)
			}
		}
		before[m.path()] = true
	}
}
