package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// TestServer_FirstHerd bounds Redis's commands for a fleet's first herd: connections and the log are there.
func TestServer_FirstHerd(t *testing.T) {
	const (
		processes   = 8
		load        = 310 * time.Millisecond
		maxCommands = 40
	)
	o := newOrigin(t, "max-age=60", load)
	for range 3 {
		engine := testserver.Redis(t).OwnOrSkip(t)
		rdb := redis.NewClient(&redis.Options{Addr: engine.Addr})
		defer rdb.Close()
		count := func() testserver.Counts {
			counts, err := testserver.Commands(t.Context(), rdb)
			if err != nil {
				t.Fatal(err)
			}
			return counts
		}
		var fleet []*process
		for range processes {
			fleet = append(fleet, start(t, "-upstream", o.URL, "-store", "redis", "-locker", "redis", "-redis", engine.Addr))
		}
		var before testserver.Counts
		eventually(t, 20*time.Second, "a fleet that asks for nothing more", func() bool {
			before = count()
			time.Sleep(300 * time.Millisecond)
			n, _ := count().Since(before)
			return n == 0
		})
		path, began := fmt.Sprint("/", engine.Addr), time.Now()
		answers := herd(50, path, fleet...)
		took := time.Since(began)
		if n := o.count(path); n != 1 || len(answers) != 1 {
			t.Fatalf("%d upstream calls, answers %v", n, answers)
		}
		time.Sleep(100 * time.Millisecond) // the lease is given back in the background
		total, detail := count().Since(before)
		t.Logf("after %v: %d commands:%s", took, total, detail)
		if total <= maxCommands {
			return
		}
		if took < 450*time.Millisecond {
			t.Fatalf("%d commands, want %d", total, maxCommands)
		}
		// The machine was busy: after half of NearTTL, 500 ms, each process asks for the log again.
	}
	t.Error("no herd of three was over in time")
}
