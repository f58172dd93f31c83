package testserver

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that answers each line with itself, and sends received lines to heard.
func echo(t *testing.T) (addr string, heard chan string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	heard = make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					heard <- lines.Text()
					io.WriteString(c, lines.Text()+"\n")
				}
			}()
		}
	}()
	return l.Addr().String(), heard
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a line, and returns the reply within limit.
func ask(c net.Conn, line string, limit time.Duration) (string, error) {
	c.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	b := make([]byte, 100)
	n, err := c.Read(b)
	return strings.TrimSuffix(string(b[:n]), "\n"), err
}

func TestProxy_Faults(t *testing.T) {
	const short, long = 100 * time.Millisecond, 5 * time.Second
	for _, test := range []struct {
		fault Fault
		heard bool // by the server, while the fault lasts
		want  error
	}{
		{BlackHole, false, os.ErrDeadlineExceeded},
		{DeadRequests, false, os.ErrDeadlineExceeded},
		{DeadReplies, true, os.ErrDeadlineExceeded},
		{SwallowReplies, true, io.EOF},
		{Reset, false, syscall.ECONNRESET},
	} {
		t.Run(test.fault.String(), func(t *testing.T) {
			t.Parallel()
			addr, heard := echo(t)
			p := NewProxy(t, addr)
			old := dial(t, p)
			if got, err := ask(old, "before", long); got != "before" || err != nil {
				t.Fatalf("without a fault: %q, %v", got, err)
			}
			<-heard
			p.Set(test.fault)
			// A reset may arrive before Dial returns.
			young, err := net.Dial("tcp", p.Addr)
			if err != nil && !(test.fault == Reset && errors.Is(err, test.want)) {
				t.Fatal(err)
			}
			conns := []net.Conn{old}
			if err == nil {
				defer young.Close()
				conns = append(conns, young)
			}
			for _, c := range conns {
				got, err := ask(c, "during", short)
				if !errors.Is(err, test.want) && !(test.fault == Reset && errors.Is(err, syscall.EPIPE)) {
					t.Errorf("%q, %v, want %v", got, err, test.want)
				}
				select {
				case <-heard:
					if !test.heard {
						t.Error("the server has heard of it")
					}
				case <-time.After(short):
					if test.heard {
						t.Error("the server has not heard of it")
					}
				}
			}
			p.Set(NoFault)
			if test.want == os.ErrDeadlineExceeded {
				old.SetDeadline(time.Now().Add(long))
				if got, err := bufio.NewReader(old).ReadString('\n'); got != "during\n" {
					t.Errorf("after the fault: %q, %v, want what was held back", got, err)
				}
			}
			if got, err := ask(dial(t, p), "after", long); got != "after" || err != nil {
				t.Errorf("after the fault: %q, %v", got, err)
			}
			if got := p.Connections(); got != 3 {
				t.Errorf("%d connections, want 3", got)
			}
		})
	}
}

func TestProxy_SlowCloseTearsTheReply(t *testing.T) {
	addr, heard := echo(t)
	p := NewProxy(t, addr)
	c := dial(t, p)
	p.Set(SlowClose)
	got, err := ask(c, "12345", 5*time.Second)
	if got != "123" || err != nil {
		t.Errorf("%q, %v, want the half of it", got, err)
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("then %v, want the end", err)
	}
	<-heard
	io.WriteString(c, "more\n")
	if got := <-heard; got != "more" {
		t.Errorf("the server heard %q, want that the other direction still stands", got)
	}
	p.Set(NoFault)
}

func TestProxy_LatencyAndCounts(t *testing.T) {
	addr, _ := echo(t)
	p := NewProxy(t, addr)
	c := dial(t, p)
	p.CountRequests("abc")
	p.SetLatency(100 * time.Millisecond)
	start := time.Now()
	if _, err := ask(c, "xxabcabc", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("a round trip took %v, want at least half of the latency each way", took)
	}
	p.SetLatency(0)
	// A marker in two pieces counts too, once.
	io.WriteString(c, "ab")
	time.Sleep(50 * time.Millisecond)
	if _, err := ask(c, "cabca", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if got := p.Requests(); got != 4 {
		t.Errorf("counted %d, want 4", got)
	}
}
