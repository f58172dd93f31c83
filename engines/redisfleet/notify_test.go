package redisfleet

import (
	"context"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// A listener of notices that hangs in user code, such as a codec, keeps no other listener and no Close waiting.
func TestNotify_Hangs(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	eng, admin := open(t, srv.Addr), dial(t, srv.Addr)
	rebuild(t, eng, "warm", time.Hour)
	hanging, goOn := make(chan struct{}, 100), make(chan struct{})
	ended := make(chan struct{}, 2)
	notify := func(f func(driver.Notice)) context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { eng.Notify(ctx, f); ended <- struct{}{} }()
		return cancel
	}
	endA := notify(func(driver.Notice) { hanging <- struct{}{}; <-goOn })
	endB := notify(func(driver.Notice) {})
	awaitSubscribers(t, admin, 2)
	rebuild(t, eng, "key", time.Hour)
	<-hanging
	endB()
	select {
	case <-ended:
	case <-time.After(3 * time.Second):
		t.Error("another listener does not end")
	}
	closed := make(chan struct{})
	go func() { eng.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(3 * time.Second):
		t.Error("Close of the engine hangs")
	}
	close(goOn)
	endA()
	<-ended
	<-closed
}
