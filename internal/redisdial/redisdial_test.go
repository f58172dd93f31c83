package redisdial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// A word is an error reply of a server.
type word string

func (w word) Error() string { return string(w) }
func (word) RedisError()     {}

var _ redis.Error = word("")

func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailures()
		var outcome error
		hook := f.DialHook(func(context.Context, string, string) (net.Conn, error) { return nil, outcome })
		dial := func(addr string, err error) {
			time.Sleep(time.Millisecond)
			outcome = err
			if _, got := hook(t.Context(), "tcp", addr); got != err {
				t.Errorf("the hook returns %v, want %v", got, err)
			}
		}
		wants := func(when, want string) {
			t.Helper()
			err := f.Explain(context.DeadlineExceeded)
			if !errors.Is(err, context.DeadlineExceeded) || err.Error() != context.DeadlineExceeded.Error()+want {
				t.Errorf("%s: %q, want %q behind the call's own", when, err, want)
			}
		}
		wants("at first", "")
		dial("a", errors.New("a refuses"))
		dial("b", errors.New("b refuses"))
		wants("after two failures", ": b refuses")
		for _, own := range []error{nil, context.Canceled, word("NOPERM"), fmt.Errorf("a command: %w", word("NOPERM")), errors.New("dial: b refuses")} {
			if err := f.Explain(own); err != own {
				t.Errorf("%v is explained as %v", own, err)
			}
		}
		if err := f.Explain(io.EOF); !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "b refuses") {
			t.Errorf("a connection that broke: %v", err)
		}
		dial("b", nil)
		wants("when b has a connection", ": a refuses")
		dial("a", context.Canceled)
		wants("when nobody wants a connection to a", ": a refuses")
		time.Sleep(memory)
		wants("later", "")
		if len(f.latest) != 0 {
			t.Errorf("%d failures are kept that explain nothing", len(f.latest))
		}
	})
}

// TestExplain_SilentAddress has calls end during a dial, as with an address behind a firewall.
func TestExplain_SilentAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailures()
		hook := f.DialHook(func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, errors.New("no answer")
		})
		begin := func(addr string) context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			go hook(ctx, "tcp", addr)
			synctest.Wait()
			return cancel
		}
		wants := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := f.Explain(context.DeadlineExceeded).Error(); got != context.DeadlineExceeded.Error()+want {
				t.Errorf("%s: %q, want %q behind the call's own", when, got, want)
			}
		}
		endA := begin("a")
		wants("at first", "")
		time.Sleep(slow)
		wants("during a slow dial", ": still dialing a")
		endB := begin("b")
		time.Sleep(slow)
		wants("during two slow dials", ": still dialing a")
		endA()
		wants("after a failure", ": no answer")
		time.Sleep(2 * memory)
		wants("later", ": still dialing b")
		endB()
		time.Sleep(2 * memory)
		wants("without a dial", "")
	})
}
