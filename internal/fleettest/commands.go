package fleettest

import (
	"bufio"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// commands returns what a Redis server has run.
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

// memcachedCommands is how many gets and writes a memcached has run. Of a get of several keys each
// key counts.
func memcachedCommands(t *testing.T, addr string) int {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte("stats\r\n")); err != nil {
		t.Fatal(err)
	}
	total := 0
	in := bufio.NewScanner(c)
	for in.Scan() && in.Text() != "END" {
		for _, name := range []string{"cmd_get", "cmd_set"} {
			if text, is := strings.CutPrefix(in.Text(), "STAT "+name+" "); is {
				n, err := strconv.Atoi(text)
				if err != nil {
					t.Fatal(err)
				}
				total += n
			}
		}
	}
	if in.Err() != nil || total == 0 {
		t.Fatalf("the statistics of %s: %d commands, %v", addr, total, in.Err())
	}
	return total
}
