package zklock_test

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// BenchmarkAcquireRelease is beside its floor: the client's own create and delete, also two writes.
func BenchmarkAcquireRelease(b *testing.B) {
	server := testserver.ZooKeeper(b)
	b.Run("zklock", func(b *testing.B) {
		l := newLocker(b, server.Addr)
		for b.Loop() {
			lease, err := l.TryAcquire(b.Context(), "k", time.Minute)
			if err != nil {
				b.Fatal(err)
			}
			if err := lease.Release(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		conn, _, err := zk.Connect([]string{server.Addr}, 10*time.Second, zk.WithLogInfo(false))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		for b.Loop() {
			if _, err := conn.Create("/bare", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
				b.Fatal(err)
			}
			if err := conn.Delete("/bare", -1); err != nil {
				b.Fatal(err)
			}
		}
	})
}
