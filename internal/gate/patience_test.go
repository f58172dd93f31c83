//go:build unix

package gate

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/observe"
)

func TestPatience(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		limit, parent time.Duration
		heard         []time.Duration // pauses before the pieces of the answer
		want          time.Duration
		err           error
	}{
		"within a step":               {limit: 3 * ms, want: 3 * ms, err: context.DeadlineExceeded},
		"whole steps":                 {limit: 500 * ms, want: 500 * ms, err: context.DeadlineExceeded},
		"a last step that is shorter": {limit: 35 * ms, want: 35 * ms, err: context.DeadlineExceeded},
		"each piece begins it anew":   {limit: 35 * ms, heard: []time.Duration{34 * ms, 1 * ms, 34 * ms}, want: 104 * ms, err: context.DeadlineExceeded},
		"a piece as a step ends":      {limit: 35 * ms, heard: []time.Duration{10 * ms, 20 * ms}, want: 65 * ms, err: context.DeadlineExceeded},
		"the caller's end":            {limit: 500 * ms, parent: 42 * ms, want: 42 * ms, err: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.parent > 0 {
					time.AfterFunc(c.parent, cancel)
				}
				began := time.Now()
				p := new(patiences).begin(ctx, c.limit, nil)
				defer p.end()
				if due, ok := p.Deadline(); !ok || due.Sub(began) != c.limit {
					t.Errorf("Deadline: %v from now, %t; want %v", due.Sub(began), ok, c.limit)
				}
				for _, pause := range c.heard {
					time.Sleep(pause)
					p.heard()
				}
				<-p.Done()
				if took := time.Since(began); took != c.want || p.Err() != c.err {
					t.Errorf("ended after %v with %v, want %v and %v", took, p.Err(), c.want, c.err)
				}
			})
		})
	}
}

// A client's own context below the call's ends with Canceled, and the call still counts as unanswered.
func TestPatience_ContextBelow(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, _ *engine, _ *[]observe.BreakerState) {
		budget := NewBudget(timeout)
		err := AskErr(t.Context(), g, "k", budget, func(ctx context.Context) error {
			below, cancel := context.WithCancel(ctx)
			defer cancel()
			<-below.Done()
			return below.Err()
		})
		if !errors.Is(err, fault.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || budget.Left() != 0 || len(g.failing) != 1 {
			t.Errorf("Ask: %v, with %v left and %d failures", err, budget.Left(), len(g.failing))
		}
		if err != nil && !strings.Contains(err.Error(), "EngineTimeout") {
			t.Errorf("Ask: %v, want the option that has ended the call", err)
		}
	})
}

// TestPatience_Stopped stops a process during a call. The answer comes meanwhile, long after the limit.
func TestPatience_Stopped(t *testing.T) {
	t.Parallel()
	if os.Getenv("GATE_STOPPED") != "" {
		io.WriteString(os.Stdout, "asking\n")
		err := AskAnyway(t.Context(), New(timeout, func(_, _ observe.BreakerState) {}), "k", timeout/2, func(ctx context.Context) error {
			answer := make(chan struct{})
			go func() {
				bufio.NewReader(os.Stdin).ReadString('\n')
				close(answer)
			}()
			select {
			case <-answer:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if err != nil {
			t.Error(err)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPatience_Stopped$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), "GATE_STOPPED=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "asking\n" {
		t.Fatalf("the process says %q, %v", line, err)
	}
	time.Sleep(timeout / 10)
	cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(timeout)
	io.WriteString(in, "the answer\n")
	cmd.Process.Signal(syscall.SIGCONT)
	said, _ := io.ReadAll(lines)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %.600s", err, said)
	}
}

// A gate keeps no timer between two calls, so it may be used in a bubble of testing/synctest after other calls.
func TestPatience_InABubbleLater(t *testing.T) {
	g := New(timeout, func(_, _ observe.BreakerState) {})
	ask := func(t *testing.T, call func(context.Context) error) error {
		return AskErr(t.Context(), g, "k", NewBudget(timeout), call)
	}
	if err := ask(t, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := ask(t, func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-time.After(10 * timeout):
			}
			return ctx.Err()
		})
		if took := time.Since(began); took != timeout || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v, want the end of the limit of %v", err, took, timeout)
		}
	})
}
