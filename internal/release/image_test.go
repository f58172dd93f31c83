package main

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The tests in this file run the commands of example/server's Dockerfile in a copy of the repository.

// An instruction is one line of a Dockerfile.
type instruction struct{ name, args string }

func dockerfile(t *testing.T) (all []instruction) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, shipped, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, args, _ := strings.Cut(line, " ")
		if !slices.Contains([]string{"FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT"}, name) || strings.HasSuffix(args, `\`) {
			t.Fatalf("the Dockerfile has the line %q, which this test does not understand", line)
		}
		all = append(all, instruction{name, args})
	}
	return all
}

// flags are the flags in compose.yaml, with the defaults of its variables.
func flags(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n    dockerfile: "+shipped+"/Dockerfile\n") {
		t.Errorf("compose.yaml does not build %s/Dockerfile", shipped)
	}
	variable := regexp.MustCompile(`\$\{\w+:-(\w*)\}`)
	for _, m := range regexp.MustCompile(`(?m)^    - (-\S+)$`).FindAllStringSubmatch(string(text), -1) {
		flag := m[1]
		for variable.MatchString(flag) {
			flag = variable.ReplaceAllString(flag, "$1") // the innermost first
		}
		all = append(all, flag)
	}
	if len(all) < 5 {
		t.Errorf("compose.yaml has the flags %q", all)
	}
	return all
}

// TestImage builds the image: its program is static and knows all its flags, and it has the licences.
func TestImage(t *testing.T) {
	source, image := copyOfTheRepository(t), t.TempDir()
	var entry []string
	var copied []string
	stages := 0
	for _, i := range dockerfile(t) {
		switch i.name {
		case "FROM":
			stages++
		case "WORKDIR":
			if i.args != "/src" {
				t.Fatalf("the working directory is %s, want /src", i.args)
			}
		case "RUN":
			// A file that the command writes below / comes to image.
			cmd := exec.Command("sh", "-c", strings.ReplaceAll(i.args, " /", " "+image+"/"))
			cmd.Dir = source
			if _, err := outputOf(cmd); err != nil {
				t.Fatal(err)
			}
		case "COPY":
			args := strings.Fields(i.args)
			if stages == 1 {
				continue // the whole source
			}
			for _, from := range args[1 : len(args)-1] {
				copied = append(copied, path.Base(from))
				inSource, isSource := strings.CutPrefix(from, "/src/")
				at := filepath.Join(source, inSource)
				switch {
				case strings.HasPrefix(from, "/etc/"):
					continue // a file of the base image
				case !isSource:
					at = filepath.Join(image, from)
				}
				if _, err := os.Stat(at); err != nil {
					t.Errorf("COPY %s: %v", from, err)
				}
			}
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(i.args), &entry); err != nil {
				t.Fatalf("ENTRYPOINT %s: %v", i.args, err)
			}
		}
	}
	if stages != 2 || len(entry) == 0 {
		t.Fatalf("the Dockerfile has %d stages and the entry point %q", stages, entry)
	}
	for _, name := range []string{"LICENSE", "THIRD_PARTY", "ca-certificates.crt", path.Base(entry[0])} {
		if !slices.Contains(copied, name) {
			t.Errorf("the image has no %s", name)
		}
	}
	program := filepath.Join(image, entry[0])
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program is not static: it has a segment %v, and the image has no libraries", p.Type)
		}
	}
	// The program refuses a wrong flag before it reads -h.
	args := append(slices.Concat(entry[1:], flags(t)), "-h")
	if _, err := output(image, program, args...); err != nil {
		t.Error(err)
	}
	if _, err := output(image, program, "-no-such-flag", "-h"); err == nil {
		t.Error("the program takes any flag")
	}
}

func TestNotices(t *testing.T) {
	got, err := os.ReadFile(filepath.Join(repository, noticesFile))
	if err != nil {
		t.Fatal(err)
	}
	want, err := notices(absolute(t, repository))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not up to date; run \"make notices\"", noticesFile)
	}
}
