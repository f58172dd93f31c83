package lockertest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun_SoundLocker is the control experiment: the engine passes without a fault.
func TestRun_SoundLocker(t *testing.T) {
	t.Parallel()
	run(t, "")
}

// TestRun_SlowLocker has all calls read the clock a little late, as on a busy machine, and some
// calls take effect long after they were made, as with a busy engine: neither is a fault.
func TestRun_SlowLocker(t *testing.T) {
	t.Parallel()
	e := &engine{leases: map[string]*lease{}}
	var calls atomic.Int64
	lockertest.Run(t, func(testing.TB) driver.Locker { return &slowLocker{newLocker(e), &calls} })
}

type slowLocker struct {
	*locker
	calls *atomic.Int64
}

func (l *slowLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	time.Sleep(3 * time.Millisecond)
	if l.calls.Add(1)%10 != 0 || ttl <= 0 {
		return l.locker.TryAcquire(ctx, key, ttl)
	}
	end := time.Now().Add(ttl)
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
	}
	taken, err := l.locker.TryAcquire(ctx, key, ttl)
	if err == nil {
		l.e.mu.Lock()
		defer l.e.mu.Unlock()
		taken.(*lease).end = end // the holder counts from its call
	}
	return taken, err
}

// brokenVar makes the test binary run the kit on a broken locker.
const brokenVar = "LOCKERTEST_BROKEN"

// TestRun_BrokenLockers shows a case for each way in which a locker can break the contract. A
// failing Run would fail this test too, so it runs in a child process.
func TestRun_BrokenLockers(t *testing.T) {
	if broken := os.Getenv(brokenVar); broken != "" {
		run(t, broken)
		return
	}
	var children errgroup.Group
	children.SetLimit(8) // they sleep more than they work
	for _, c := range []struct{ broken, finder string }{
		{"two win a race", "OneOfManyWins"},
		{"two win a race", "NeverTwoAtATime"},
		{"reentrant", "NotReentrant"},
		{"never expires", "ExpiresAfter50ms"},
		{"expires in whole seconds, rounded down", "ExpiresAfter1500ms"},
		{"expires early", "RenewExtends"},
		{"all waiters take a dead holder's lease", "ExpiresAfter50ms"},
		{"renew does nothing", "RenewExtends"},
		{"renew revives an expired lease", "RenewAfterExpiry"},
		{"renew takes back", "RenewAfterTakeover"},
		{"renew sets the expiry of any lease", "RenewAfterTakeover"},
		{"renew collides with itself", "RenewConcurrently"},
		{"release only lets the lease expire", "ReleaseFreesAtOnce"},
		{"release by plain delete", "ReleaseAfterTakeover"},
		{"release of another's lease by its owner", "ReleaseTwice"},
		{"release always succeeds", "ReleaseTwice"},
		{"release of an expired lease succeeds", "ReleaseAfterExpiry"},
		{"announces too early an end", "AnnouncedEnd"},
		{"announces too late an end", "AnnouncedEnd"},
		{"announces the end by the wall clock", "AnnouncedEnd"},
		{"held without a HeldError", "OneOfManyWins"},
		{"trims keys", "HostileKeys"},
		{"decodes keys", "HostileKeys"},
		{"takes keys for file names", "HostileKeys"},
		{"takes any ttl", "TTLNotPositive"},
		{"rounds lengths down, and 0 is refused", "ShortTTL"},
		{"rounds lengths down, and 0 is no end", "ShortTTL"},
		{"renewals are rounded down, and 0 is an end at once", "ShortTTL"},
		{"counts the end in nanoseconds", "LongTTL"},
		{"compares, then deletes", "ReleaseAtTheEnd"},
		{"compares, then sets the expiry", "RenewAtTheEnd"},
		{"does not look at the context", "CancelledContext"},
		{"a cancelled acquire takes the lease", "CancelledContext"},
		{"leaves with a lease behind it", "ContextEndsDuringTheCall"},
		{"never wakes", "WatchWakesOnRelease"},
		{"wakes by polling", "WatchWakesOnRelease"},
		{"watches from the time of the call", "WatchMissesNoRelease"},
		{"watches the key, not the lease", "WatchMissesNoChangeOfHolder"},
		{"watch waits", "WatchOfADeadHolder"},
		{"wakes before the release", "WatchesLeadToTheLease"},
		{"wakes one", "WatchWakesAll"},
		{"watch leaks a goroutine", "WatchEndsWithItsContext"},
		{"tokens stay", "TokensRise"},
		{"tokens fall at a takeover", "TokensRise"},
		{"renew draws a token", "TokenStaysThroughRenewals"},
		{"Lost is closed at once", "LostIsOpenWhileHeld"},
		{"Lost is closed at the first end", "LostIsOpenAfterRenewals"},
		{"Lost is of all leases of a locker", "LostIsNotAnothers"},
	} {
		children.Go(func() error {
			found, out := child(t, c.broken, "TestRun_BrokenLockers/contract/"+c.finder)
			if !found {
				t.Errorf("case %s does not find out a locker whose fault is %q:\n%s", c.finder, c.broken, out)
			}
			return nil
		})
	}
	children.Wait()
}

// TestFaults_BrokenLockers does the same for Hang and Down.
func TestFaults_BrokenLockers(t *testing.T) {
	if broken := os.Getenv(brokenVar); broken != "" {
		faults(t, broken)
		return
	}
	for _, c := range []struct{ broken, finder string }{
		{"does not look at the context while it hangs", "Hang"},
		{"takes silence for held", "Down"},
		{"takes silence for lost", "Down"},
	} {
		if found, out := child(t, c.broken, "TestFaults_BrokenLockers/"+c.finder); !found {
			t.Errorf("%s does not find out a locker whose fault is %q:\n%s", c.finder, c.broken, out)
		}
	}
}

func TestFaults_SoundLocker(t *testing.T) { faults(t, "") }

func faults(t *testing.T, broken string) {
	begin := func(t *testing.T) (*locker, driver.Lease) {
		l := newLocker(&engine{broken: broken, leases: map[string]*lease{}})
		lease, err := l.TryAcquire(t.Context(), "key", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return l, lease
	}
	t.Run("Hang", func(t *testing.T) {
		l, lease := begin(t)
		l.e.hung = true
		lockertest.Hang(t, l, lease)
	})
	t.Run("Down", func(t *testing.T) {
		l, lease := begin(t)
		l.e.down = true
		lockertest.Down(t, l, lease)
	})
}

// TestLeavesNothing_BrokenLockers does the same for LeavesNothing.
func TestLeavesNothing_BrokenLockers(t *testing.T) {
	if broken := os.Getenv(brokenVar); broken != "" {
		leavesNothing(t, broken)
		return
	}
	for _, broken := range []string{"release only lets the lease expire", "forgets leases in use", "forgets leases at the end"} {
		if found, out := child(t, broken, "TestLeavesNothing_BrokenLockers"); !found {
			t.Errorf("a locker whose fault is %q is not found out:\n%s", broken, out)
		}
	}
}

func TestLeavesNothing_SoundLocker(t *testing.T) { leavesNothing(t, "") }

// leavesNothing counts leases, and things that only such a broken Locker leaves.
func leavesNothing(t *testing.T, broken string) {
	e := &engine{broken: broken, leases: map[string]*lease{}}
	things := 0
	open := func(tb testing.TB) driver.Locker {
		tb.Cleanup(func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			switch broken {
			case "forgets leases in use":
				things = 0 // all is well again after its end
			case "forgets leases at the end":
				things = int(e.tokens)
			}
		})
		return newLocker(e)
	}
	lockertest.LeavesNothing(t, open, func() map[string]int {
		e.mu.Lock()
		defer e.mu.Unlock()
		if broken == "forgets leases in use" {
			things = int(e.tokens)
		}
		return map[string]int{"leases": len(e.leases), "things": things}
	})
}

// child runs one test on a broken locker, and reports whether it fails without a panic or a time-out.
func child(t *testing.T, broken, test string) (found bool, out []byte) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+strings.ReplaceAll(test, "/", "$/^")+"$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), brokenVar+"="+broken)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	found = errors.As(err, &exit) &&
		bytes.Contains(out, []byte("--- FAIL: "+test)) &&
		!bytes.Contains(out, []byte("panic:"))
	return found, out
}

func run(t *testing.T, broken string) {
	e := &engine{broken: broken, leases: map[string]*lease{}}
	lockertest.Run(t, func(testing.TB) driver.Locker { return newLocker(e) })
}

// An engine is a locker's server. broken names its fault, or is "".
type engine struct {
	broken     string
	down, hung bool // set before use
	mu         sync.Mutex
	leases     map[string]*lease
	tokens     uint64
}

type locker struct {
	e    *engine
	lost chan struct{} // of all leases of a locker with this fault
}

func newLocker(e *engine) *locker { return &locker{e, make(chan struct{})} }

// answers returns why the engine does not answer, or nil.
func (l *locker) answers(ctx context.Context) error {
	err := ctx.Err()
	switch {
	case err != nil && !l.is("does not look at the context"):
		return err
	case l.e.hung && l.is("does not look at the context while it hangs"):
		return errors.New("timed out by itself")
	case l.e.hung:
		<-ctx.Done()
		return ctx.Err()
	case l.e.down && l.is("takes silence for held"):
		return &driver.HeldError{}
	case l.e.down && l.is("takes silence for lost"):
		return driver.ErrLeaseLost
	case l.e.down:
		return errors.New("connection refused")
	}
	return nil
}

type lease struct {
	l     *locker
	key   string
	start time.Time
	end   time.Time
	ended chan struct{}
	busy  bool
	owner *locker
	token uint64
	lost  chan struct{}
}

func gap() { time.Sleep(200 * time.Microsecond) }

func (m *lease) Token() uint64 {
	m.l.e.mu.Lock()
	defer m.l.e.mu.Unlock()
	return m.token
}

func (m *lease) Lost() <-chan struct{} {
	if m.l.is("Lost is closed at once") {
		return closed
	}
	if m.l.is("Lost is of all leases of a locker") {
		return m.l.lost
	}
	return m.lost
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// isLost closes Lost, once. The caller holds mu.
func (m *lease) isLost() error {
	for _, lost := range []chan struct{}{m.lost, m.l.lost} {
		select {
		case <-lost:
		default:
			close(lost)
		}
	}
	return driver.ErrLeaseLost
}

func (l *locker) is(broken string) bool { return l.e.broken == broken }

func (l *locker) name(key string) string {
	switch {
	case l.is("trims keys"):
		return strings.TrimSpace(key)
	case l.is("takes keys for file names"):
		return strings.ReplaceAll(key, "/", "_")
	case l.is("decodes keys"):
		return strings.ToValidUTF8(key, "\ufffd")
	}
	return key
}

func (l *locker) live(name string) *lease {
	held := l.e.leases[name]
	if held == nil {
		return nil
	}
	end := held.end
	switch {
	case l.is("never expires"):
		return held
	case l.is("expires early"):
		end = held.start.Add(held.end.Sub(held.start) * 9 / 10)
	case l.is("expires in whole seconds, rounded down"):
		end = held.start.Add(held.end.Sub(held.start).Truncate(time.Second))
	}
	if !time.Now().Before(end) {
		return nil
	}
	return held
}

func (l *locker) rounded(ttl time.Duration) time.Duration {
	if l.is("rounds lengths down, and 0 is refused") || l.is("rounds lengths down, and 0 is no end") ||
		l.is("renewals are rounded down, and 0 is an end at once") {
		return ttl.Truncate(time.Millisecond)
	}
	return ttl
}

func (l *locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if err := l.answers(ctx); err != nil {
		if ctx.Err() != nil && l.is("a cancelled acquire takes the lease") {
			l.e.mu.Lock()
			defer l.e.mu.Unlock()
			l.take(key, ttl)
		}
		return nil, err
	}
	if ttl <= 0 && !l.is("takes any ttl") {
		return nil, errors.New("ttl is not positive")
	}
	if ttl = l.rounded(ttl); ttl == 0 && l.is("rounds lengths down, and 0 is refused") {
		return nil, errors.New("invalid expire time")
	}
	if l.is("two win a race") {
		l.e.mu.Lock()
		free := l.live(l.name(key)) == nil
		l.e.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		if free {
			l.e.mu.Lock()
			defer l.e.mu.Unlock()
			return l.take(key, ttl), nil
		}
	}
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	held := l.live(l.name(key))
	if expired := l.e.leases[l.name(key)]; held == nil && expired != nil && l.is("all waiters take a dead holder's lease") {
		return &lease{l: l, key: key, ended: make(chan struct{}), lost: make(chan struct{})}, nil // and leaves the record as it was
	}
	if held != nil && !(l.is("reentrant") && held.owner == l) {
		if l.is("held without a HeldError") {
			return nil, driver.ErrHeld
		}
		until := held.end
		switch {
		case l.is("announces too early an end"):
			until = until.Add(-time.Millisecond)
		case l.is("announces too late an end"):
			until = until.Add(time.Hour)
		case l.is("announces the end by the wall clock"):
			until = until.Round(0)
		}
		return nil, &driver.HeldError{Key: key, Until: until, Seen: held.ended}
	}
	mine := l.take(key, ttl)
	if l.is("leaves with a lease behind it") && ctx.Done() != nil {
		if _, bounded := ctx.Deadline(); bounded && time.Until(mine.end) > time.Second {
			l.e.mu.Unlock()
			<-ctx.Done()
			l.e.mu.Lock()
			return nil, ctx.Err()
		}
	}
	return mine, nil
}

func (l *locker) take(key string, ttl time.Duration) *lease {
	now := time.Now()
	if !l.is("tokens stay") {
		l.e.tokens++
	}
	if l.is("tokens fall at a takeover") && l.e.leases[l.name(key)] != nil {
		l.e.tokens = 0
	}
	mine := &lease{l: l, key: key, start: now, end: now.Add(ttl), ended: make(chan struct{}), owner: l, token: l.e.tokens, lost: make(chan struct{})}
	switch {
	case ttl == 0 && l.is("rounds lengths down, and 0 is no end"):
		mine.end = now.Add(time.Hour)
	case l.is("counts the end in nanoseconds"):
		mine.end = time.Unix(0, now.UnixNano()+int64(ttl))
	}
	l.e.leases[l.name(key)] = mine
	if l.is("Lost is closed at the first end") {
		time.AfterFunc(ttl, func() {
			l.e.mu.Lock()
			defer l.e.mu.Unlock()
			mine.isLost()
		})
	}
	return mine
}

func (m *lease) Renew(ctx context.Context, ttl time.Duration) error {
	l := m.l
	if err := l.answers(ctx); err != nil {
		return err
	}
	if ttl <= 0 && !l.is("takes any ttl") {
		return errors.New("ttl is not positive")
	}
	if l.is("renew collides with itself") {
		l.e.mu.Lock()
		busy := m.busy
		m.busy = true
		l.e.mu.Unlock()
		if busy {
			return driver.ErrLeaseLost
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	m.busy = false
	now, name := time.Now(), l.name(m.key)
	if l.is("renew takes back") {
		l.e.leases[name] = m
	}
	if l.is("renew sets the expiry of any lease") && l.live(name) != nil && l.live(name) != m {
		l.live(name).end = now.Add(ttl)
		return driver.ErrLeaseLost
	}
	revives := l.is("renew revives an expired lease") && l.e.leases[name] == m
	if l.live(name) != m && !revives && !l.is("renew takes back") {
		return m.isLost()
	}
	ttl = l.rounded(ttl)
	if ttl == 0 && l.is("renewals are rounded down, and 0 is an end at once") {
		delete(l.e.leases, name)
		return nil
	}
	if l.is("compares, then sets the expiry") {
		l.e.mu.Unlock()
		gap()
		l.e.mu.Lock()
		if now := l.live(name); now != nil && now != m {
			now.end = time.Now().Add(ttl)
			return nil
		}
	}
	if l.is("renew draws a token") {
		l.e.tokens++
		m.token = l.e.tokens
	}
	if !l.is("renew does nothing") {
		m.start, m.end = now, now.Add(ttl)
	}
	return nil
}

func (m *lease) Release(ctx context.Context) error {
	l := m.l
	if err := l.answers(ctx); err != nil {
		return err
	}
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	name := l.name(m.key)
	held := l.e.leases[name]
	switch {
	case l.is("release only lets the lease expire"):
		m.end = time.Now().Add(100 * time.Millisecond)
		return nil
	case l.is("release by plain delete") && held != nil && held != m:
		delete(l.e.leases, name)
		return driver.ErrLeaseLost
	case l.is("release of another's lease by its owner") && held != nil && held != m && held.owner == l:
		delete(l.e.leases, name)
		return driver.ErrLeaseLost
	case l.is("release of an expired lease succeeds") && held == m:
	case l.live(name) != m:
		if l.is("release always succeeds") {
			return nil
		}
		return driver.ErrLeaseLost
	}
	if l.is("compares, then deletes") {
		l.e.mu.Unlock()
		gap()
		l.e.mu.Lock()
		if held = l.e.leases[name]; held == nil {
			return driver.ErrLeaseLost
		}
		m = held
	}
	if l.is("wakes before the release") {
		close(m.ended)
		m.ended = make(chan struct{})
		l.e.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		l.e.mu.Lock()
	}
	delete(l.e.leases, name)
	switch {
	case l.is("never wakes"), l.is("wakes before the release"):
	case l.is("wakes one"):
		select {
		case m.ended <- struct{}{}:
		default:
		}
	default:
		close(m.ended)
	}
	return nil
}

func (l *locker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil && !l.is("does not look at the context") {
		return nil, err
	}
	ended, ok := held.Seen.(chan struct{})
	if !ok {
		return nil, fmt.Errorf("not seen by this locker: %v", held.Seen)
	}
	switch {
	case l.is("watches from the time of the call"), l.is("watches the key, not the lease"):
		l.e.mu.Lock()
		defer l.e.mu.Unlock()
		now := l.live(l.name(held.Key))
		if now != nil {
			return now.ended, nil
		}
		if l.is("watches the key, not the lease") {
			return ended, nil
		}
		return make(chan struct{}), nil
	case l.is("wakes by polling"):
		freed := make(chan struct{})
		go func() {
			tick := time.NewTicker(300 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				select {
				case <-ended:
					close(freed)
					return
				default:
				}
			}
		}()
		return freed, nil
	case l.is("watch waits"):
		select {
		case <-ended:
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	case l.is("watch leaks a goroutine"):
		go func() { <-ended }()
	}
	return ended, nil
}
