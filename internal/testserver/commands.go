package testserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

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
