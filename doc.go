// Package bellwether protects origins from cache stampedes.
//
// When a value expires, one caller in the whole fleet rebuilds the value. All other callers get the
// stale value or share the new value. [New] returns a loading cache, [NewBatch] a cache whose load
// takes many keys, and [NewMiddleware] a shared cache by RFC 9111 for http.Handlers:
//
//	users := bellwether.New(loadUser, bellwether.Options{TTL: time.Minute})
//	user, err := users.Get(ctx, "42")
//
//	users := bellwether.NewBatch(loadUsers, bellwether.Options{TTL: time.Minute})
//	found, err := users.GetMany(ctx, []string{"41", "42"})
//
//	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
//	r.Use(mw.Handler)
//
// A cache without engines is alone in its process. With a store, processes share values. With a
// locker too, one process makes each. An engine such as redisfleet is both:
//
//	eng := redisfleet.New(rdb) // to be closed after users
//	users := bellwether.New(loadUser, bellwether.Options{
//		TTL: time.Minute, Fleet: bellwether.Fleet{Engine: eng, Namespace: "users"},
//	})
//
// # Words
//
// A load is the user's function, or the handler behind the middleware. A rebuild is an election, a
// load and a commit. The locker elects the holder of a key's lease. The store keeps entries for the
// fleet. The near tier is in this process.
//
// A value is fresh for its TTL. Then it is stale, in one window that serves it at once while a
// rebuild runs, and in another if the rebuild fails. After both windows it is expired. An
// invalidated value is not served at any age.
//
// # Promises
//
// No caller owns a rebuild. A load goes on when its callers leave, and its value is kept. A caller's
// context bounds only that caller's wait.
//
// All waiting callers share a failure, in all processes. After a growing pause one caller tries
// again, see [Options].ErrorTTL. A load also fails by a panic, by runtime.Goexit and, without a
// pause, by RebuildTimeout.
//
// The store refuses a commit after a later commit or an invalidation of the key. So a holder that
// paused cannot bring an old value back, even if the locker elects two holders.
//
// If an engine does not answer, each process rebuilds for itself, at most MaxRebuilds loads at one
// time. During the outage a few calls ask the engine again, and other calls do not wait.
//
// In the repository, docs/fleets.md helps to choose engines, and docs/operations.md times and metrics.
package bellwether
