package zklock_test

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/zklock"
)

// newLocker returns a Locker with its own session, as in another process.
func newLocker(tb testing.TB, servers ...string) *zklock.Locker {
	tb.Helper()
	l := zklock.New(servers...)
	tb.Cleanup(func() { l.Close() })
	return l
}

// A lifetime is a testing.TB for servers that outlive the test they begin in.
type lifetime struct {
	testing.TB
	ends []func()
}

func (l *lifetime) Cleanup(f func()) { l.ends = append(l.ends, f) }

func (l *lifetime) TempDir() string {
	dir, err := os.MkdirTemp("", "zklock")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var together struct {
	sync.Mutex // guards the fields below
	users      int
	server     *testserver.Server
	life       *lifetime
}

// shared makes the test parallel, and returns the ZooKeeper shared by all tests that neither stop
// it nor count its data. A test uses it from before it is parallel: the first test starts it, and
// it ends with the last.
func shared(t *testing.T) *testserver.Server {
	t.Helper()
	defer t.Parallel()
	together.Lock()
	defer together.Unlock()
	if together.users == 0 {
		together.life = &lifetime{TB: t}
		together.server = testserver.ZooKeeper(together.life)
	}
	together.users++
	t.Cleanup(func() {
		together.Lock()
		defer together.Unlock()
		if together.users--; together.users == 0 {
			for _, end := range slices.Backward(together.life.ends) {
				end()
			}
		}
	})
	return together.server
}

func newKey() string { return "zklock:" + adapter.Token() }

func watch(t *testing.T, l driver.Watcher, held *driver.HeldError) <-chan struct{} {
	t.Helper()
	freed, err := l.Watch(t.Context(), held)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	return freed
}

func lost(t *testing.T, lease driver.Lease) <-chan struct{} {
	t.Helper()
	n, ok := lease.(driver.LossNotifier)
	if !ok {
		t.Fatalf("a %T does not tell of its loss", lease)
	}
	return n.Lost()
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestConformance(t *testing.T) {
	server := shared(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return newLocker(tb, server.Addr) })
}
