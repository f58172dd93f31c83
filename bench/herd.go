package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file is one herd: the processes, the moment at which all their callers
// begin, and what came of it.

// A herd is what its processes are told.
type herd struct {
	Strategy  string
	Redis     string
	Processes int
	Callers   int
	Load      time.Duration
}

// A release is the line that lets the herd loose; a result is the line back.
type release struct {
	Key string
	At  time.Time // the processes share a clock
}

type result struct {
	Loads, Failed int
	Waits         []time.Duration
}

type worker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	in    *json.Encoder
	out   *json.Decoder
}

// row is what is printed for a strategy.
type row struct {
	loads, commands, failed int
	p50, p99, max           time.Duration
}

// run lets the herd loose so many times and returns the medians.
func (h herd) run(rounds int) (row, error) {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: h.Redis})
	defer rdb.Close()
	var workers []*worker
	defer func() {
		for _, w := range workers {
			w.stdin.Close() // a worker ends with its input
			w.cmd.Wait()
		}
	}()
	for range h.Processes {
		w, err := h.spawn()
		if err != nil {
			return row{}, err
		}
		workers = append(workers, w)
	}
	var rows []row
	for n := -1; n < rounds; n++ { // the first sets connections up, and does not count
		before, err := commands(ctx, rdb)
		if err != nil {
			return row{}, err
		}
		start := release{Key: fmt.Sprintf("%s %d %d", h.Strategy, os.Getpid(), n), At: time.Now().Add(200 * time.Millisecond)}
		for _, w := range workers {
			if err := w.in.Encode(start); err != nil {
				return row{}, err
			}
		}
		var r row
		var waits []time.Duration
		for _, w := range workers {
			var res result
			if err := w.out.Decode(&res); err != nil {
				return row{}, fmt.Errorf("a worker has ended: %w", err)
			}
			r.loads += res.Loads
			r.failed += res.Failed
			waits = append(waits, res.Waits...)
		}
		after, err := commands(ctx, rdb)
		if err != nil {
			return row{}, err
		}
		slices.Sort(waits)
		r.commands = after - before
		r.p50, r.p99, r.max = waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1]
		if n >= 0 {
			rows = append(rows, r)
		}
	}
	return row{
		loads: median(rows, func(r row) int { return r.loads }), commands: median(rows, func(r row) int { return r.commands }),
		failed: median(rows, func(r row) int { return r.failed }),
		p50:    median(rows, func(r row) time.Duration { return r.p50 }), p99: median(rows, func(r row) time.Duration { return r.p99 }),
		max: median(rows, func(r row) time.Duration { return r.max }),
	}, nil
}

func median[T int | time.Duration](rows []row, of func(row) T) T {
	var xs []T
	for _, r := range rows {
		xs = append(xs, of(r))
	}
	slices.Sort(xs)
	return xs[len(xs)/2]
}

// work is one of the herd's processes.
func work(config string) error {
	var h herd
	if err := json.Unmarshal([]byte(config), &h); err != nil {
		return err
	}
	var loads atomic.Int64
	load := func(ctx context.Context, key string) (string, error) {
		loads.Add(1)
		select {
		case <-time.After(h.Load):
			return key + "'s value", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	i := slices.IndexFunc(strategies, func(s strategy) bool { return s.name == h.Strategy })
	if i < 0 {
		return errors.New("no strategy " + h.Strategy)
	}
	rdb := redis.NewClient(&redis.Options{Addr: h.Redis, ContextTimeoutEnabled: true, PoolSize: 64})
	defer rdb.Close()
	get := strategies[i].open(rdb, load)

	out := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var r release
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			return err
		}
		loads.Store(0)
		res := result{Waits: make([]time.Duration, h.Callers)}
		var failed atomic.Int64
		gate := make(chan struct{})
		var wg sync.WaitGroup
		for i := range h.Callers {
			wg.Go(func() {
				<-gate
				start := time.Now()
				if v, err := get(context.Background(), r.Key); err != nil || v == "" {
					failed.Add(1)
				}
				res.Waits[i] = time.Since(start)
			})
		}
		time.Sleep(time.Until(r.At))
		close(gate)
		wg.Wait()
		res.Loads, res.Failed = int(loads.Load()), int(failed.Load())
		if err := out.Encode(res); err != nil {
			return err
		}
	}
	return nil
}
