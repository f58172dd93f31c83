package page

import (
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/internal/spool"
)

const bodyLen = 2 * smallBody

func newBody() spool.Body { return spool.BodyOf(make([]byte, bodyLen)) }

func newBodies(limit int64) *bodies {
	return &bodies{limit: limit, near: func(key string, _ spool.Body) bool { return key == "near" }}
}

// midWrite returns the writer of a client that takes nothing.
func midWrite() *pacedWriter {
	p := paced(httptest.NewRecorder(), 1, nil)
	p.timer.Reset(time.Hour)
	return p
}

func (b *bodies) wantEmpty(t *testing.T) {
	t.Helper()
	if b.written != 0 || b.sent != 0 || b.sending.Len() != 0 || len(b.at) != 0 {
		t.Errorf("%d bytes in progress and %d of %d complete bodies (%d known) stay, want none", b.written, b.sent, b.sending.Len(), len(b.at))
	}
}

// A body counts once, until its last reader has left: a reader from its flight, or a client of the stored body.
func TestBodies_CountUntilTheLastReaderLeaves(t *testing.T) {
	for _, flightFirst := range []bool{true, false} {
		b, whole := newBodies(bodyLen), newBody()
		a := &account{of: b}
		if !a.reach(bodyLen) {
			t.Fatal("a body within the limit is refused")
		}
		a.complete("k", whole)
		end := b.send("k", whole, midWrite())
		again := b.send("k", whole, midWrite())
		if b.written != 0 || b.sent != bodyLen {
			t.Errorf("%d bytes in progress and %d complete, want one complete body", b.written, b.sent)
		}
		leave := []func(){a.close, end, again}
		if !flightFirst {
			leave = []func(){end, again, a.close}
		}
		for _, left := range leave {
			if other := (&account{of: b}); other.reach(1) {
				t.Error("another body has room beside a full one")
			}
			left()
		}
		b.wantEmpty(t)
	}
}

func TestBodies_SmallOnesAreFree(t *testing.T) {
	b, small := newBodies(0), spool.BodyOf(make([]byte, smallBody))
	a := &account{of: b}
	a.complete("k", small)
	b.send("k", small, midWrite())
	b.wantEmpty(t)
}

// A handler may write on after its last client has left, or write bytes for which there was room before.
func TestBodies_NothingToCount(t *testing.T) {
	b := newBodies(bodyLen)
	a := &account{of: b}
	if !a.reach(bodyLen) || (&account{of: b}).reach(1) {
		t.Error("want room for one body")
	}
	end := b.send("k", newBody(), midWrite())
	if !a.reach(bodyLen) || !a.reach(1) {
		t.Error("bytes that are already counted are refused")
	}
	end()
	a.close()
	if !a.reach(4 * bodyLen) {
		t.Error("a body without clients is refused")
	}
	a.complete("k", newBody())
	b.wantEmpty(t)
	b.send("near", newBody(), midWrite())
	if !(&account{of: b}).reach(bodyLen) {
		t.Error("a body of the near tier takes room")
	}
}

// A body without room is dropped behind its readers: until MaxBodyBytes it would be memory that nothing counts.
func TestBodies_WithoutRoomAreNotCollected(t *testing.T) {
	r := recording{Spool: spool.New(bodyLen), limit: bodyLen, account: account{of: newBodies(0)}}
	client, _ := r.NewReader()
	defer client.Close()
	passed := r.passes(smallBody + 1)
	if r.Write(make([]byte, smallBody+1)); !passed || !r.Overflowed() {
		t.Errorf("passes = %v, and the spool has overflowed: %v; want both", passed, r.Overflowed())
	}
}

// The eldest clients go first, as many as necessary. They stay if their body is in the near tier or they joined while it
// was written, and the newest body's clients stay always. Bodies in progress take at most half of the room.
func TestBodies_EldestGoFirst(t *testing.T) {
	for _, tt := range []struct{ limit, written, gone int64 }{
		{0, 0, 2}, {2, 0, 2}, {3, 0, 1}, {4, 0, 0}, {5, 1, 0}, {5, 2, 1}, {6, 5, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBodies(tt.limit*bodyLen + 1)
			(&account{of: b}).reach(tt.written * bodyLen)
			joined := &account{of: b}
			near, eldest, elder, newest := midWrite(), midWrite(), midWrite(), midWrite()
			b.send("near", newBody(), near)
			joined.complete("joined", newBody())
			b.mu.Lock()
			for _, p := range []*pacedWriter{eldest, elder} { // all are there before any is too much
				b.hold("k", newBody()).Value.(*sentBody).clients[p] = struct{}{}
			}
			b.mu.Unlock()
			b.send("l", newBody(), newest)
			time.Sleep(time.Minute)
			for i, p := range []*pacedWriter{eldest, elder, newest, near} {
				select {
				case <-p.ended:
					if int64(i) >= tt.gone {
						t.Errorf("%+v: client %d is broken off", tt, i)
					}
				default:
					if int64(i) < tt.gone {
						t.Errorf("%+v: client %d stays", tt, i)
					}
				}
			}
		})
	}
}
