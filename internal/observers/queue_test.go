package observers

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// At most maxQueued calls wait for an observer that does not return, and none after Close.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q queue
		goOn := make(chan struct{})
		told, next := 0, 0
		for i := range maxQueued + 10 {
			q.add(func() {
				if i == 0 {
					<-goOn
				}
				if i != next {
					t.Errorf("telling %d, want %d", i, next)
				}
				next++
				if told++; i%100 == 7 {
					runtime.Goexit()
				}
			})
		}
		close(goOn)
		q.close()
		if told != maxQueued {
			t.Errorf("%d tellings when Close has returned, want %d", told, maxQueued)
		}
		q.add(func() { t.Error("told after Close") })
		synctest.Wait()
	})
}
