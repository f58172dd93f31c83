// Package testserver starts real engines for tests, on free ports of 127.0.0.1. They are ended by
// process id, even if the test binary is killed.
package testserver

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A Server is a running engine at the host:port Addr.
type Server struct {
	Addr string

	tb       testing.TB
	protocol protocol                // for a Meter before it
	ready    func(addr string) error // polled by await
	args     []string                // its command, nil if not started by the test
	log      string                  // the file of its output since its last start
	pid      int                     // of the engine itself, 0 while it is down
	stdin    io.Closer
	wait     chan struct{} // closed when the wrapper around the engine has ended
}

// Redis returns a redis-server, which ends with the test, or the server in BELLWETHER_REDIS.
func Redis(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return startWhen(connects, resp, tb, "BELLWETHER_REDIS", "redis-server", "redis-server", func(port string) []string {
		return append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", tb.TempDir()}, args...)
	})
}

// Memcached returns a memcached, which ends with the test, or the server in BELLWETHER_MEMCACHED.
func Memcached(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return startWhen(connects, memcacheText, tb, "BELLWETHER_MEMCACHED", "memcached", "memcached", func(port string) []string {
		return append([]string{"-l", "127.0.0.1", "-p", port, "-U", "0", "-u", "nobody", "-m", "64"}, args...)
	})
}

func startWhen(ready func(addr string) error, protocol protocol, tb testing.TB, env, program, pkg string, args func(port string) []string) *Server {
	tb.Helper()
	s := &Server{tb: tb, protocol: protocol, ready: ready}
	if s.Addr = os.Getenv(env); s.Addr != "" {
		s.await()
		return s
	}
	path, err := exec.LookPath(program)
	if err != nil {
		tb.Fatalf("%s is not installed: run 'make deps' (or 'apt-get install %s'), or set %s=host:port to use a running one", program, pkg, env)
	}
	s.Addr = FreeAddr(tb)
	_, port, _ := net.SplitHostPort(s.Addr)
	s.own(append([]string{path}, args(port)...))
	return s
}

func (s *Server) own(command []string) {
	s.tb.Helper()
	s.args, s.log = command, filepath.Join(s.tb.TempDir(), "log")
	s.tb.Cleanup(s.Kill)
	s.Start()
}

// ports counts FreeAddr's tries. Each process begins elsewhere, as packages are tested concurrently.
var ports atomic.Int64

func init() { ports.Store(int64(os.Getpid()) * 251) }

// FreeAddr returns an address of 127.0.0.1 without a listener, reserved until the test's end. Its port is
// below Linux's automatic ports: else another test's client could get it while the server is not up.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	const lowest, highest = 12_000, 32_000
	var err error
	for range 1000 {
		port := strconv.FormatInt(lowest+ports.Add(1)%(highest-lowest), 10)
		// Until the server listens, and while it is down, this name shows other processes that the port is
		// taken: it is in no file system, and goes with the process.
		var taken, l net.Listener
		if taken, err = net.Listen("unix", "@bellwether-test-port-"+port); err != nil {
			continue
		}
		if l, err = net.Listen("tcp", "127.0.0.1:"+port); err != nil {
			taken.Close()
			continue
		}
		l.Close()
		tb.Cleanup(func() { taken.Close() })
		return l.Addr().String()
	}
	tb.Fatal(err)
	return ""
}

// Own reports whether the test started the server, and may stop, kill and restart it.
func (s *Server) Own() bool { return s.args != nil }

// MustOwn returns s, and fails the test if it did not start s.
func (s *Server) MustOwn(tb testing.TB) *Server {
	tb.Helper()
	if !s.Own() {
		tb.Fatal(s.foreign())
	}
	return s
}

// OwnOrSkip returns s, and skips the test if it did not start s.
func (s *Server) OwnOrSkip(tb testing.TB) *Server {
	tb.Helper()
	if !s.Own() {
		tb.Skip(s.foreign())
	}
	return s
}

func (s *Server) foreign() string {
	return "this test stops its engine, or counts what it does, and needs one of its own: unset the BELLWETHER_ variable that names " + s.Addr
}

// ReadyWhen makes every start of the engine also wait until ready returns nil. It calls ready at
// once; ready may itself set up the engine.
func (s *Server) ReadyWhen(ready func(addr string) error) {
	s.tb.Helper()
	before := s.ready
	s.ready = func(addr string) error {
		if err := before(addr); err != nil {
			return err
		}
		return ready(addr)
	}
	s.await()
}

// Start starts the engine at the same address as before, empty unless the engine keeps its data.
func (s *Server) Start() {
	s.tb.Helper()
	// The shell outlives neither the test nor the engine: it waits for the end of its input, a pipe
	// that closes with this process, however the process dies.
	const wrapper = `"$@" >"$0" 2>&1 & echo $!; read _; kill -9 $! 2>/dev/null; wait`
	cmd := exec.Command("sh", append([]string{"-c", wrapper, s.log}, s.args...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		s.tb.Fatalf("starting %s: %v", s.args[0], err)
	}
	if s.pid, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		s.tb.Fatal(err)
	}
	s.stdin, s.wait = stdin, make(chan struct{})
	go func(done chan struct{}) {
		cmd.Wait()
		close(done)
	}(s.wait)
	s.await()
}

// Kill ends the engine with SIGKILL, and returns when it is gone. On a dead server it does nothing.
func (s *Server) Kill() {
	if s.pid == 0 {
		return
	}
	syscall.Kill(s.pid, syscall.SIGKILL)
	s.stdin.Close()
	<-s.wait
	s.pid = 0
}

// Restart is Kill and Start.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.Start()
}

// Signal sends sig to the engine: SIGSTOP makes it a black hole that accepts connections, SIGCONT ends
// that. Signal returns when all threads have stopped; until then they may answer a request.
func (s *Server) Signal(sig syscall.Signal) {
	s.tb.Helper()
	if s.pid == 0 {
		s.tb.Fatalf("signal %v to %s: it is down, or not ours", sig, s.Addr)
	}
	if err := syscall.Kill(s.pid, sig); err != nil {
		s.tb.Fatalf("signal %v to %s: %v", sig, s.Addr, err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) { // a real process is stopping
		if sig != syscall.SIGSTOP || s.threads(stopped+ended) {
			return
		}
	}
	s.tb.Fatalf("%s does not stop", s.Addr)
}

// States of threads, as in proc(5).
const (
	stopped = "T"
	ended   = "ZX"
)

// threads reports whether all of the engine's threads are in these states. A reaped engine has none.
func (s *Server) threads(states string) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.pid))
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if _, state, _ := bytes.Cut(b, []byte(") ")); err == nil && !bytes.ContainsAny(state[:min(1, len(state))], states) {
			return false
		}
	}
	return true
}

const (
	// patience limits the start and stop of a process on a busy machine. A dead engine ends the wait.
	patience = time.Minute
	// foreignPatience is the time limit for the answer of an engine not started by the test.
	foreignPatience = 5 * time.Second
)

func (s *Server) await() {
	s.tb.Helper()
	limit := patience
	if !s.Own() {
		limit = foreignPatience
	}
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // a real process is starting
		if err = s.ready(s.Addr); err == nil {
			return
		}
		if s.pid != 0 && s.threads(ended) {
			said, _ := os.ReadFile(s.log)
			s.tb.Fatalf("%s, which was to listen at %s, has ended: %s", filepath.Base(s.args[0]), s.Addr, said[max(0, len(said)-1000):])
		}
	}
	s.tb.Fatal(fmt.Errorf("no server at %s after %v: %w", s.Addr, limit, err))
}

// connects is ready for an engine that answers as soon as it listens.
func connects(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}
