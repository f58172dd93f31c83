// Package bellwether protects origins from cache stampedes.
//
// When a value expires, one caller in the whole fleet rebuilds the value. All other callers get the
// stale value or share the new value. There are three forms of use. [New] returns a loading cache:
//
//	users := bellwether.New(loadUser, bellwether.Options{TTL: time.Minute})
//	u, err := users.Get(ctx, "42")
//
// [NewBatch] returns a loading cache whose load takes many keys:
//
//	users := bellwether.NewBatch(loadUsers, bellwether.Options{TTL: time.Minute})
//	found, err := users.GetMany(ctx, []string{"41", "42"})
//
// [NewMiddleware] caches the responses of http.Handlers, as a shared cache by RFC 9111:
//
//	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
//	r.Use(mw.Handler)
//
// # Words
//
// A load is the user's function, or the handler behind the middleware. The load asks the origin. A
// rebuild is an election, a load and a commit. A flight is a rebuild, or the wait for another
// process's rebuild, with its callers in this process. The locker elects the holder of a key's
// lease. The store keeps entries for the fleet. The near tier keeps values in this process.
//
// A value is fresh for its TTL. In its StaleWhileRevalidate window a stale value is served at once,
// while a rebuild runs behind the callers. In its StaleIfError window a stale value is served if the
// rebuild fails. After both windows the value is expired. An invalidated value is not served at any
// age.
//
// # Promises
//
// No caller owns a rebuild. The rebuild goes on when its first caller leaves, and its value is kept
// when all callers have left. A caller's context bounds only that caller's wait.
//
// All waiting callers share a failure, in every process, or in one process if the failure is
// context.Canceled. After a pause that grows with each failure, one caller tries again. A load that
// panics, calls runtime.Goexit or does not return in time is a failure.
//
// The store refuses a commit after a later commit or an invalidation of the key. A holder that
// paused, or read before an invalidation, cannot bring an old value back. This holds even if the
// locker elects two holders.
//
// If the store or the locker does not answer, each process rebuilds for itself, at most MaxRebuilds
// keys at one time. During the outage a few calls ask the engines again, and other calls do not wait.
//
// # Fleets
//
// A cache without a Store is alone in its process. With a Store, processes share values. With a
// Locker too, one process makes each value:
//
//	users := bellwether.New(loadUser, bellwether.Options{
//		TTL: time.Minute,
//		Fleet: bellwether.Fleet{
//			Store: redisstore.New(rdb), Locker: redislock.New(rdb), Namespace: "users",
//		},
//	})
//
// The packages below stores and lockers combine freely. In the repository, docs/engines.md compares
// the engines, docs/http.md explains the middleware, and docs/operations.md helps to choose times
// and metrics.
package bellwether
