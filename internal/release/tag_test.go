package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A small repository with one module of each kind.
var small = map[string]string{
	".gitignore":                 "/dist/\n",
	"CHANGELOG.md":               "# Changelog\n\n## [0.1.0] - 2026-11-26\n\nThe first release.\n",
	"go.mod":                     "module " + root + "\n\ngo 1.26.0\n",
	"go.work":                    "go 1.26.0\n\nuse (\n\t.\n\t./bench\n\t./chaos\n\t./lockers/etcdlock\n)\n",
	"bench/go.mod":               "module " + root + "/bench\n\ngo 1.26.0\n\nrequire " + root + "/lockers/etcdlock v0.0.1\n",
	"chaos/go.mod":               "module " + root + "/chaos\n\ngo 1.26.0\n\nrequire " + root + " v0.0.1\n\nreplace " + root + " => ..\n",
	"lockers/etcdlock/go.mod":    "module " + root + "/lockers/etcdlock\n\ngo 1.26.0\n\nrequire " + root + " v0.0.1\n\nreplace " + root + " => ../..\n",
	"lockers/etcdlock/README.md": "x\n",
}

// write makes the files below a new directory.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		writeFile(t, filepath.Join(dir, name), text)
	}
	return dir
}

// writeFile writes a file, and makes its folder if that is missing.
func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	config := []string{"-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false", "-c", "core.excludesFile="}
	out, err := output(dir, "git", append(config, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// commit commits all files in dir, and records that its tests have passed.
func commit(t *testing.T, dir string) {
	t.Helper()
	git(t, dir, "init", "-q")
	git(t, dir, "config", "user.name", "test")
	git(t, dir, "config", "user.email", "test@example.com")
	git(t, dir, "config", "tag.gpgsign", "false")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "a commit")
	writeFile(t, filepath.Join(dir, passed), git(t, dir, "rev-parse", "HEAD^{tree}")+"\n")
}

func TestTag(t *testing.T) {
	dir := write(t, small)
	if err := setVersion(dir, "v0.1.0"); err != nil {
		t.Fatal(err)
	}
	commit(t, dir)
	var said strings.Builder
	if err := tag(dir, "v0.1.0", &said); err != nil {
		t.Fatal(err)
	}
	if got, want := git(t, dir, "tag"), "bench/v0.1.0\nlockers/etcdlock/v0.1.0\nv0.1.0"; got != want {
		t.Errorf("the tags are %q, want %q", got, want)
	}
	got := strings.Join(strings.Fields(strings.ReplaceAll(said.String(), "\\", "")), " ")
	if want := "git push --atomic origin HEAD v0.1.0 lockers/etcdlock/v0.1.0 bench/v0.1.0"; !strings.HasSuffix(got, want) {
		t.Errorf("tag said %q, want the end %q", got, want)
	}
}

func TestTag_Refused(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string // replaces the file after the commit, or before it
		after      bool
		want       string
	}{
		"changes":      {"go.mod", small["go.mod"] + "\n", true, "the working tree has changes"},
		"version":      {"lockers/etcdlock/go.mod", small["lockers/etcdlock/go.mod"], false, "lockers/etcdlock requires " + root + "@v0.0.1"},
		"replacement":  {"bench/go.mod", small["bench/go.mod"] + "\nreplace " + root + " => ..\n", false, "bench has replacements"},
		"workspace":    {"go.work", small["go.work"] + "\nreplace " + root + " v0.0.1 => ./\n", false, "go.work replaces " + root + "@v0.0.1"},
		"what to do":   {"go.work", small["go.work"] + "\nreplace " + root + " v0.0.1 => ./\n", false, `run "make version VERSION=v0.1.0"`},
		"changelog":    {"CHANGELOG.md", "## [Unreleased]\n\nx\n\n## [0.1.0] - 2026-11-26\n\nx\n", false, "the first section of CHANGELOG.md is [Unreleased], want [0.1.0]"},
		"no date":      {"CHANGELOG.md", "## [0.1.0]\n\nx\n", false, "has no date"},
		"empty":        {"CHANGELOG.md", "## [0.1.0] - 2026-11-26\n\n## [0.0.1] - 2026-11-25\n\nx\n", false, "is empty"},
		"not tested":   {"dist/passed", "another tree\n", true, `"make test" has not passed`},
		"tag is there": {"", "", false, "the tag bench/v0.1.0 exists"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, small)
			if err := setVersion(dir, "v0.1.0"); err != nil {
				t.Fatal(err)
			}
			replace := func() { writeFile(t, filepath.Join(dir, c.file), c.text) }
			if c.file != "" && !c.after {
				replace()
			}
			commit(t, dir)
			before := ""
			if c.file == "" {
				before = "bench/v0.1.0"
				git(t, dir, "tag", before)
			}
			if c.after {
				replace()
			}
			err := tag(dir, "v0.1.0", &strings.Builder{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("tag said %v, want %q", err, c.want)
			}
			if got := git(t, dir, "tag"); got != before {
				t.Errorf("tag was refused and made %q", got)
			}
		})
	}
}
