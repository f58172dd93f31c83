package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// This file makes a release: the checks before, and the tags.

// passed is the file in which "make test" records the tree that has passed.
const passed = "dist/passed"

// tag tags the modules below dir if all checks pass, and writes the command that pushes the tags to w.
func tag(dir, version string, w io.Writer) error {
	modules, err := readModules(dir)
	if err != nil {
		return err
	}
	modules = released(modules)
	if err := check(dir, version, modules); err != nil {
		return err
	}
	push := []string{"git push --atomic origin HEAD"}
	for _, m := range modules {
		name := m.tag(version)
		if _, err := output(dir, "git", "tag", "-a", "-m", m.path()+" "+version, name); err != nil {
			return err
		}
		push = append(push, name)
	}
	_, err = fmt.Fprintf(w, "tagged %d modules. To publish them:\n\n  %s\n", len(modules), strings.Join(push, " \\\n    "))
	return err
}

// check returns all reasons against a release, joined.
func check(dir, version string, modules []module) error {
	var reasons []error
	refuse := func(format string, args ...any) { reasons = append(reasons, fmt.Errorf(format, args...)) }
	changed, err := output(dir, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		refuse("the working tree has changes:\n%s", changed)
	}
	written := true // version, by "make version"
	for _, m := range modules {
		for _, r := range m.siblings() {
			if r.Mod.Version != version {
				written = false
				refuse("%s requires %s", m.folder, r.Mod)
			}
		}
		if m.kind == program && len(m.mod.Replace) > 0 {
			refuse("%s has replacements, so go cannot install it", m.folder)
		}
		if tags, err := output(dir, "git", "tag", "--list", m.tag(version)); err != nil {
			return err
		} else if tags != "" {
			refuse("the tag %s exists", tags)
		}
	}
	work, err := readWork(dir)
	if err != nil {
		return err
	}
	for _, r := range work.Replace {
		if r.Old.Version != version {
			written = false
			refuse("go.work replaces %s", r.Old)
		}
	}
	if !written {
		refuse("to write %s into these files, run \"make version VERSION=%s\", and commit", version, version)
	}
	if err := checkChangelog(filepath.Join(dir, "CHANGELOG.md"), version); err != nil {
		refuse("%w", err)
	}
	tree, err := output(dir, "git", "rev-parse", "HEAD^{tree}")
	if err != nil {
		return err
	}
	if noted, _ := os.ReadFile(filepath.Join(dir, passed)); strings.TrimSpace(string(noted)) != tree {
		refuse("\"make test\" has not passed on this commit")
	}
	return errors.Join(reasons...)
}

var section = regexp.MustCompile(`(?m)^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$`)

// checkChangelog holds that the first section of a changelog is of version, and has a date and a text.
func checkChangelog(name, version string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	sections := section.FindAllSubmatchIndex(text, 2)
	if len(sections) == 0 {
		return fmt.Errorf("%s has no section", filepath.Base(name))
	}
	first := section.FindSubmatch(text[sections[0][0]:])
	end := len(text)
	if len(sections) > 1 {
		end = sections[1][0]
	}
	switch want := strings.TrimPrefix(version, "v"); {
	case string(first[1]) != want:
		return fmt.Errorf("the first section of %s is [%s], want [%s]", filepath.Base(name), first[1], want)
	case len(first[2]) == 0:
		return fmt.Errorf("the section [%s] of %s has no date", want, filepath.Base(name))
	case strings.TrimSpace(string(text[sections[0][1]:end])) == "":
		return fmt.Errorf("the section [%s] of %s is empty", want, filepath.Base(name))
	}
	return nil
}
