package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// This file is the origin: the load, and the log of all processes' loads. The log is a file with
// one write for each record, so it has the loads of killed processes.

var errOrigin = errors.New("the origin fails")

type behaviour struct {
	Load     time.Duration // the duration of a load
	Fails    bool
	From, To time.Time // if not zero, it fails from From to To
	Origin   string    // the URL of an origin with few places, which takes the time; empty: the load sleeps
}

func (b behaviour) fails(now time.Time) bool {
	return b.Fails || !b.From.IsZero() && now.After(b.From) && now.Before(b.To)
}

// An origin is a process's part of the origin.
type origin struct {
	log  *os.File
	now  atomic.Pointer[behaviour]
	next atomic.Int64
	http *http.Client
}

// valueOf is the origin's value of a key: a hundred bytes after the key.
func valueOf(key string) string { return key + " = " + strings.Repeat("v", 100) }

func (o *origin) load(ctx context.Context, key string) (string, error) {
	now, n := o.now.Load(), o.next.Add(1)
	start := time.Now()
	o.record('b', n, key)
	defer func() { o.record('e', n, key) }()
	if now.Origin != "" {
		req, err := http.NewRequestWithContext(ctx, "GET", now.Origin, nil)
		if err != nil {
			return "", err
		}
		resp, err := o.http.Do(req)
		if err != nil {
			return "", err
		}
		resp.Body.Close()
	} else {
		select {
		case <-time.After(now.Load):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	if now.fails(start) {
		return "", errOrigin
	}
	return valueOf(key), nil
}

func (o *origin) record(kind byte, n int64, key string) {
	// A write of less than a page to a file open for appending stays in one piece.
	fmt.Fprintf(o.log, "%c %d %d %d %s\n", kind, os.Getpid(), n, time.Now().UnixNano(), key)
}

// An event is a record of the log.
type event struct {
	begin bool
	load  string // the load: process and number
	pid   int
	at    time.Time
	key   string
}

// readLog returns the loads of keys with the prefix, in the order of time.
func readLog(path, prefix string) ([]event, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var events []event
	in := bufio.NewReader(f)
	for {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		var kind byte
		var pid, n int
		var nanos int64
		if _, err := fmt.Sscanf(line, "%c %d %d %d", &kind, &pid, &n, &nanos); err != nil {
			return nil, fmt.Errorf("the origin's log: %q: %w", line, err)
		}
		key := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 5)[4]
		if strings.HasPrefix(key, prefix) {
			events = append(events, event{kind == 'b', fmt.Sprint(pid, " ", n), pid, time.Unix(0, nanos), key})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return a.at.Compare(b.at) })
	return events, nil
}

// loadsIn counts loads, loads beside another of their key, keys, and the most at once. A kill ends its loads.
func loadsIn(events []event, killed map[int]time.Time) (loads, duplicates, keys, most int) {
	for pid, at := range killed {
		running := map[string]event{}
		for _, e := range events {
			if e.pid != pid {
				continue
			}
			if running[e.load] = e; !e.begin {
				delete(running, e.load)
			}
		}
		for _, e := range running {
			events = append(events, event{false, e.load, pid, at, e.key})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(btoi(a.begin), btoi(b.begin)))
	})
	running, all := map[string]int{}, 0
	for _, e := range events {
		if !e.begin {
			running[e.key]--
			all--
			continue
		}
		loads++
		if running[e.key] > 0 {
			duplicates++
		}
		running[e.key]++
		all++
		most = max(most, all)
	}
	return loads, duplicates, len(running), most
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A narrowOrigin has few places, as a database has connections. Other loads wait for a place.
func narrowOrigin(places int, load time.Duration) http.Handler {
	free := make(chan struct{}, places)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case free <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		defer func() { <-free }()
		select {
		case <-time.After(load):
		case <-r.Context().Done():
		}
	})
}
