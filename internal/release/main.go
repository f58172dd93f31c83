// Release gives the repository's modules one version, checks it, and tags them. RELEASING.md has the steps.
//
//	release version v0.1.0    write the version into the requirements between the modules
//	release tag v0.1.0        check, tag each module, and print the command that pushes the tags
//	release tidy              run "go mod tidy" in each module
//	release notices           write the licence notices of the image of example/server
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	modversion "golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	dir, err := output(".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	command, version := "", ""
	if len(args) > 0 {
		command = args[0]
	}
	if len(args) == 2 {
		version = args[1]
	}
	if command == "version" || command == "tag" {
		if semver.Canonical(version) != version {
			return fmt.Errorf("%q is no version, want one such as v0.1.0", version)
		}
		if err := modversion.Check(root, version); err != nil {
			return fmt.Errorf("%q is no version of this repository: %w", version, err)
		}
	}
	switch {
	case command == "version":
		return setVersion(dir, version)
	case command == "tag":
		return tag(dir, version, os.Stdout)
	case command == "tidy" && len(args) == 1:
		return tidy(dir)
	case command == "notices" && len(args) == 1:
		return writeNotices(dir)
	}
	return errors.New("usage: release version VERSION, release tag VERSION, release tidy, or release notices")
}

// output runs a command in dir and returns its stdout without the last newline. Errors have its stderr.
func output(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	return outputOf(cmd)
}

func outputOf(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, exit.Stderr)
	}
	return strings.TrimSuffix(string(out), "\n"), err
}
