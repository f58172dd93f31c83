package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/driver"
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
					for _, err := far.Write(packet(welcome)); err == nil; {
						_, err = far.Write(packet(pong))
					}
				}()
				w := newWire(near, time.Minute)
				read := func() time.Duration {
					t.Helper()
					began := time.Now()
					if _, err := w.Read(make([]byte, 64)); err != nil {
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

// The bytes of packets, without their lengths.
const (
	noTimeout = "\x00\x00\x00\x00"
	welcome   = "\x00\x00\x00\x00" + "\x00\x00\x27\x10" + "\x00\x00\x00\x00\x00\x00\x12\x34" + "\x00\x00\x00\x10" + "pppppppppppppppp"
	expired   = "\x00\x00\x00\x00" + noTimeout + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x10" + "pppppppppppppppp"
	zxid      = "\x00\x00\x00\x00\x00\x00\x00\x01"
	ok        = "\x00\x00\x00\x00"
	pong      = "\xff\xff\xff\xfe" + zxid + ok
	notice    = "\xff\xff\xff\xff" + zxid + ok
	first     = "\x00\x00\x00\x01" + zxid
	result    = "\x00" + ok // the rest of the header of a transaction's result
	last      = "\xff\xff\xff\xff" + "\x01" + "\xff\xff\xff\xff"
	endless   = "\x7f\xff\xff\xff"
)

var stat = strings.Repeat("s", 68)

func packet(bytes string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(bytes))), bytes...)
}

func TestWire_Checks(t *testing.T) {
	type row struct {
		name, bytes, want string
		op                uint32 // of request 1, or 0 without a request
	}
	run := func(t *testing.T, open bool, rows []row) {
		for _, c := range rows {
			t.Run(c.name, func(t *testing.T) {
				near, far := net.Pipe()
				defer near.Close()
				w := newWire(near, time.Minute)
				w.watchesAreSet()
				w.open.Store(open)
				sent := packet(c.bytes)
				if strings.HasPrefix(c.name, "of a length") {
					sent = []byte(c.bytes)
				}
				go func() {
					defer far.Close()
					if c.op != 0 {
						io.ReadFull(far, make([]byte, 12))
					}
					far.Write(sent)
				}()
				if c.op != 0 {
					if _, err := w.Write(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8, 0, 0, 0, 1}, c.op)); err != nil {
						t.Fatal(err)
					}
				}
				got, err := io.ReadAll(w)
				switch {
				case c.want == "" && (err != nil || string(got) != string(sent)):
					t.Errorf("%q, %v; want %q", got, err, sent)
				case c.want != "" && (err == nil || len(got) != 0 || !strings.Contains(err.Error(), c.want)):
					t.Errorf("%q, %v; want an error with %q", got, err, c.want)
				}
			})
		}
	}
	t.Run("handshake", func(t *testing.T) {
		run(t, false, []row{
			{name: "of 36 bytes", bytes: welcome},
			{name: "of 37 bytes", bytes: welcome + "\x00"},
			{name: "of an expired session", bytes: expired},
			{name: "without a password", bytes: expired[:16] + "\xff\xff\xff\xff"},
			{name: "of a length of 2 GB", bytes: "zq\x00\r\nhello", want: "2054225933 bytes, and not 20 to 128"},
			{name: "of a length of 0", bytes: "\x00\x00\x00\x00", want: "0 bytes"},
			{name: "that is cut off", bytes: welcome[:19], want: "19 bytes"},
			{name: "that is too long", bytes: welcome + strings.Repeat("\x00", 93), want: "129 bytes"},
			{name: "with a password of 2 GB", bytes: welcome[:16] + endless, want: errCutOff.Error()},
			{name: "with a part of a password", bytes: welcome[:35], want: errCutOff.Error()},
			{name: "with a timeout of 0", bytes: welcome[:4] + noTimeout + welcome[8:], want: errTimeout.Error()},
			{name: "with a negative timeout", bytes: welcome[:4] + "\xff\xff\xff\xff" + welcome[8:], want: errTimeout.Error()},
		})
	})
	t.Run("later packet", func(t *testing.T) {
		run(t, true, []row{
			{name: "of a ping", bytes: pong},
			{name: "of an event", bytes: notice + "\x00\x00\x00\x02" + "\x00\x00\x00\x03" + "\x00\x00\x00\x02" + "/a"},
			{name: "of a session's event", bytes: notice + "\xff\xff\xff\xff" + "\x00\x00\x00\x65" + "\x00\x00\x00\x00", want: errOwnEvent.Error()},
			{name: "of a length of 4 GB", bytes: "\xff\xff\xff\xff", want: "4294967295 bytes, and not 16 to 4194304"},
			{name: "of a length of 0", bytes: "\x00\x00\x00\x00", want: "0 bytes"},
			{name: "of 4 bytes", bytes: "\xff\xff\xff\xff", want: "4 bytes"},
			{name: "of 15 bytes", bytes: pong[:15], want: "15 bytes"},
			{name: "of no request", bytes: first + ok, want: errNotAsked.Error()},
			{name: "of a failure", bytes: first + "\xff\xff\xff\x9b", op: opMulti},
			{name: "of another operation", bytes: first + ok, op: 9},
			{name: "of data", bytes: first + ok + "\x00\x00\x00\x02" + "xy" + stat, op: opGetData},
			{name: "of no data", bytes: first + ok + "\xff\xff\xff\xff" + stat, op: opGetData},
			{name: "of data of 2 GB", bytes: first + ok + endless, op: opGetData, want: errCutOff.Error()},
			{name: "of data without a length", bytes: first + ok + "\x00", op: opGetData, want: errCutOff.Error()},
			{name: "of names", bytes: first + ok + "\x00\x00\x00\x02" + "\x00\x00\x00\x01" + "a" + "\x00\x00\x00\x00" + stat, op: opGetChildren2},
			{name: "of 4 billion names", bytes: first + ok + "\xff\xff\xff\xff" + stat, op: opGetChildren2, want: errCutOff.Error()},
			{name: "of names without a number", bytes: first + ok, op: opGetChildren2, want: errCutOff.Error()},
			{name: "of a transaction", bytes: first + ok +
				"\x00\x00\x00\x01" + result + "\x00\x00\x00\x02" + "/a" + "\x00\x00\x00\x02" + result + "\x00\x00\x00\x05" + result + stat + last, op: opMulti},
			{name: "of a failed transaction", bytes: first + ok + "\xff\xff\xff\xff" + result + "\xff\xff\xff\x92" + last, op: opMulti},
			{name: "of a transaction without results", bytes: first + ok, op: opMulti, want: errCutOff.Error()},
			{name: "of half a header of a result", bytes: first + ok + "\x00\x00\x00\x02", op: opMulti, want: errCutOff.Error()},
			{name: "of a transaction without an end", bytes: first + ok + "\x00\x00\x00\x02" + result, op: opMulti, want: errCutOff.Error()},
			{name: "of a path without a length", bytes: first + ok + "\x00\x00\x00\x01" + result, op: opMulti, want: errCutOff.Error()},
			{name: "of a path of 4 GB", bytes: first + ok + "\x00\x00\x00\x01" + result + "\xff\xff\xff\xff" + last, op: opMulti, want: errCutOff.Error()},
			{name: "of a part of a stat", bytes: first + ok + "\x00\x00\x00\x05" + result + stat[1:], op: opMulti, want: errCutOff.Error()},
			{name: "of an error without a code", bytes: first + ok + "\xff\xff\xff\xff" + result + "\x00", op: opMulti, want: errCutOff.Error()},
		})
	})
}

// A fake is a ZooKeeper with bytes of a test's own.
type fake struct {
	handshake string           // in place of welcome, with its length
	unasked   string           // comes before each reply
	bodies    map[int32]string // of replies, by operation; other requests find a held lease and no data
	orphan    string           // a path that cannot be created: its parent is missing
	silentAt  int64            // the number of the request from which on it is silent; 0 is never
	onRequest func(n int64)
	onWelcome func(n int64, c net.Conn) (more bool) // follows the n-th handshake, and may end its connection

	handshakes, requests atomic.Int64
}

func (f *fake) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		f.serve(far)
	}()
	return near, nil
}

func (f *fake) serve(c net.Conn) {
	if readPacket(c) == nil {
		return
	}
	if f.handshake != "" {
		c.Write([]byte(f.handshake))
	} else {
		c.Write(packet(welcome))
	}
	if n := f.handshakes.Add(1); f.onWelcome != nil && !f.onWelcome(n, c) {
		return
	}
	for {
		request := readPacket(c)
		if len(request) < 8 {
			return
		}
		n := f.requests.Add(1)
		if f.onRequest != nil {
			f.onRequest(n)
		}
		c.Write([]byte(f.unasked))
		if f.silentAt == 0 || n < f.silentAt {
			c.Write(packet(f.reply(string(request))))
		}
	}
}

func (f *fake) reply(request string) string {
	const noNode, nodeExists = "\xff\xff\xff\x9b", "\xff\xff\xff\x92"
	op := int32At([]byte(request), 4)
	body, given := f.bodies[op]
	switch header := request[:4] + zxid; {
	case given:
		return header + ok + body
	case op == opMulti:
		return header + nodeExists
	case op == opCreate: // of a place in a queue
		path := request[12:][:int32At([]byte(request), 8)]
		if path == f.orphan {
			return header + noNode
		}
		return header + ok + string(packet(path+"0000000000"))
	default:
		return header + noNode
	}
}

func readPacket(c net.Conn) []byte {
	var length [4]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil
	}
	b := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return nil
	}
	return b
}

// use calls a Locker of the fake, and returns the errors of the two ways to a lease. It runs in a bubble.
func (f *fake) use(t *testing.T) (acquired, locked error) {
	l := New("fake:2181")
	defer l.Close()
	l.Dial = f.dial
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, acquired = l.TryAcquire(ctx, "key", time.Minute)
	_, locked = l.Lock(ctx, "key", time.Minute)
	synctest.Wait() // for the removal of what they may have left
	return acquired, locked
}

// heldLease is the data of a held lease's node, with its length.
const heldLease = "\x00\x00\x00\x07" + "t 60000"

// TestHostileServer has bytes that end the process if the client gets them.
func TestHostileServer(t *testing.T) {
	for name, c := range map[string]struct {
		fake *fake
		want string // of TryAcquire's error
	}{
		"a handshake of 2 GB":        {&fake{handshake: "zq\x00\r\nhello"}, "2054225933 bytes"},
		"a timeout of 0":             {&fake{handshake: string(packet(welcome[:4] + noTimeout + welcome[8:]))}, errTimeout.Error()},
		"an event without a header":  {&fake{unasked: string(packet("\xff\xff\xff\xff"))}, "4 bytes"},
		"an event without a path":    {&fake{unasked: string(packet(notice + "\x00\x00\x00\x02"))}, "connection closed"},
		"half a header of a result":  {&fake{bodies: map[int32]string{opMulti: "\x00\x00\x00\x02", opCreate: ""}}, errCutOff.Error()},
		"a transaction of nothing":   {&fake{bodies: map[int32]string{opMulti: last, opCreate: ""}}, "without the result of its write"},
		"a write without its result": {&fake{bodies: map[int32]string{opMulti: "\x00\x00\x00\x02" + result + last, opCreate: ""}}, "without the result of its write"},
		"names without number":       {&fake{bodies: map[int32]string{opGetData: heldLease + stat, opGetChildren2: "\xff\xff\xff\xff" + stat}}, "held"},
		"a place that fills the client's buffer": {&fake{bodies: map[int32]string{
			opGetData: heldLease + stat, opCreate: string(packet("/" + strings.Repeat("x", sendBuffer-34)))}}, "held"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				acquired, locked := c.fake.use(t)
				if acquired == nil || !strings.Contains(acquired.Error(), c.want) {
					t.Errorf("TryAcquire: err = %v, want an error with %q", acquired, c.want)
				}
				if locked == nil || strings.Contains(locked.Error(), "panic") {
					t.Errorf("Lock: err = %v, want an error and no panic", locked)
				}
			})
		})
	}
}

// TestHostileServer_EndlessAnswers has answers that each lead to the next request: a call ends with its caller.
func TestHostileServer_EndlessAnswers(t *testing.T) {
	noParent := "\xff\xff\xff\xff" + result + "\xff\xff\xff\x9b" + last // the transaction's error, for which the Prefix is made
	for name, orphan := range map[string]string{"a prefix that vanishes": "", "a parent that vanishes": "/parent/prefix"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				f := &fake{bodies: map[int32]string{opMulti: noParent}, orphan: orphan, silentAt: 1000, onRequest: func(n int64) {
					if n == 100 {
						cancel()
					}
				}}
				l := New("fake:2181")
				defer l.Close()
				l.Dial, l.Prefix = f.dial, "/parent/prefix"
				l.TryAcquire(ctx, "key", time.Minute)
				synctest.Wait()
				if n := f.requests.Load(); n > 110 {
					t.Errorf("%d requests, of which 100 had a caller", n)
				}
				cancel()
			})
		})
	}
}

// TestReconnect_CredentialsNotSent has connections on which the Write of the credentials fails after the handshake.
// The Locker connects again, and ends.
func TestReconnect_CredentialsNotSent(t *testing.T) {
	const opSetAuth = 100
	for name, c := range map[string]struct {
		failures int64                                  // connections in a row
		fail     func(c net.Conn, next <-chan struct{}) // until the client connects again, or sooner
	}{
		"a server that stops reading": {1, func(c net.Conn, next <-chan struct{}) {
			time.Sleep(time.Second)
			c.Write(packet(pong)) // from now on the client waits longer for a reply than for its Write
			<-next
		}},
		// The client notices the end in its Write or in its Read.
		"a server that ends the connection": {20, func(net.Conn, <-chan struct{}) {}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var first net.Conn
				next := make(chan struct{}) // closed after the failures
				f := &fake{bodies: map[int32]string{opSetAuth: "", opGetData: heldLease + stat}}
				f.onWelcome = func(n int64, conn net.Conn) bool {
					switch {
					case n == 1:
						first = conn
					case n <= 1+c.failures:
						c.fail(conn, next)
						return false
					default:
						close(next)
					}
					return true
				}
				l := New("fake:2181")
				defer l.Close()
				l.Dial, l.AuthScheme, l.Auth = f.dial, "digest", []byte("bellwether:secret")
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				acquire := func() error {
					_, err := l.TryAcquire(ctx, "key", time.Minute)
					return err
				}
				if err := acquire(); !errors.Is(err, driver.ErrHeld) {
					t.Fatalf("TryAcquire: err = %v, want %v", err, driver.ErrHeld)
				}
				first.Close()
				err := acquire()
				for !errors.Is(err, driver.ErrHeld) && ctx.Err() == nil {
					err = acquire() // its request was lost with too many connections
				}
				if !errors.Is(err, driver.ErrHeld) {
					t.Errorf("TryAcquire over another connection: err = %v, want %v", err, driver.ErrHeld)
				}
				if got, want := f.handshakes.Load(), 2+c.failures; got != want {
					t.Errorf("%d handshakes, want %d", got, want)
				}
			})
		})
	}
}

func FuzzReply(f *testing.F) {
	for _, op := range []int32{opCreate, opGetData, opSetData, opGetChildren2, opMulti} {
		for _, body := range []string{"", "\x00\x00\x00\x02", "\xff\xff\xff\xff" + stat, "\x00\x00\x00\x05" + result + stat + last} {
			f.Add(op, body)
		}
	}
	f.Fuzz(func(t *testing.T, op int32, body string) {
		synctest.Test(t, func(t *testing.T) {
			server := &fake{bodies: map[int32]string{op: body}, silentAt: 100}
			server.use(t)
		})
	})
}
