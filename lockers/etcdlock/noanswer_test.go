package etcdlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
)

// silence is an etcd that carries out the first transaction and answers no later one.
type silence struct {
	clientv3.KV // its other methods are not called
	answered    bool
}

func (s *silence) Txn(ctx context.Context) clientv3.Txn { return &transaction{ctx, s} }

type transaction struct {
	ctx  context.Context
	etcd *silence
}

func (t *transaction) If(...clientv3.Cmp) clientv3.Txn  { return t }
func (t *transaction) Then(...clientv3.Op) clientv3.Txn { return t }
func (t *transaction) Else(...clientv3.Op) clientv3.Txn { return t }

func (t *transaction) Commit() (*clientv3.TxnResponse, error) {
	if !t.etcd.answered {
		t.etcd.answered = true
		return &clientv3.TxnResponse{Header: &pb.ResponseHeader{Revision: 1}, Succeeded: true}, nil
	}
	<-t.ctx.Done()
	return nil, t.ctx.Err()
}

// TestNoAnswer has callers without a deadline: their error is neither an answer nor a context's.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientv3.NewCtxClient(context.Background())
		client.KV, client.Lease = &silence{}, &leases{}
		l := New(client)
		defer l.Close()
		lease, err := l.TryAcquire(t.Context(), "held", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		lockertest.Down(t, l, lease)
		for name, call := range map[string]func(context.Context) error{
			"TryAcquire": func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "free", time.Hour); return err },
			"Renew":      func(ctx context.Context) error { return lease.Renew(ctx, time.Hour) },
			"Release":    lease.Release,
		} {
			start := time.Now()
			err := call(t.Context())
			if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLeaseLost) ||
				errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: err = %v", name, err)
			}
			if took := time.Since(start); took != detachedTimeout {
				t.Errorf("%s gave up after %v, want %v", name, took, detachedTimeout)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: err = %v, want the context's", name, err)
			}
			cancel()
			time.Sleep(time.Minute) // the requests behind the caller end
		}
	})
}
