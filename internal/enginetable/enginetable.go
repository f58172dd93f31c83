// Package enginetable compares docs/engines.md's table of requests with each locker's real requests.
package enginetable

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
)

const document = "docs/engines.md"

var columns = []string{"acquire", "refused", "refused again", "renew", "release", "acquire what was seen held", "take over", "renew what is lost", "ten watches"}

const (
	// long is a lease that does not end during a test; short is a lease left to expire.
	long, short = time.Minute, 200 * time.Millisecond

	// quiet is the pause without requests after which a step counts as finished.
	quiet = 50 * time.Millisecond
)

// A Row is one way to use a locker.
type Row struct {
	// Name is the first cell of the row.
	Name string

	// New returns a Locker as in another process.
	New func(testing.TB) driver.Locker

	// Count returns the number of requests by all Lockers of New so far.
	Count func() int

	// Silent takes the lease on key for ttl and falls silent, like a dead process. Nil: a Locker
	// with an unreleased lease is just as silent.
	Silent func(key string, ttl time.Duration)
}

// Check measures the row, and fails if the document has other numbers.
func Check(t *testing.T, r Row) {
	t.Helper()
	costs, measured := r.measure(t), make([]string, len(columns))
	for i, column := range columns {
		measured[i] = "-" // the locker has no such path
		if n, ok := costs[column]; ok {
			measured[i] = strconv.Itoa(n)
		}
	}
	if want := cells(t, r.Name); !slices.Equal(measured, want) {
		t.Errorf("%s says otherwise than is measured:\nsays     | %s | %s |\nmeasured | %s | %s |", document,
			r.Name, strings.Join(want, " | "), r.Name, strings.Join(measured, " | "))
	}
}

func cells(t *testing.T, row string) []string {
	t.Helper()
	header := "| locker | " + strings.Join(columns, " | ") + " |"
	inTable := false
	for line := range strings.Lines(read(t)) {
		line = strings.TrimSpace(line)
		switch {
		case line == header:
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable:
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			if cells[0] == row {
				return cells[1:]
			}
		}
	}
	t.Errorf("%s has no row %q in a table with the header\n%s", document, row, header)
	return nil
}

func read(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, document))
		if err == nil {
			return string(b)
		}
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			t.Fatalf("no %s above the test: %v", document, err)
		}
	}
}

// measure returns the median cost of each path in three runs. A Locker may now and then ask for all its
// leases (etcd's sweepers), and on a busy machine an engine may drop a lease early (memcached).
func (r Row) measure(t *testing.T) map[string]int {
	t.Helper()
	a, b := r.New(t), r.New(t)
	watcher, watches := b.(driver.Watcher)
	for _, l := range []driver.Locker{a, b} { // opens connections, loads scripts, starts sessions
		lease := leasetest.Acquire(t, l, newKey(), long)
		must(t, "Renew", lease.Renew(t.Context(), long))
		must(t, "Release", lease.Release(t.Context()))
	}
	if watches {
		key := newKey()
		lease := leasetest.Acquire(t, a, key, long)
		for start := time.Now(); ; time.Sleep(quiet) {
			if _, err := watcher.Watch(t.Context(), leasetest.MustBeHeld(t, b, key)); err == nil {
				break
			} else if time.Since(start) > 5*time.Second {
				t.Fatalf("no push after %v: %v", time.Since(start), err)
			}
		}
		must(t, "Release", lease.Release(t.Context()))
	}

	costs := map[string][]int{}
	// cost counts the requests of do. A do that returns false measured another path and does not count.
	cost := func(column string, do func() bool) bool {
		t.Helper()
		r.settle()
		before := r.Count()
		if !do() {
			return false
		}
		r.settle()
		costs[column] = append(costs[column], r.Count()-before)
		return true
	}
	for range 3 {
		var lease driver.Lease
		key := newKey()
		taken := func(l driver.Locker) func() bool {
			return func() bool { lease = leasetest.Acquire(t, l, key, long); return true }
		}
		isRefused := func() bool { leasetest.MustBeHeld(t, b, key); return true }
		cost("acquire", taken(a))
		cost("refused", isRefused)
		cost("refused again", isRefused)
		cost("renew", func() bool { must(t, "Renew", lease.Renew(t.Context(), long)); return true })
		cost("release", func() bool { must(t, "Release", lease.Release(t.Context())); return true })
		cost("acquire what was seen held", taken(b))
		must(t, "Release", lease.Release(t.Context()))

		key = newKey()
		if r.Silent != nil {
			r.Silent(key, short)
		} else {
			leasetest.Acquire(t, r.New(t), key, short)
		}
		time.Sleep(time.Until(leasetest.MustBeHeld(t, b, key).Until))
		for !cost("take over", func() bool { return !isHeld(t, b, key) }) { // a moment too early
		}

		key = newKey()
		lease = leasetest.Acquire(t, a, key, short)
		for time.Sleep(short); isHeld(t, b, key); time.Sleep(quiet) {
		}
		cost("renew what is lost", func() bool { leasetest.MustBeLost(t, "Renew", lease.Renew(t.Context(), long)); return true })

		if watches {
			key = newKey()
			taken(a)()
			held := leasetest.MustBeHeld(t, b, key)
			cost("ten watches", func() bool {
				for range 10 {
					if _, err := watcher.Watch(t.Context(), held); err != nil {
						t.Fatalf("Watch: %v", err)
					}
				}
				return true
			})
			must(t, "Release", lease.Release(t.Context()))
		}
	}
	usual := map[string]int{}
	for column, n := range costs {
		slices.Sort(n)
		usual[column] = n[len(n)/2]
	}
	return usual
}

func (r Row) settle() {
	for start, n := time.Now(), -1; n != r.Count() && time.Since(start) < 5*time.Second; time.Sleep(quiet) {
		n = r.Count()
	}
}

func newKey() string { return "enginetable:" + adapter.Token() }

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// isHeld reports whether another holder has the lease. It takes a free lease.
func isHeld(t *testing.T, l driver.Locker, key string) bool {
	t.Helper()
	_, err := l.TryAcquire(t.Context(), key, long)
	if err != nil && !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("TryAcquire: %v", err)
	}
	return err != nil
}
