package testserver

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// fatal is a test that records its failure.
type fatal struct {
	testing.TB
	said string
}

func (f *fatal) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestStart_EngineEnds sees a dead engine end the wait, and its output in the test's failure.
func TestStart_EngineEnds(t *testing.T) {
	t.Setenv("BELLWETHER_REDIS", "") // its own server
	began := time.Now()
	f := fatal{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() { Redis(&f, "--no-such-option", "1") })
	wg.Wait()
	if !strings.Contains(f.said, "redis-server, which was to listen at") || !strings.Contains(f.said, "no-such-option") {
		t.Errorf("it says: %s", f.said)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("it took %v", took)
	}
}

// TestFreeAddr_IsNobodyElses looks at the same port as another process would.
func TestFreeAddr_IsNobodyElses(t *testing.T) {
	addr := FreeAddr(t)
	for range 3 {
		ports.Add(-1)
		if again := FreeAddr(t); again == addr {
			t.Fatalf("%s was given twice", addr)
		}
	}
}

func TestSignal(t *testing.T) {
	s := Memcached(t).OwnOrSkip(t)
	for range 10 {
		s.Signal(syscall.SIGSTOP)
		if !s.threads(stopped) {
			t.Fatal("it has not stopped")
		}
		s.Signal(syscall.SIGCONT)
		s.await()
	}
}
