package zklock

import (
	"encoding/binary"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestWire_RepliesWaitForTheWatches checks the order that prevents the client's data race.
func TestWire_RepliesWaitForTheWatches(t *testing.T) {
	const ping = 11
	for _, c := range []struct {
		name  string
		sends func(w *wire)
		waits time.Duration
	}{
		{"which are sent after a while", func(w *wire) {
			request(t, w, ping)
			time.Sleep(settingWatches / 5)
			request(t, w, opSetWatches)
		}, settingWatches / 5},
		{"which never come", func(w *wire) { request(t, w, ping) }, settingWatches},
		{"of which there are none", func(w *wire) { w.watchesAreSet() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer near.Close()
				defer far.Close()
				go func() {
					for b := make([]byte, 64); ; {
						if _, err := far.Read(b); err != nil {
							return
						}
					}
				}()
				go func() {
					for {
						if _, err := far.Write(make([]byte, 8)); err != nil {
							return
						}
					}
				}()
				w := &wire{Conn: near, limit: time.Minute, set: make(chan struct{})}
				read := func() time.Duration {
					t.Helper()
					began := time.Now()
					if _, err := w.Read(make([]byte, 8)); err != nil {
						t.Fatal(err)
					}
					return time.Since(began)
				}
				if took := read(); took != 0 {
					t.Errorf("a reply of the handshake waited %v", took)
				}
				w.open.Store(true)
				go c.sends(w)
				if took := read(); took != c.waits {
					t.Errorf("the first reply waited %v, want %v", took, c.waits)
				}
				if took := read(); took != 0 {
					t.Errorf("the second reply waited %v", took)
				}
			})
		})
	}
}

func request(t *testing.T, w *wire, op uint32) {
	b := make([]byte, 12)
	binary.BigEndian.PutUint32(b, 8)
	binary.BigEndian.PutUint32(b[8:], op)
	if _, err := w.Write(b); err != nil {
		t.Error(err)
	}
}
