package main

import (
	"os"
	"strings"
	"testing"
)

// TestMain lets the tests' commands use the workspace under GOWORK=off too, as the Makefile does: before a
// release only go.work has the other modules. TestModules_Alone and TestInstall switch the workspace off.
func TestMain(m *testing.M) {
	os.Setenv("GOWORK", "")
	os.Exit(m.Run())
}

func TestRun_NoVersion(t *testing.T) {
	for _, version := range []string{"", "0.1.0", "v0.1", "v2.0.0", "v0.1.0+incompatible", "latest"} {
		for _, command := range []string{"version", "tag"} {
			if err := run([]string{command, version}); err == nil || !strings.Contains(err.Error(), "is no version") {
				t.Errorf("%s %q: %v", command, version, err)
			}
		}
	}
}

func TestRun_NoVersionOfThePath(t *testing.T) {
	err := run([]string{"tag", "v2.0.0"})
	if err == nil || !strings.Contains(err.Error(), "should be v0 or v1") {
		t.Errorf("tag v2.0.0: %v, want the reason", err)
	}
}
