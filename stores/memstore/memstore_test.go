package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ driver.Elector = (*Store)(nil)
	_ driver.Toucher = (*Store)(nil)
	_ driver.Watcher = (*Store)(nil)
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Instance {
		s := New()
		return storetest.Instance{
			Notifies: true,
			Batches:  true,
			Touches:  true,
			Elects:   true,
			Open:     func(testing.TB) driver.Store { return s },
			Evict: func(_ testing.TB, key string) {
				s.mu.Lock()
				defer s.mu.Unlock()
				if r := s.records[key]; r != nil {
					s.drop(r)
				}
			},
			TooLarge: s.MaxBytes,
		}
	})
}

func TestLocker(t *testing.T) {
	s := New()
	lockertest.Run(t, func(testing.TB) driver.Locker { return s })
}

func TestLocker_LeavesNothing(t *testing.T) {
	s := New()
	newLocker := func(testing.TB) driver.Locker { return s }
	lockertest.LeavesNothing(t, newLocker, func() map[string]int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return map[string]int{"records": len(s.records), "bytes": s.bytes}
	})
}

func value(epoch uint64, n int, ttl time.Duration) driver.Entry {
	return driver.Entry{Kind: driver.KindValue, Value: make([]byte, n), Epoch: epoch, TTL: ttl}
}

func put(tb testing.TB, s *Store, key string, n int, ttl time.Duration) {
	tb.Helper()
	_, epoch, err := s.Claim(tb.Context(), key)
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Commit(tb.Context(), key, value(epoch, n, ttl)); err != nil {
		tb.Fatal(err)
	}
}

// check compares the store's sums with its records.
func check(tb testing.TB, s *Store) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := 0
	for key, r := range s.records {
		sum += r.size()
		if r.key != key || r.element.Value != r || s.due[r.index] != r || r.floor > r.counter {
			tb.Fatalf("record of %q: %+v is not where it should be", key, r)
		}
	}
	if sum != s.bytes || sum > s.MaxBytes || len(s.records) != s.used.Len() || len(s.records) != len(s.due) {
		tb.Fatalf("%d records of %d bytes; booked: %d bytes of at most %d, %d used, %d due", len(s.records), sum, s.bytes, s.MaxBytes, s.used.Len(), len(s.due))
	}
}

func TestStore_StaysWithinMaxBytes(t *testing.T) {
	s := New()
	s.MaxBytes = 100 << 10
	put(t, s, "hot", 1<<10, time.Hour)
	for i := range 1000 {
		put(t, s, fmt.Sprint("key", i), i%2000, time.Hour)
		check(t, s)
		if _, _, err := s.Claim(t.Context(), fmt.Sprint("claimed only", i)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), "hot"); err != nil {
			t.Fatalf("after %d others, the entry that is read all the time: %v", i, err)
		}
		check(t, s)
	}
	if _, err := s.Get(t.Context(), "key0"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("the least recently used entry: err = %v, want ErrNotFound", err)
	}
	if n := len(s.records); n < 30 {
		t.Errorf("%d records are left, want the memory used", n)
	}
}

func TestStore_NegativeMaxBytes(t *testing.T) {
	s := New()
	s.MaxBytes = -1
	_, epoch, err := s.Claim(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	e := driver.Entry{Kind: driver.KindValue, Value: []byte("v"), TTL: time.Minute, Epoch: epoch}
	if err := s.Commit(t.Context(), "k", e); !errors.Is(err, driver.ErrTooLarge) {
		t.Errorf("Commit: %v, want ErrTooLarge", err)
	}
}

func TestStore_TooLargeForItsMemory(t *testing.T) {
	s := New()
	s.MaxBytes = 10 << 10
	put(t, s, "other", 1<<10, time.Hour)
	_, epoch, _ := s.Claim(t.Context(), "k")
	if err := s.Commit(t.Context(), "k", value(epoch, s.MaxBytes, time.Hour)); !errors.Is(err, driver.ErrTooLarge) {
		t.Fatalf("err = %v, want ErrTooLarge", err)
	}
	if _, err := s.Get(t.Context(), "other"); err != nil {
		t.Errorf("another entry made room for one that did not fit: %v", err)
	}
	// A key that is too large leaves nothing behind.
	long := string(make([]byte, s.MaxBytes))
	if _, _, err := s.Claim(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	check(t, s)
}

func TestStore_ExpiryIsExactAndLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		for i := range 100 {
			put(t, s, fmt.Sprint(i), 1<<10, time.Duration(i+1)*10*time.Millisecond)
		}
		time.Sleep(500*time.Millisecond - 1)
		if e, err := s.Get(t.Context(), "49"); err != nil || e.Life() != 1 || e.Age != 500*time.Millisecond-1 {
			t.Errorf("a nanosecond before its end: Life = %v, Age = %v, err = %v", e.Life(), e.Age, err)
		}
		time.Sleep(time.Nanosecond)
		if _, err := s.Get(t.Context(), "49"); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("at its end: err = %v, want ErrNotFound", err)
		}
		check(t, s)
		if s.bytes > 100*(overhead+2)+50*(1<<10+128) {
			t.Errorf("%d bytes are held after half of the entries have expired", s.bytes)
		}
		time.Sleep(retention + time.Second)
		s.Invalidate(t.Context(), "another key")
		check(t, s)
		if len(s.records) != 0 {
			t.Errorf("%d records are left after all have expired", len(s.records))
		}
	})
}

func TestStore_RecordOutlivesTheEntryForRunningRebuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		put(t, s, "k", 1, time.Second)
		_, epoch, _ := s.Claim(t.Context(), "k")
		time.Sleep(retention - 1)
		if err := s.Commit(t.Context(), "k", value(epoch, 1, 10*retention)); err != nil {
			t.Fatalf("a rebuild that took almost the retention: %v", err)
		}
		time.Sleep(2 * retention)
		if _, err := s.Get(t.Context(), "k"); err != nil {
			t.Fatalf("an entry that lives longer than the retention: %v", err)
		}
		_, epoch, _ = s.Claim(t.Context(), "k")
		time.Sleep(5 * retention)
		if err := s.Commit(t.Context(), "k", value(epoch, 1, time.Hour)); err != nil {
			t.Fatalf("a claim whose record is kept for its entry: %v", err)
		}
	})
}

func TestStore_CommitCopies(t *testing.T) {
	s := New()
	_, epoch, _ := s.Claim(t.Context(), "k")
	e := value(epoch, 3, time.Hour)
	if err := s.Commit(t.Context(), "k", e); err != nil {
		t.Fatal(err)
	}
	copy(e.Value, "xyz")
	if got, err := s.Get(t.Context(), "k"); err != nil || !bytes.Equal(got.Value, make([]byte, 3)) {
		t.Errorf("Get = %q, %v, want what was committed", got.Value, err)
	}
}

func TestStore_BooksUnderConcurrentUse(t *testing.T) {
	s := New()
	s.MaxBytes = 30 << 10
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			ctx := context.Background()
			for range 2000 {
				key := fmt.Sprint(rng.IntN(60))
				switch rng.IntN(6) {
				case 0:
					s.Invalidate(ctx, key)
				case 1, 2:
					s.Get(ctx, key)
				default:
					_, epoch, _ := s.Claim(ctx, key)
					s.Commit(ctx, key, value(epoch, rng.IntN(2<<10), time.Duration(rng.IntN(1e6))))
				}
			}
		})
	}
	wg.Wait()
	check(t, s)
}

// Notices for a stalled listener take no memory outside MaxBytes.
func TestNotify_StalledListenerKeepsNothing(t *testing.T) {
	s := New()
	s.MaxBytes = 4 << 20
	ctx, cancel := context.WithCancel(t.Context())
	stalled, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		s.Notify(ctx, func(driver.Notice) { <-stalled })
	}()
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range 100 {
		put(t, s, fmt.Sprint(i), 1<<20, time.Hour)
	}
	if grown := heap() - before; grown > 20<<20 {
		t.Errorf("%d MiB are kept by a store of at most 4", grown>>20)
	}
	close(stalled)
	cancel()
	<-ended
	if n := len(s.listeners); n != 0 {
		t.Errorf("%d listeners after the end of Notify", n)
	}
}
