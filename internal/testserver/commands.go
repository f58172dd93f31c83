package testserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Commands returns how often a Redis server has run each command since its start
// or CONFIG RESETSTAT, those inside scripts included.
func Commands(ctx context.Context, rdb *redis.Client) (map[string]int, error) {
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
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
