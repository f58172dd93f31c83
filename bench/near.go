package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/bellwether-go/bellwether"
)

// This file is `bench near`: many values' cost in memory and garbage collection, beside otter alone.

const nearPayload = 100 // bytes of a value

func runNear(args []string) error {
	flags := newFlags("near")
	keys := flags.Int("keys", 1_000_000, "number of keys")
	if err := flags.parse(args); err != nil {
		return err
	}
	if *keys < 1 {
		return errors.New("near: there have to be keys")
	}
	key := func(i int) string { return fmt.Sprintf("user:%010d", i) }
	value := func(i int) []byte { return append(make([]byte, 0, nearPayload), strconv.Itoa(i)...) }
	payload := len(key(0)) + nearPayload

	newRecord("near", nil).where(os.Stdout)
	fmt.Printf("%d keys of %d bytes with values of %d\n", *keys, len(key(0)), nearPayload)
	fmt.Printf("%-24s %18s %14s %14s %14s\n", "", "bytes/entry over", "GC total ms", "GC pause max", "counted")
	show := func(name string, fill func() (counted uint64, close func())) {
		before := heap()
		counted, close := fill()
		over := float64(heap()-before)/float64(*keys) - float64(payload)
		took, pause := collect()
		fmt.Printf("%-24s %18.0f %14.1f %14v %14d\n", name, over, took.Seconds()*1000, pause, counted/uint64(*keys))
		close()
	}
	show("payload alone (a map)", func() (uint64, func()) {
		m := make(map[string][]byte)
		for i := range *keys {
			m[key(i)] = value(i)
		}
		return 0, func() { runtime.KeepAlive(m) }
	})
	show("otter", func() (uint64, func()) {
		o := otter.Must(&otter.Options[string, []byte]{
			MaximumWeight:    1 << 40,
			Weigher:          func(k string, v []byte) uint32 { return uint32(len(k) + cap(v)) },
			ExpiryCalculator: otter.ExpiryWriting[string, []byte](time.Hour),
		})
		for i := range *keys {
			o.Set(key(i), value(i))
		}
		o.CleanUp()
		return o.WeightedSize(), func() { o.StopAllGoroutines() }
	})
	show("bellwether", func() (uint64, func()) {
		c := bellwether.New(func(_ context.Context, key string) ([]byte, error) {
			i, err := strconv.Atoi(key[len("user:"):])
			return value(i), err
		}, bellwether.Options{TTL: time.Hour, Limits: bellwether.Limits{NearBytes: 1 << 40}})
		for i := range *keys {
			c.Get(context.Background(), key(i))
		}
		return c.Stats().NearBytes, func() { c.Close() }
	})
	return nil
}

// heap is the memory in use after garbage collection.
func heap() int64 {
	for range 3 {
		runtime.GC()
		time.Sleep(50 * time.Millisecond) // the caches' work in the background
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// collect returns the median duration of a garbage collection, and the longest pause.
func collect() (took, pause time.Duration) {
	const times = 7
	var all []time.Duration
	for range times {
		began := time.Now()
		runtime.GC()
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for i := range uint32(times) {
		pause = max(pause, time.Duration(m.PauseNs[(m.NumGC-1-i)%uint32(len(m.PauseNs))]))
	}
	return all[times/2], pause
}
