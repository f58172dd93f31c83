package testserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Counts is the number of commands by name.
type Counts map[string]int

// Commands returns the commands run by a Redis server since its start or CONFIG RESETSTAT,
// including commands of scripts, which a meter cannot see.
func Commands(ctx context.Context, rdb *redis.Client) (Counts, error) {
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	counts := Counts{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		if counts[name], err = strconv.Atoi(calls); err != nil {
			return nil, fmt.Errorf("commandstats of %s: %w", name, err)
		}
	}
	if len(counts) == 0 {
		return nil, errors.New("no commandstats in INFO")
	}
	return counts, nil
}

// Busy returns the processor time that a Redis server's main thread, which runs all commands, has used so far. It does
// not depend on the machine's load.
func Busy(tb testing.TB, rdb *redis.Client) time.Duration {
	tb.Helper()
	info, err := rdb.Info(tb.Context(), "cpu").Result()
	if err != nil {
		tb.Fatal(err)
	}
	total := 0.0
	for line := range strings.Lines(info) {
		var seconds float64
		for _, field := range []string{"used_cpu_sys_main_thread:%f", "used_cpu_user_main_thread:%f"} {
			if n, _ := fmt.Sscanf(line, field, &seconds); n == 1 {
				total += seconds
			}
		}
	}
	if total == 0 {
		tb.Fatalf("no processor time in %q", info)
	}
	return time.Duration(total * float64(time.Second))
}

// Since returns the number of commands since before, with details. Commands of the counting itself,
// of a connection's setup and of an idle subscription do not count.
func (c Counts) Since(before Counts) (total int, detail string) {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		switch family, _, _ := strings.Cut(name, "|"); family {
		case "info", "config", "ping", "hello", "client":
			continue
		}
		if n := c[name] - before[name]; n > 0 {
			total += n
			detail += fmt.Sprintf(" %s %d", name, n)
		}
	}
	return total, detail
}
