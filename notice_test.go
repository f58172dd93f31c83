package bellwether_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// Those who wait get the value with the word of it: no process looks into the
// store a second time.
func TestNotice_BringsTheValueToThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const build = 900 * time.Millisecond // before the first look just in case
		f := newFleet(t, 4, notices, bellwether.Options{})
		f.origin.build = build
		got := f.get(20, "k")
		if len(got.failed) > 0 || got.slowest != build {
			t.Errorf("the slowest caller waited %v for a load of %v: %v", got.slowest, build, got.failed)
		}
		f.wantLoads(t, 1)
		for i, p := range f.processes {
			if n := p.store.count("get"); n != 1 {
				t.Errorf("process %d read the store %d times, want once", i, n)
			}
		}
	})
}

// What one process changes, the near tiers of the others follow at once, and
// not when NearTTL is over.
func TestNotice_NearTiersFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, notices, bellwether.Options{TTL: time.Hour, NearTTL: time.Minute})
		f.get(1, "k")
		if err := f.processes[0].Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if v, err := f.processes[1].Get(t.Context(), "k"); v != "v2" || err != nil {
			t.Errorf("after an invalidation elsewhere: %q, %v, want v2", v, err)
		}

		// A later value replaces an earlier one where that is kept, without a
		// look into the store.
		f.get(1, "k")
		reads := f.processes[2].store.count("get")
		_, epoch, _ := f.store.Claim(t.Context(), "k")
		f.store.Commit(t.Context(), "k", bellwether.Entry{Kind: bellwether.KindValue, Value: []byte("later"), Epoch: epoch, TTL: time.Hour})
		synctest.Wait()
		if v, err := f.processes[2].Get(t.Context(), "k"); v != "later" || err != nil {
			t.Errorf("after a rebuild elsewhere: %q, %v, want later", v, err)
		}
		if n := f.processes[2].store.count("get"); n != reads {
			t.Errorf("the store was read %d times for it", n-reads)
		}
		// Where nobody has asked for it, it takes no room.
		f.processes[2].store.set(nil)
		f.processes[0].Get(t.Context(), "another")
		synctest.Wait()
		if s := f.processes[1].Stats(); s.NearBytes > f.processes[2].Stats().NearBytes {
			t.Errorf("near tiers of %d and %d bytes: one has kept what it only heard of", s.NearBytes, f.processes[2].Stats().NearBytes)
		}
	})
}

// A load that an invalidation elsewhere has made vain ends when that is heard;
// one that began after it goes on.
func TestNotice_EndsLoadsThatBeganBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, notices, bellwether.Options{})
		time.AfterFunc(500*time.Millisecond, func() { f.processes[1].Invalidate(context.Background(), "k") })
		start := time.Now()
		v, err := f.processes[0].Get(t.Context(), "k")
		if took := time.Since(start); v != "v2" || err != nil || took > 1600*time.Millisecond {
			t.Errorf("got %q, %v after %v, want v2 after 1.5s", v, err, took)
		}

		// The word of an invalidation comes late, when the next load runs.
		f.processes[0].store.set(on(func(context.Context, string) error {
			time.Sleep(700 * time.Millisecond)
			return nil
		}, "notice"))
		before, _ := f.origin.count()
		f.processes[1].Invalidate(t.Context(), "other")
		start = time.Now()
		_, err = f.processes[0].Get(t.Context(), "other")
		if took := time.Since(start); err != nil || took != time.Second {
			t.Errorf("%v after %v, want 1s", err, took)
		}
		if loads, _ := f.origin.count(); loads != before+1 {
			t.Errorf("%d loads, want 1", loads-before)
		}
		synctest.Wait()
		time.Sleep(time.Second)
	})
}

// What is heard so late that it may be invalidated since is not believed.
func TestNotice_Late(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, notices, bellwether.Options{NearTTL: time.Second, MaxWait: time.Minute})
		late := f.processes[2]
		resume := make(chan struct{})
		late.store.set(on(func(context.Context, string) error { <-resume; return nil }, "notice"))
		f.processes[0].Get(t.Context(), "k") // v1
		f.processes[1].Invalidate(t.Context(), "k")
		go f.processes[0].Get(t.Context(), "k") // v2, which late waits for
		time.Sleep(100 * time.Millisecond)
		f.origin.set(func(o *source) { o.build = 10 * time.Second })
		done := make(chan string)
		go func() {
			v, _ := late.Get(context.Background(), "k")
			done <- v
		}()
		time.Sleep(100 * time.Millisecond)
		// v2 is made and invalidated; then late hears of all at once.
		time.Sleep(time.Second)
		f.processes[1].Invalidate(t.Context(), "k")
		go f.processes[1].Get(context.Background(), "k")
		time.Sleep(2 * time.Second)
		close(resume)
		if v := <-done; v == "v1" {
			t.Errorf("a caller that asked after v1 was invalidated got it")
		}
		synctest.Wait()
		start := time.Now()
		if v, _ := late.Get(t.Context(), "k"); version(v) < 3 && time.Since(start) == 0 {
			t.Errorf("got %s, invalidated 3 s ago", v)
		}
	})
}

// Without a word, or with each lost, everything takes its time but comes.
func TestNotice_Lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, notices, bellwether.Options{})
		f.each(func(p *process) { p.store.set(on(refuse, "notice")) })
		got := f.get(20, "k")
		if len(got.failed) > 0 || got.slowest > time.Second+20*time.Millisecond {
			t.Errorf("the slowest caller waited %v for a load of 1s: %v", got.slowest, got.failed)
		}
		f.wantLoads(t, 1)
	})
}
