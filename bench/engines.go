package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// This file has the engines: the bench's own servers, and their command counts.

const (
	redisEngine     = "redis"
	memcachedEngine = "memcached"
	etcdEngine      = "etcd"
)

// engines are the running servers, by name.
type engines struct {
	tb      *life
	servers map[string]*testserver.Server
	rdb     *redis.Client // for Redis's statistics
}

// startEngines starts all engines. An engine of a variable such as BELLWETHER_REDIS counts all its clients.
func startEngines() (e *engines, err error) {
	e = &engines{tb: &life{}}
	// 1,000 keys in 8 processes exceed memcached's 1,024 connections: gomemcache opens one per request.
	err = e.tb.do(func() {
		e.servers = map[string]*testserver.Server{
			redisEngine:     testserver.Redis(e.tb),
			memcachedEngine: testserver.Memcached(e.tb, "-m", "512", "-c", "16384"),
			etcdEngine:      testserver.Etcd(e.tb),
		}
	})
	if err != nil {
		e.tb.end()
		return nil, err
	}
	e.rdb = redis.NewClient(&redis.Options{Addr: e.servers[redisEngine].Addr})
	return e, nil
}

func (e *engines) close() {
	e.rdb.Close()
	e.tb.end()
}

func (e *engines) addresses() addresses {
	a := addresses{}
	for name, s := range e.servers {
		a[name] = s.Addr
	}
	return a
}

// own reports whether all of these engines may be stopped.
func (e *engines) own(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !e.servers[name].Own() })
}

// kill ends these engines. restart starts them again; only etcd keeps its data.
func (e *engines) kill(names []string) {
	for _, name := range names {
		e.servers[name].Kill()
	}
}

func (e *engines) restart(names []string) error {
	return e.tb.do(func() {
		for _, name := range names {
			e.servers[name].Restart()
		}
	})
}

// commands returns these engines' number of commands, also in scripts, without set-up and counting.
func (e *engines) commands(names []string) (int, error) {
	total := 0
	for _, name := range names {
		n, err := map[string]func() (int, error){
			redisEngine: e.redisCommands, memcachedEngine: e.memcachedCommands, etcdEngine: e.etcdMessages,
		}[name]()
		if err != nil {
			return 0, fmt.Errorf("counting the commands of %s: %w", name, err)
		}
		total += n
	}
	return total, nil
}

func (e *engines) redisCommands() (int, error) {
	counts, err := testserver.Commands(context.Background(), e.rdb)
	if err != nil {
		return 0, err
	}
	total, _ := counts.Since(nil)
	return total, nil
}

// memcachedCommands counts each key of a multi-key get, as memcached does.
func (e *engines) memcachedCommands() (int, error) {
	c, err := net.DialTimeout("tcp", e.servers[memcachedEngine].Addr, time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte("stats\r\n")); err != nil {
		return 0, err
	}
	total := 0
	for in := bufio.NewScanner(c); in.Scan(); {
		f := strings.Fields(in.Text())
		if len(f) == 1 && f[0] == "END" {
			return total, nil
		}
		if len(f) != 3 {
			continue
		}
		switch f[1] {
		case "cmd_get", "cmd_set", "cmd_touch", "cmd_meta", "delete_hits", "delete_misses",
			"incr_hits", "incr_misses", "decr_hits", "decr_misses":
			n, err := strconv.Atoi(f[2])
			if err != nil {
				return 0, err
			}
			total += n
		}
	}
	return 0, errors.New("the statistics have no end")
}

// etcdMessages counts etcd's received messages: requests, and begins and ends of watches.
func (e *engines) etcdMessages() (int, error) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + e.servers[etcdEngine].Addr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	total := 0.0
	in := bufio.NewScanner(resp.Body)
	for in.Buffer(nil, 1<<20); in.Scan(); {
		if strings.HasPrefix(in.Text(), "grpc_server_msg_received_total{") {
			n, err := strconv.ParseFloat(in.Text()[strings.LastIndexByte(in.Text(), ' ')+1:], 64)
			if err != nil {
				return 0, err
			}
			total += n
		}
	}
	return int(total), in.Err()
}

// A life is the part of a testing.TB that testserver uses: its servers end with it.
type life struct {
	testing.TB // nil: all other methods are unused
	ends       []func()
}

// fatal is the value with which Fatal panics. do returns it.
type fatal struct{ error }

// do calls f, which may use the life as its testing.TB.
func (l *life) do(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			why, ok := p.(fatal)
			if !ok {
				panic(p)
			}
			err = why.error
		}
	}()
	f()
	return nil
}

func (l *life) end() {
	for _, f := range slices.Backward(l.ends) {
		f()
	}
	l.ends = nil
}

func (l *life) Helper()                           {}
func (l *life) Cleanup(f func())                  { l.ends = append(l.ends, f) }
func (l *life) Fatal(args ...any)                 { panic(fatal{errors.New(fmt.Sprint(args...))}) }
func (l *life) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }

func (l *life) TempDir() string {
	dir, err := os.MkdirTemp("", "bellwether-bench-*")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
