package fleettest

import (
	"testing"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

func commands(t *testing.T, addr string) testserver.Counts {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	counts, err := testserver.Commands(t.Context(), rdb)
	if err != nil {
		t.Fatal(err)
	}
	return counts
}
