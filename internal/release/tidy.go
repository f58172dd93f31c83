package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/mod/modfile"
)

// This file runs the go command in a module as if the repository had only it and its requirements.

func tidy(dir string) error {
	modules, err := readModules(dir)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := tidyOne(dir, m, modules); err != nil {
			return fmt.Errorf("%s: %w", m.folder, err)
		}
	}
	return nil
}

func tidyOne(dir string, m module, modules []module) error {
	scratch, err := os.MkdirTemp("", "tidy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	cmd, err := alone(dir, m, modules, scratch, "mod", "tidy")
	if err != nil {
		return err
	}
	if _, err := outputOf(cmd); err != nil {
		return err
	}
	if m.kind != program {
		return nil // go has changed the module's own files
	}
	text, err := os.ReadFile(filepath.Join(scratch, "go.mod"))
	if err != nil {
		return err
	}
	mod, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		return err
	}
	for _, sibling := range modules {
		if err := mod.DropReplace(sibling.path(), ""); err != nil {
			return err
		}
	}
	mod.Cleanup()
	if text, err = mod.Format(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, m.folder, "go.mod"), text, 0o644); err != nil {
		return err
	}
	return copyFile(filepath.Join(scratch, "go.sum"), filepath.Join(dir, m.folder, "go.sum"))
}

// alone returns a go command in the folder of m, without the workspace. A program has no replacements,
// so the command gets a copy of its go.mod in scratch, with the repository's modules replaced.
func alone(dir string, m module, modules []module, scratch string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(dir, m.folder)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if m.kind != program {
		return cmd, nil
	}
	text, err := m.mod.Format()
	if err != nil {
		return nil, err
	}
	mod, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		return nil, err
	}
	for _, sibling := range modules {
		if sibling.folder == m.folder {
			continue
		}
		if err := mod.AddReplace(sibling.path(), "", filepath.Join(dir, sibling.folder), ""); err != nil {
			return nil, err
		}
	}
	if text, err = mod.Format(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(scratch, "go.mod"), text, 0o644); err != nil {
		return nil, err
	}
	if err := copyFile(filepath.Join(cmd.Dir, "go.sum"), filepath.Join(scratch, "go.sum")); err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, "GOFLAGS="+os.Getenv("GOFLAGS")+" -modfile="+filepath.Join(scratch, "go.mod"))
	return cmd, nil
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}
