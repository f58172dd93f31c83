package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// This file collects the licence notices of the modules in the image of example/server.

const (
	shipped     = "example/server"
	noticesFile = "example/server/THIRD_PARTY"
)

var platforms = []string{"amd64", "arm64"}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

func writeNotices(dir string) error {
	text, err := notices(dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, noticesFile), []byte(text), 0o644)
}

// notices returns the licence files of all modules that are linked into the program, and
// of Go's standard library. Modules with the same text share it.
func notices(dir string) (string, error) {
	goroot, err := output(dir, "go", "env", "GOROOT")
	if err != nil {
		return "", err
	}
	licence, err := os.ReadFile(filepath.Join(goroot, "LICENSE"))
	if err != nil {
		return "", err
	}
	owners := map[string]map[string]bool{string(licence): {"Go's standard library, LICENSE": true}}
	for _, platform := range platforms {
		cmd := exec.Command("go", "list", "-deps", "-json=Dir,Module", "./"+shipped)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+platform)
		out, err := outputOf(cmd)
		if err != nil {
			return "", err
		}
		if err := addOwners(owners, out); err != nil {
			return "", err
		}
	}
	texts := slices.SortedFunc(maps.Keys(owners), func(a, b string) int {
		return strings.Compare(slices.Min(slices.Collect(maps.Keys(owners[a]))), slices.Min(slices.Collect(maps.Keys(owners[b]))))
	})
	var b strings.Builder
	fmt.Fprintf(&b, "The program %s contains the software below, under these licences.\n\"make notices\" writes this file.\n", shipped)
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s\n", strings.Repeat("=", 80))
		for _, owner := range slices.Sorted(maps.Keys(owners[text])) {
			fmt.Fprintf(&b, "%s\n", owner)
		}
		fmt.Fprintf(&b, "%s\n\n%s\n", strings.Repeat("-", 80), strings.TrimSpace(text))
	}
	return b.String(), nil
}

// addOwners adds the licence files of the packages that "go list -json" has printed, by their texts,
// from each package's folder up to its module's. A module without a licence is an error.
func addOwners(owners map[string]map[string]bool, list string) error {
	found := map[string]bool{}
	for decoder := json.NewDecoder(strings.NewReader(list)); ; {
		var p struct {
			Dir    string
			Module *struct{ Path, Version, Dir string }
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if p.Module == nil || p.Module.Path == root || strings.HasPrefix(p.Module.Path, root+"/") {
			continue
		}
		name := p.Module.Path + " " + p.Module.Version
		found[name] = found[name] || false
		for folder := p.Dir; len(folder) >= len(p.Module.Dir); folder = filepath.Dir(folder) {
			entries, err := os.ReadDir(folder)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if e.IsDir() || !licenceFile.MatchString(e.Name()) {
					continue
				}
				text, err := os.ReadFile(filepath.Join(folder, e.Name()))
				if err != nil {
					return err
				}
				if owners[string(text)] == nil {
					owners[string(text)] = map[string]bool{}
				}
				file, err := filepath.Rel(p.Module.Dir, filepath.Join(folder, e.Name()))
				if err != nil {
					return err
				}
				owners[string(text)][name+", "+filepath.ToSlash(file)] = true
				found[name] = true
			}
		}
	}
	for name, has := range found {
		if !has {
			return fmt.Errorf("%s has no licence file", name)
		}
	}
	return nil
}
