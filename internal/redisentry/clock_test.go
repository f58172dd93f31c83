package redisentry

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		if _, ok := c.Recent(); ok {
			t.Fatal("the zero clock claims to know the time")
		}

		// A server a day ahead, behind a line of 10 ms each way.
		began := time.Now()
		truth := func() time.Duration { return 1000*24*time.Hour + time.Since(began) }
		ask := func(there, back time.Duration) Sighting {
			s := Sighting{Sent: time.Now()}
			time.Sleep(there)
			s.Server = truth()
			time.Sleep(back)
			s.Took = time.Since(s.Sent)
			return s
		}
		c.See(ask(10*time.Millisecond, 10*time.Millisecond))
		for range 5 {
			s, ok := c.Recent()
			if !ok {
				t.Fatal("not recent")
			}
			if err := s.Now() - truth(); err < 0 || err > 10*time.Millisecond {
				t.Fatalf("the estimate is %v ahead, want at most the way there and never behind", err)
			}
			time.Sleep(5 * time.Second)
		}

		// The reply to an earlier request does not replace a later sighting.
		slow := ask(time.Second, 0)
		quick := ask(0, 0)
		c.See(quick)
		c.See(slow)
		if s, _ := c.Recent(); s != quick {
			t.Errorf("the last sighting is %+v, want the one asked for last, %+v", s, quick)
		}

		// A slow reply makes the estimate no worse.
		seen := c.See(ask(time.Second, time.Second))
		if s, _ := c.Recent(); s.Now() != truth() || seen != s {
			t.Errorf("after a slow reply the estimate is %v ahead, and the returned one %v", s.Now()-truth(), seen.Now()-truth())
		}
		// A slow reply after the clock was set contradicts the sighting that was sent later.
		late := Sighting{Sent: time.Now()}
		time.Sleep(time.Second)
		c.See(ask(0, 0))
		began = began.Add(-time.Hour)
		late.Server, late.Took = truth(), time.Since(late.Sent)
		if seen := c.See(late); seen.Now() < truth() {
			t.Errorf("the returned sighting is %v behind", truth()-seen.Now())
		}
		time.Sleep(time.Millisecond)
		c.See(ask(0, 0))
		time.Sleep(time.Millisecond)

		// But the clock may have been set, or the quick sighting may be old.
		began = began.Add(-time.Hour)
		c.See(ask(time.Second, 0))
		if s, _ := c.Recent(); s.Now() < truth() {
			t.Errorf("after the clock was set forward the estimate is %v behind", truth()-s.Now())
		}
		began = began.Add(2 * time.Hour)
		c.See(ask(2*time.Second, 0))
		if s, _ := c.Recent(); s.Now() > truth()+2*time.Second {
			t.Errorf("after the clock was set back the estimate is %v ahead", s.Now()-truth())
		}
		time.Sleep(recency / 2)
		last := ask(3*time.Second, 0)
		c.See(last)
		if s, _ := c.Recent(); s != last {
			t.Errorf("the sighting is %+v, want the new one, %+v", s, last)
		}

		time.Sleep(recency - 3*time.Second - 1)
		if _, ok := c.Recent(); !ok {
			t.Error("not recent just before its end")
		}
		time.Sleep(time.Nanosecond)
		if _, ok := c.Recent(); ok {
			t.Error("recent after its end")
		}
	})
}
