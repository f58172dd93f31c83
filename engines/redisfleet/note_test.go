package redisfleet

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// This file compares the note of a lease beside the entry with the lease itself.

// TestNote_EndsWithTheLease ends leases in each way: the next caller is elected at once.
func TestNote_EndsWithTheLease(t *testing.T) {
	srv := testserver.Redis(t)
	rdb := dial(t, srv.Addr)
	a, b := openTwo(t, srv.Addr)
	rebuild(t, a, "so that the server's clock is known", time.Hour)
	rebuild(t, b, "to both", time.Hour)
	lost := func(t *testing.T, key string) {
		t.Helper()
		must(t, rdb.Del(t.Context(), redislease.Key(a.Prefix, key)).Err())
	}
	for what, end := range map[string]func(t *testing.T, key string, won driver.Election) error{
		"released": func(t *testing.T, _ string, won driver.Election) error { return won.Lease.Release(t.Context()) },
		"committed and released": func(t *testing.T, key string, won driver.Election) error {
			return a.CommitAndRelease(t.Context(), key, driver.Entry{Epoch: won.Epoch}, won.Lease)
		},
		"committed before": func(t *testing.T, key string, won driver.Election) error {
			e := driver.Entry{Epoch: won.Epoch}
			return errors.Join(a.Commit(t.Context(), key, e), a.CommitAndRelease(t.Context(), key, e, won.Lease))
		},
		"given up by who has left": func(t *testing.T, _ string, won driver.Election) error {
			redislease.Of(won.Lease).Undo(t.Context())
			return nil
		},
		"found lost by a renewal": func(t *testing.T, key string, won driver.Election) error {
			lost(t, key)
			if err := won.Lease.Renew(t.Context(), time.Minute); !errors.Is(err, driver.ErrLeaseLost) {
				return fmt.Errorf("Renew: %v, want ErrLeaseLost", err)
			}
			return nil
		},
		"evicted with the entry": func(t *testing.T, key string, _ driver.Election) error {
			lost(t, key)
			return rdb.Del(t.Context(), redisentry.Name(a.Prefix, key)).Err()
		},
	} {
		for _, stale := range []bool{false, true} {
			key := fmt.Sprint(what, stale)
			t.Run(key, func(t *testing.T) {
				if stale {
					won := elect(t, a, key, 0)
					e := driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: won.Epoch, StaleIfError: time.Hour}
					commit(t, a, key, e, won)
				}
				won := elect(t, a, key, 0)
				if got := elect(t, b, key, 0); got.Held == nil || got.Held.Until.Before(time.Now().Add(50*time.Second)) {
					t.Fatalf("Elect beside a holder of a minute: %+v", got.Held)
				}
				if err := end(t, key, won); err != nil {
					t.Fatal(err)
				}
				if got := elect(t, b, key, 0); got.Lease == nil || got.Epoch <= won.Epoch {
					t.Errorf("Elect afterwards: %+v, want a lease and an epoch above %d", got, won.Epoch)
				}
			})
		}
	}
}

// TestNote_OfAnother has a late holder and an invalidation: the note stays, at a cost of two commands.
func TestNote_OfAnother(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	admin := dial(t, srv.Addr)
	a, b := open(t, srv.Addr), open(t, srv.Addr)
	rebuild(t, a, "warm", time.Hour)
	rebuild(t, b, "warm too", time.Hour)
	held := func(after string) {
		t.Helper()
		total, each := commands(t, admin, func() {
			if got := elect(t, b, "k", 1<<53); got.Held == nil {
				t.Fatalf("Elect after %s: %+v, want the holder", after, got)
			}
		})
		if total != 2 {
			t.Errorf("Elect after %s costs %d commands, want 2: %s", after, total, each)
		}
	}
	late := elect(t, a, "k", 0)
	leasetest.Release(t, late.Lease)
	elect(t, a, "k", 0)
	held("an election")
	commit(t, a, "k", value(late.Epoch), late)
	held("the commit of a former holder")
	leasetest.MustBeLost(t, "Release of a former holder", late.Lease.Release(t.Context()))
	held("the release of a former holder")
	for range 2 { // with an entry, and without
		if _, _, err := b.Claim(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		held("a claim")
		must(t, b.Invalidate(t.Context(), "k"))
		held("an invalidation")
	}
}

// TestElect_AheadOfTheServer stands by a clock ahead of the server's: a fresh entry is the answer.
func TestElect_AheadOfTheServer(t *testing.T) {
	srv := testserver.Redis(t)
	a, b := openTwo(t, srv.Addr)
	e := rebuild(t, a, "k", time.Minute)
	now, err := dial(t, srv.Addr).Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	ahead := redisentry.Sighting{Server: time.Duration(now.Add(time.Hour).UnixNano()), Sent: time.Now()}
	b.servers.ClockOf("").See(ahead)
	if got := elect(t, b, "k", 0); got.Entry.Epoch != e.Epoch || got.Lease != nil || got.Held != nil {
		t.Errorf("Elect: %+v, want the entry alone", got)
	}
}

// TestElect_ServersClockSetBack stands for a key with an entry from the server's future. Further ahead than it was
// fresh, the entry is no answer.
func TestElect_ServersClockSetBack(t *testing.T) {
	srv := testserver.Redis(t)
	rdb := dial(t, srv.Addr)
	a, b := openTwo(t, srv.Addr)
	rebuild(t, b, "so that the server's clock is known", time.Hour)
	for i, eng := range []*Engine{a, b} {
		for ahead, answers := range map[time.Duration]bool{50 * time.Second: true, time.Hour: false} {
			key := fmt.Sprint(i, ahead)
			rebuild(t, b, key, time.Minute)
			name := redisentry.Name(a.Prefix, key)
			kept := rdb.Get(t.Context(), name).Val()
			for at := redisentry.BareLen; at < redisentry.HeadLen; at += redisentry.NumberLen {
				us, err := strconv.ParseInt(kept[at:at+redisentry.NumberLen], 10, 64)
				must(t, err)
				kept = kept[:at] + fmt.Sprintf("%016d", us+ahead.Microseconds()) + kept[at+redisentry.NumberLen:]
			}
			must(t, rdb.Set(t.Context(), name, kept, 0).Err())
			if got := elect(t, eng, key, 0); (got.Lease == nil) != answers {
				t.Errorf("Elect beside an entry %v in the future: %+v, want the entry alone: %t", ahead, got, answers)
			}
		}
	}
}

// TestNote_OutOfMemory ends a lease in a Redis without memory: the note ends too. The next caller is elected as soon as
// there is memory.
func TestNote_OutOfMemory(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb := dial(t, srv.Addr)
	a, b := openTwo(t, srv.Addr)
	for what, end := range map[string]func(t *testing.T, key string, won driver.Election){
		"released": func(t *testing.T, _ string, won driver.Election) { leasetest.Release(t, won.Lease) },
		"not committed": func(t *testing.T, key string, won driver.Election) {
			if err := a.CommitAndRelease(t.Context(), key, value(won.Epoch), won.Lease); err == nil {
				t.Error("a commit without memory succeeds")
			}
			leasetest.Release(t, won.Lease)
		},
		"evicted": func(t *testing.T, key string, won driver.Election) {
			must(t, rdb.Del(t.Context(), redislease.Key(a.Prefix, key)).Err())
			leasetest.MustBeLost(t, "Release of an evicted lease", won.Lease.Release(t.Context()))
		},
	} {
		t.Run(what, func(t *testing.T) {
			won := elect(t, a, what, 0)
			must(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
			end(t, what, won)
			must(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
			if got := elect(t, b, what, 0); got.Lease == nil {
				t.Errorf("Elect afterwards: %+v, want a lease", got.Held)
			}
		})
	}
}

// TestNote_Foreign puts foreign texts in the note's place: the key stays free.
func TestNote_Foreign(t *testing.T) {
	srv := testserver.Redis(t)
	rdb := dial(t, srv.Addr)
	a, b := openTwo(t, srv.Addr)
	rebuild(t, b, "so that the server's clock is known", time.Hour)
	nines := strings.Repeat("9", 22)
	for i, note := range []string{"", "x", nines[:16] + nines, strings.Repeat("x", 38), "             nan" + nines, "0000000000000001" + nines, "              -1" + nines} {
		for j, eng := range []*Engine{a, b} {
			key := fmt.Sprint(i, j)
			must(t, rdb.Set(t.Context(), redisentry.Name(a.Prefix, key), strings.Repeat("0", 32)+note, 0).Err())
			if got := elect(t, eng, key, 0); got.Lease == nil {
				t.Errorf("Elect beside the note %q: %+v, want a lease", note, got.Held)
			}
		}
	}
}
