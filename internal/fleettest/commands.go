package fleettest

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// This file counts what a Redis server does, as the server itself does: what a
// script calls is a command too, which a meter before it cannot see.

// commands returns how often the server has run each command, those inside
// scripts included.
func commands(t *testing.T, addr string) map[string]int {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	counts, err := testserver.Commands(t.Context(), rdb)
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// herdCommands is how many commands there were between two counts, and which. INFO is the
// test's own; what a connection says of itself, and the heartbeat of an idle
// subscription, are none.
func herdCommands(before, after map[string]int) (total int, detail string) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		switch name {
		case "info", "ping", "hello", "client|setinfo":
			continue
		}
		if n := after[name] - before[name]; n > 0 {
			total += n
			detail += fmt.Sprintf(" %s %d", name, n)
		}
	}
	return total, detail
}
