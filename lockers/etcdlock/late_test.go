package etcdlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
)

// oneKey is an etcd with one key, on the bubble's clock.
type oneKey struct {
	clientv3.KV // its other methods are not called

	mu       sync.Mutex       // guards the fields below
	silent   bool             // no transaction has an answer
	cutOff   bool             // the transactions after the first silent one fail at once
	late     *oneTxn          // the first transaction without an answer
	asked    int              // transactions
	unheard  int              // the replies to so many more transactions are lost
	learner  int              // so many more transactions reach a learner
	noLeader int              // so many more transactions reach a member without a leader
	kv       *mvccpb.KeyValue // nil if missing
	revision int64
	lose     chan struct{} // the next transaction is lost; its sender learns so when this is closed
	panics   chan struct{} // the client panics with the next transaction's reply when this is closed
}

func (k *oneKey) Txn(ctx context.Context) clientv3.Txn { return &oneTxn{ctx: ctx, etcd: k} }

// over returns a Locker over the fakes, closed at the end of the test.
func over(t *testing.T, etcd *oneKey, granting *leases) *Locker {
	client := clientv3.NewCtxClient(context.Background())
	client.KV, client.Lease = etcd, granting
	l := New(client)
	t.Cleanup(func() { l.Close() })
	return l
}

type oneTxn struct {
	ctx  context.Context
	etcd *oneKey
	cmp  clientv3.Cmp
	op   clientv3.Op
}

func (t *oneTxn) If(cmps ...clientv3.Cmp) clientv3.Txn { t.cmp = cmps[0]; return t }
func (t *oneTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.op = ops[0]; return t }
func (t *oneTxn) Else(...clientv3.Op) clientv3.Txn     { return t }

func (t *oneTxn) Commit() (*clientv3.TxnResponse, error) {
	k := t.etcd
	k.mu.Lock()
	k.asked++
	silent, lost, cutOff := k.silent, k.lose, k.silent && k.cutOff && k.late != nil
	k.lose = nil
	if k.noLeader > 0 {
		k.noLeader--
		if md, _ := metadata.FromOutgoingContext(t.ctx); len(md.Get(rpctypes.MetadataRequireLeaderKey)) > 0 {
			k.mu.Unlock()
			return nil, rpctypes.ErrNoLeader
		}
		silent = true
	}
	if silent && k.late == nil {
		k.late = t
	}
	k.mu.Unlock()
	if cutOff {
		return nil, status.Error(codes.Unavailable, "connection refused")
	}
	if silent {
		<-t.ctx.Done()
		return nil, t.ctx.Err()
	}
	if lost != nil {
		<-lost
		return nil, status.Error(codes.Unavailable, "etcdserver: request timed out, possibly due to previous leader failure")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.learner > 0 {
		k.learner--
		return nil, errLearner
	}
	resp := &clientv3.TxnResponse{Header: &pb.ResponseHeader{}}
	cmp := t.cmp.GetCompare()
	if k.kv == nil {
		resp.Succeeded = cmp.GetTarget() == pb.Compare_CREATE
	} else {
		resp.Succeeded = cmp.GetTarget() == pb.Compare_MOD && cmp.GetModRevision() == k.kv.ModRevision
	}
	if resp.Succeeded {
		k.revision++
		k.kv = nil
		if t.op.IsPut() {
			k.kv = &mvccpb.KeyValue{Value: t.op.ValueBytes(), ModRevision: k.revision}
		}
	} else {
		got := &pb.RangeResponse{}
		if k.kv != nil {
			got.Kvs = []*mvccpb.KeyValue{k.kv}
		}
		resp.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseRange{ResponseRange: got}}}
	}
	resp.Header.Revision = k.revision
	if panics := k.panics; panics != nil {
		k.panics = nil
		k.mu.Unlock()
		defer k.mu.Lock()
		<-panics
		panic("the client is broken")
	}
	if k.unheard > 0 {
		k.unheard--
		return nil, status.Error(codes.Unavailable, "transport is closing")
	}
	return resp, nil
}

// TestRenew_GivenUpAndLate has an abandoned renewal go on after the next one has succeeded.
func TestRenew_GivenUpAndLate(t *testing.T) {
	for name, hold := range map[string]func(*oneKey, *leases) (goOn func()){
		"a transaction lost with its leader": func(etcd *oneKey, _ *leases) func() {
			lost := make(chan struct{})
			etcd.lose = lost
			return func() { close(lost) }
		},
		"a slow etcd lease": func(_ *oneKey, granting *leases) func() {
			granting.takes = 7 * time.Second
			return func() { time.Sleep(7 * time.Second) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd, granting := &oneKey{}, &leases{}
				l := over(t, etcd, granting)
				lease, err := l.TryAcquire(t.Context(), "key", time.Minute)
				if err != nil {
					t.Fatal(err)
				}

				goOn := hold(etcd, granting)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if err := lease.Renew(ctx, 2*time.Second); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("Renew: err = %v, want the context's", err)
				}
				leasetest.Renew(t, lease, time.Minute)
				goOn()
				synctest.Wait()

				if announced, _ := adapter.DecodeAnnouncement(etcd.kv.Value); announced.Length != time.Minute {
					t.Errorf("observers are told of %v, and the holder of a minute", announced.Length)
				}
				time.Sleep(2 * time.Second)
				leasetest.Renew(t, lease, time.Minute) // of a lease renewed for a minute
				if etcd.kv == nil {
					t.Error("the holder has given its own lease back")
				}
			})
		})
	}
}

// TestRenew_ShorterWithoutAnAnswer: other processes may count the shorter length, so the holder counts no longer.
func TestRenew_ShorterWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &oneKey{}
		l := over(t, etcd, &leases{})
		lease, err := l.TryAcquire(t.Context(), "key", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		etcd.unheard = 2 // the request, and the same once more
		leasetest.MustBeNoAnswer(t, "Renew without a reply", lease.Renew(t.Context(), time.Minute))
		time.Sleep(time.Minute)
		leasetest.MustBeLost(t, "Renew after the shorter length", lease.Renew(t.Context(), time.Hour))
	})
}

// TestTryAcquire_GivenUpBeforeItAsked undoes nothing: an undo would be load on an engine in trouble.
func TestTryAcquire_GivenUpBeforeItAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &oneKey{}
		l := over(t, etcd, &leases{takes: time.Second, err: errors.New("etcd is away")})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := l.TryAcquire(ctx, "key", time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("TryAcquire: err = %v, want the context's", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if etcd.asked != 0 {
			t.Errorf("%d transactions of an acquire that got no etcd lease, want none", etcd.asked)
		}
	})
}

// TestTryAcquire_CarriedOutLate has an etcd that was paused or cut off take a lease long after its
// caller has left.
func TestTryAcquire_CarriedOutLate(t *testing.T) {
	t.Run("paused", func(t *testing.T) { testCarriedOutLate(t, &oneKey{silent: true}) })
	t.Run("cut off", func(t *testing.T) { testCarriedOutLate(t, &oneKey{silent: true, cutOff: true}) })
}

func testCarriedOutLate(t *testing.T, etcd *oneKey) {
	synctest.Test(t, func(t *testing.T) {
		l := over(t, etcd, &leases{})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := l.TryAcquire(ctx, "key", time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("TryAcquire: err = %v, want the context's", err)
		}
		time.Sleep(45 * time.Second)
		etcd.mu.Lock()
		etcd.silent = false
		etcd.mu.Unlock()
		if resp, err := etcd.late.Commit(); err != nil || !resp.Succeeded {
			t.Fatalf("%v, %v; want the lease taken", resp, err)
		}
		time.Sleep(detachedTimeout)
		synctest.Wait()
		if etcd.kv != nil {
			t.Error("a key without a holder is left")
		}
	})
}

// TestLearner has transactions reach a learner, as while a member is added: they are sent again.
func TestLearner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &oneKey{learner: maxLearners}
		l := over(t, etcd, &leases{})
		lease := leasetest.Acquire(t, l, "key", time.Minute)
		etcd.learner = maxLearners
		leasetest.Renew(t, lease, time.Minute)
		etcd.learner = maxLearners
		leasetest.Release(t, lease)
		etcd.learner = maxLearners + 1
		if _, err := l.TryAcquire(t.Context(), "key", time.Minute); !errors.Is(err, errLearner) || !strings.Contains(err.Error(), "Endpoints") {
			t.Errorf("TryAcquire: err = %v, want %v with the remedy", err, errLearner)
		}
	})
}

// TestNoLeader has transactions reach a member that is cut off from its cluster: they go to another member, and the
// last one was not carried out.
func TestNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &oneKey{noLeader: 3}
		l, start := over(t, etcd, &leases{noLeader: 3}), time.Now()
		lease := leasetest.Acquire(t, l, "key", time.Minute)
		etcd.noLeader = 3
		leasetest.Renew(t, lease, time.Minute)
		etcd.noLeader = 3
		leasetest.Release(t, lease)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("three calls took %v", took)
		}

		etcd.noLeader = 1 << 20
		leasetest.MustGiveUp(t, "TryAcquire without a leader", func(ctx context.Context) error {
			_, err := l.TryAcquire(ctx, "key", time.Minute)
			return err
		})
		synctest.Wait()
		asked := etcd.asked
		time.Sleep(time.Minute)
		if etcd.asked != asked {
			t.Errorf("%d transactions after the caller has left, want none", etcd.asked-asked)
		}
	})
}

// TestTryAcquire_ClientPanicsLate has the client panic, after its caller has left, with a transaction that was carried
// out: the lease is undone.
func TestTryAcquire_ClientPanicsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := make(chan struct{})
		etcd := &oneKey{panics: lost}
		l := over(t, etcd, &leases{})
		leasetest.MustGiveUp(t, "TryAcquire", func(ctx context.Context) error {
			_, err := l.TryAcquire(ctx, "key", time.Minute)
			return err
		})
		close(lost)
		synctest.Wait()
		if etcd.kv != nil {
			t.Error("the lease is held without a holder")
		}
	})
}
