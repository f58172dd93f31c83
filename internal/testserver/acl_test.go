package testserver

import (
	"os"
	"strings"
	"testing"
)

func TestRestrict_Document(t *testing.T) {
	b, err := os.ReadFile("../../docs/engines.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n    " + RedisRules + "\n", "`" + ClusterRules + "`", "`" + ReplicaRules + "`"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("docs/engines.md has no %q", want)
		}
	}
}
