package bellwetherslog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/bellwetherslog"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// timeless removes attributes that differ from run to run.
func timeless(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "took" {
		return slog.Attr{}
	}
	return a
}

func newLog(level slog.Level) (*slog.Logger, *bytes.Buffer) {
	b := &bytes.Buffer{}
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: level, ReplaceAttr: timeless})), b
}

func TestObserve_Levels(t *testing.T) {
	log, got := newLog(slog.LevelDebug)
	o := bellwetherslog.Observe(log, 0)
	for _, err := range []error{
		fmt.Errorf("reading: %w", bellwether.ErrUnavailable), driver.ErrCorrupt, driver.ErrTooLarge,
		driver.ErrFenced, driver.ErrLeaseLost, &bellwether.PanicError{Value: "boom"}, errors.New("else"),
	} {
		o.Error("k", err)
	}
	for _, r := range []observe.Rebuild{
		{Key: "k"}, {Key: "k", Takeover: true}, {Key: "k", Outcome: observe.OutcomeFailed, Err: errors.New("down"), Takeover: true},
	} {
		_, end := o.Rebuild(t.Context(), "k")
		end(r)
	}
	o.Breaker(observe.EngineStore, observe.BreakerClosed, observe.BreakerOpen)
	o.Breaker(observe.EngineStore, observe.BreakerOpen, observe.BreakerHalfOpen)
	o.Breaker(observe.EngineStore, observe.BreakerHalfOpen, observe.BreakerOpen)
	o.Breaker(observe.EngineStore, observe.BreakerHalfOpen, observe.BreakerClosed)
	want := `level=WARN msg="cache error" kind=unavailable key=k err="reading: bellwether: engine unavailable"
level=ERROR msg="cache error" kind=corrupt key=k err="` + driver.ErrCorrupt.Error() + `"
level=WARN msg="cache error" kind="too large" key=k err="` + driver.ErrTooLarge.Error() + `"
level=INFO msg="cache error" kind=fenced key=k err="` + driver.ErrFenced.Error() + `"
level=INFO msg="cache error" kind="lease lost" key=k err="` + driver.ErrLeaseLost.Error() + `"
level=ERROR msg="cache error" kind=panic key=k err="bellwether: panic: boom"
level=WARN msg="cache error" kind=other key=k err=else
level=DEBUG msg=rebuild key=k outcome=value takeover=false lease_lost=false
level=INFO msg=rebuild key=k outcome=value takeover=true lease_lost=false
level=WARN msg=rebuild key=k outcome=failed takeover=true lease_lost=false err=down
level=WARN msg=breaker engine=store from=closed to=open
level=DEBUG msg=breaker engine=store from=open to=half-open
level=DEBUG msg=breaker engine=store from=half-open to=open
level=INFO msg=breaker engine=store from=half-open to=closed
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestObserve_WithoutALogger(t *testing.T) {
	defer func() {
		if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "bellwetherslog: Observe needs a logger") {
			t.Errorf("the panic is %q", p)
		}
	}()
	bellwetherslog.Observe(nil, 0)
}

// A pause has one record of a kind, and the next record has the number of omitted records.
func TestObserve_Pause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, got := newLog(slog.LevelInfo)
		o := bellwetherslog.Observe(log, time.Minute)
		for range 100 {
			o.Error("k", bellwether.ErrUnavailable)
		}
		o.Error("k", driver.ErrFenced)
		time.Sleep(time.Minute)
		o.Error("k", bellwether.ErrUnavailable)
		lines := strings.Split(strings.TrimSpace(got.String()), "\n")
		if len(lines) != 3 || strings.Contains(lines[0], "omitted") || !strings.Contains(lines[1], "fenced") || !strings.HasSuffix(lines[2], "omitted=99") {
			t.Errorf("got\n%s", got)
		}
	})
}

func TestObserve_StoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, got := newLog(slog.LevelInfo)
		store := &failing{Store: memstore.New()}
		c := bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
			TTL: time.Minute, Fleet: bellwether.Fleet{Store: store, Locker: locallock.New(), Namespace: "values"},
			Observers: []observe.Observer{bellwetherslog.Observe(log, time.Hour)},
		})
		store.down = true
		c.Get(t.Context(), "a")
		store.down = false
		time.Sleep(2 * time.Second)
		c.Get(t.Context(), "b")
		synctest.Wait()
		c.Close()
		want := []string{"kind=unavailable key=a", "engine=store from=closed to=open", "engine=store from=half-open to=closed"}
		lines := strings.Split(strings.TrimSpace(got.String()), "\n")
		if len(lines) != len(want) {
			t.Fatalf("got\n%s", got)
		}
		for i, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d is %s, want %s", i, lines[i], w)
			}
		}
	})
}

type failing struct {
	driver.Store
	down bool
}

func (f *failing) Get(ctx context.Context, key string) (driver.Entry, error) {
	if f.down {
		return driver.Entry{}, errors.New("connection refused")
	}
	return f.Store.Get(ctx, key)
}

func ExampleObserve() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: timeless}))
	users := bellwether.New(func(context.Context, string) (string, error) { return "", errors.New("database is down") },
		bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{bellwetherslog.Observe(log, time.Minute)}})
	users.Get(context.Background(), "42")
	users.Close()
	// Output: level=WARN msg=rebuild key=42 outcome=failed takeover=false lease_lost=false err="database is down"
}
