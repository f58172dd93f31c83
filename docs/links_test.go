package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The tests in this file hold that the documents' links, anchors, tests and commands exist.

// pages returns all documents for readers.
func pages(t *testing.T) []string {
	t.Helper()
	return append(documents(t), "docs/design.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "bench/README.md")
}

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	inline  = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
)

// anchors returns the names that GitHub gives to the headings of a document.
func anchors(text string) map[string]bool {
	names, seen := map[string]bool{}, map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		title := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		name := strings.ReplaceAll(regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		if n := seen[name]; n > 0 {
			names[fmt.Sprintf("%s-%d", name, n)] = true
		} else {
			names[name] = true
		}
		seen[name]++
	}
	return names
}

// TestLinks holds that each relative link has its file, and each anchor its heading.
func TestLinks(t *testing.T) {
	checked := 0
	for _, page := range pages(t) {
		text := inline.ReplaceAllString(fence.ReplaceAllString(read(t, page), ""), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			checked++
			name, anchor, has := strings.Cut(m[1], "#")
			file := page
			if name != "" {
				file = filepath.Join(filepath.Dir(page), name)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s points to %s: %v", page, m[1], err)
			} else if has && !anchors(read(t, file))[anchor] {
				t.Errorf("%s points to %s, and %s has no such heading", page, m[1], file)
			}
		}
	}
	if checked < 90 {
		t.Errorf("only %d links were found", checked)
	}
}

// TestLinks_Guides holds that each guide can be reached from README.md.
func TestLinks_Guides(t *testing.T) {
	text := read(t, "README.md")
	for _, guide := range documents(t)[1:] {
		if !strings.Contains(text, "]("+guide+")") && !strings.Contains(text, "]("+guide+"#") {
			t.Errorf("README.md has no link to %s", guide)
		}
	}
}

// TestPictures_AreShown holds that a document shows each drawing and each chart in docs.
func TestPictures_AreShown(t *testing.T) {
	var text strings.Builder
	for _, page := range pages(t) {
		text.WriteString(read(t, page))
	}
	files, err := filepath.Glob("docs/*.svg")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.Contains(text.String(), filepath.Base(file)+")") {
			t.Errorf("no document shows %s", file)
		}
	}
}

// functions returns the names of all tests, examples and benchmarks.
func functions(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Example|Benchmark|Fuzz)\w*)\(`)
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && len(path) > 1 && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(source), -1) {
			names[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestClaims_TestsExist holds that each named test, example and benchmark exists.
func TestClaims_TestsExist(t *testing.T) {
	names := functions(t)
	named := regexp.MustCompile("`((?:Test|Example|Benchmark)(?:_?[A-Za-z]\\w*)?)(\\*)?(?:/[\\w/]*)?`")
	found := 0
	for _, document := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(read(t, document), -1) {
			found++
			exists := names[m[1]]
			if m[2] == "*" {
				for name := range names {
					exists = exists || strings.HasPrefix(name, m[1])
				}
			}
			if !exists {
				t.Errorf("%s names %s, and there is no such function", document, m[0])
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d names were found", found)
	}
}

// TestClaims_CommandsExist holds that each named make target and program exists.
func TestClaims_CommandsExist(t *testing.T) {
	makefile := read(t, "Makefile")
	target := regexp.MustCompile("(?m)(?:^ *|`)make ([a-z]+)")
	program := regexp.MustCompile(`go run (\./\S+)`)
	for _, page := range pages(t) {
		text := read(t, page)
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s names make %s, and there is no such target", page, m[1])
			}
		}
		for _, m := range program.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(strings.TrimRight(m[1], "`,.;:)")); err != nil {
				t.Errorf("%s names %s: %v", page, m[0], err)
			}
		}
	}
}

// TestClaims_Rows holds that docs/claims.md has a row for each row of README.md's table "What
// happens when", and that each row names a test or a command.
func TestClaims_Rows(t *testing.T) {
	claims := map[string]string{}
	for _, row := range rows(read(t, "docs/claims.md")) {
		claims[row[0]] = strings.Join(row[1:], " ")
		if !regexp.MustCompile("`(Test|Example|Benchmark|make |go run |\\.ci/|go test )").MatchString(claims[row[0]]) {
			t.Errorf("docs/claims.md names no test or command for %q", row[0])
		}
	}
	_, table, found := strings.Cut(read(t, "README.md"), "\n## What happens when\n")
	table, _, _ = strings.Cut(table, "\n## ")
	whens := rows(table)
	if !found || len(whens) < 15 {
		t.Fatalf("README.md has %d rows under \"What happens when\"", len(whens))
	}
	for _, row := range whens {
		if claims[row[0]] == "" {
			t.Errorf("docs/claims.md has no row for %q", row[0])
		}
	}
}

// rows returns the rows of all tables in a text, without their heads.
func rows(text string) (all [][]string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		if strings.HasPrefix(line, "|---") {
			all = all[:max(0, len(all)-1)]
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		all = append(all, cells)
	}
	return slices.Clip(all)
}
