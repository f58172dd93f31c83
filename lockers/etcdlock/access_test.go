package etcdlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/etcdlock"
)

// TestAccess has an etcd with users: the error for a client without leave has the remedy, which works at once.
func TestAccess(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	stranger, admin := newLocker(t, server.Addr), newClient(t, server.Addr)
	locker := func(user string) (*etcdlock.Locker, *clientv3.Client) {
		t.Helper()
		client := clientOf(t, clientv3.Config{Endpoints: []string{server.Addr}, Username: user, Password: user})
		l := etcdlock.New(client)
		t.Cleanup(func() { l.Close() })
		return l, client
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(l *etcdlock.Locker, want error, remedy string) {
		t.Helper()
		if _, err := l.TryAcquire(t.Context(), newKey(), time.Minute); !errors.Is(err, want) || !strings.Contains(err.Error(), remedy) {
			t.Errorf("TryAcquire: err = %v, want %v with %q", err, want, remedy)
		}
	}
	must(admin.RoleAdd(t.Context(), "fleet"))
	for user, role := range map[string]string{"root": "root", "bellwether": "fleet"} {
		must(admin.UserAdd(t.Context(), user, user))
		must(admin.UserGrantRole(t.Context(), user, role))
	}
	must(admin.AuthEnable(t.Context()))
	refused(stranger, rpctypes.ErrUserEmpty, "Username")
	l, _ := locker("bellwether")
	refused(l, rpctypes.ErrPermissionDenied, l.Prefix)
	_, root := locker("root")
	must(root.RoleGrantPermission(t.Context(), "fleet", l.Prefix, clientv3.GetPrefixRangeEnd(l.Prefix), clientv3.PermissionType(clientv3.PermReadWrite)))
	leasetest.Release(t, leasetest.Acquire(t, l, newKey(), time.Minute))
}
