package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// This file has the repository's modules: their kinds, their order, and their versions of each other.

// root is the path of the root module. The path of every other module begins with it.
const root = "github.com/bellwether-go/bellwether"

// A kind decides how a module finds the repository's other modules.
type kind int

const (
	// A library is required by other modules. It replaces the repository's modules by
	// their folders. Go ignores these replacements in a program that requires the library.
	library kind = iota
	// A program is installed by its version. Go refuses to install a module with
	// replacements, so a program has none, and finds the other modules through go.work.
	program
	// An unreleased module holds tests or tools. It has no version.
	unreleased
)

// kinds has the modules that are no libraries, by their folders.
var kinds = map[string]kind{
	"bench":            program,
	"chaos":            unreleased,
	"example/server":   program,
	"internal/release": unreleased,
	"sim":              unreleased,
}

// A module is a folder of the repository with a go.mod.
type module struct {
	folder string // slash-separated, "." for the root
	kind   kind
	mod    *modfile.File
}

func (m module) path() string { return m.mod.Module.Mod.Path }

func (m module) tag(version string) string {
	return path.Join(m.folder, version)
}

// siblings returns the requirements of m that are modules of the repository.
func (m module) siblings() (all []*modfile.Require) {
	for _, r := range m.mod.Require {
		if r.Mod.Path == root || strings.HasPrefix(r.Mod.Path, root+"/") {
			all = append(all, r)
		}
	}
	return all
}

// readModules returns the modules below dir. Each module comes after the required modules.
func readModules(dir string) ([]module, error) {
	var found []module
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != dir && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case d.Name() != "go.mod":
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		mod, err := modfile.Parse(name, text, nil)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(dir, filepath.Dir(name))
		if err != nil {
			return err
		}
		folder = filepath.ToSlash(folder)
		if want := path.Join(root, folder); mod.Module.Mod.Path != want {
			return fmt.Errorf("%s: the module is %s, want %s", name, mod.Module.Mod.Path, want)
		}
		found = append(found, module{folder: folder, kind: kinds[folder], mod: mod})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return sorted(found)
}

// sorted returns the modules in an order in which each module follows its requirements.
func sorted(modules []module) ([]module, error) {
	var done []module
	placed := map[string]bool{}
	for len(done) < len(modules) {
		before := len(done)
		for _, m := range modules {
			missing := slices.ContainsFunc(m.siblings(), func(r *modfile.Require) bool { return !placed[r.Mod.Path] })
			if !placed[m.path()] && !missing {
				done = append(done, m)
				placed[m.path()] = true
			}
		}
		if len(done) == before {
			return nil, errors.New("the modules require each other in a circle, or require a module that does not exist")
		}
	}
	return done, nil
}

// released returns the modules that get a tag.
func released(modules []module) []module {
	return slices.DeleteFunc(slices.Clone(modules), func(m module) bool { return m.kind == unreleased })
}

// setVersion writes version into the requirements between the modules below dir, and into
// go.work. The workspace replaces this version of each library by its folder.
func setVersion(dir, version string) error {
	modules, err := readModules(dir)
	if err != nil {
		return err
	}
	for _, m := range modules {
		for _, r := range m.siblings() {
			if err := m.mod.AddRequire(r.Mod.Path, version); err != nil {
				return err
			}
		}
		text, err := m.mod.Format()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, m.folder, "go.mod"), text, 0o644); err != nil {
			return err
		}
	}
	work, err := readWork(dir)
	if err != nil {
		return err
	}
	for _, r := range slices.Clone(work.Replace) {
		if err := work.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	work.Cleanup()
	text := string(modfile.Format(work.Syntax)) + "\n// \"make version\" writes these lines: no proxy has a version before its release.\nreplace (\n"
	for _, m := range modules {
		if m.kind == library {
			text += fmt.Sprintf("\t%s %s => ./%s\n", m.path(), version, strings.TrimPrefix(m.folder, "."))
		}
	}
	return os.WriteFile(filepath.Join(dir, "go.work"), []byte(text+")\n"), 0o644)
}

func readWork(dir string) (*modfile.WorkFile, error) {
	name := filepath.Join(dir, "go.work")
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.ParseWork(name, text, nil)
}
