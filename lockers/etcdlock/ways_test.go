package etcdlock_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/etcdlock"
)

// The benchmark here compares the Locker's etcd leases with the two usual ways: an etcd lease for
// each key, and a session kept alive.

func counted(tb testing.TB, addr string, n *atomic.Int64) *clientv3.Client {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{addr}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			n.Add(1)
			return invoke(ctx, method, req, reply, cc, opts...)
		})},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close() })
	return client
}

// A way takes a key and returns a function that frees it, or ErrHeld.
type way func(ctx context.Context, key string) (release func(context.Context) error, err error)

func absent(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
}

func leasePerKey(client *clientv3.Client) way {
	return func(ctx context.Context, key string) (func(context.Context) error, error) {
		granted, err := client.Grant(ctx, 60)
		if err != nil {
			return nil, err
		}
		revoke := func(ctx context.Context) error {
			_, err := client.Revoke(ctx, granted.ID)
			return err
		}
		resp, err := client.Txn(ctx).If(absent(key)).Then(clientv3.OpPut(key, "token", clientv3.WithLease(granted.ID))).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return nil, err
		}
		if !resp.Succeeded {
			return nil, errors.Join(driver.ErrHeld, revoke(ctx))
		}
		return revoke, nil
	}
}

// oneSession attaches all keys to one etcd lease that is kept alive.
func oneSession(tb testing.TB, client *clientv3.Client) way {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { session.Close() })
	return func(ctx context.Context, key string) (func(context.Context) error, error) {
		resp, err := client.Txn(ctx).If(absent(key)).Then(clientv3.OpPut(key, "token", clientv3.WithLease(session.Lease()))).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return nil, err
		}
		if !resp.Succeeded {
			return nil, driver.ErrHeld
		}
		revision := resp.Header.Revision
		return func(ctx context.Context) error {
			_, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key)).Commit()
			return err
		}, nil
	}
}

func thisLocker(tb testing.TB, client *clientv3.Client) way {
	l := etcdlock.New(client)
	tb.Cleanup(func() { l.Close() })
	return func(ctx context.Context, key string) (func(context.Context) error, error) {
		lease, err := l.TryAcquire(ctx, key, time.Minute)
		if err != nil {
			return nil, err
		}
		return lease.Release, nil
	}
}

func BenchmarkWays(b *testing.B) {
	server := testserver.Etcd(b)
	var n atomic.Int64
	client := counted(b, server.Addr, &n)
	for _, w := range []struct {
		name string
		take way
	}{
		{"Locker", thisLocker(b, client)},
		{"LeasePerKey", leasePerKey(client)},
		{"OneSession", oneSession(b, client)},
	} {
		b.Run("AcquireAndRelease/"+w.name, func(b *testing.B) {
			n.Store(0)
			for i := 0; b.Loop(); i++ {
				release, err := w.take(b.Context(), "free"+strconv.Itoa(i%100))
				if err != nil {
					b.Fatal(err)
				}
				if err := release(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n.Load())/float64(b.N), "requests/op")
		})
		b.Run("TryHeld/"+w.name, func(b *testing.B) {
			release, err := w.take(b.Context(), "held")
			if err != nil {
				b.Fatal(err)
			}
			n.Store(0)
			for b.Loop() {
				if _, err := w.take(b.Context(), "held"); !errors.Is(err, driver.ErrHeld) {
					b.Fatalf("err = %v, want ErrHeld", err)
				}
			}
			b.ReportMetric(float64(n.Load())/float64(b.N), "requests/op")
			if err := release(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
