// Package bellwether keeps a cache's callers from trampling its origin: when a
// value expires, one caller in the whole fleet rebuilds it, and the herd
// follows.
//
// It has two faces over one engine. [Cache] is a loading cache:
//
//	users := bellwether.New(loadUser, bellwether.Options{TTL: time.Minute})
//	u, err := users.Get(ctx, "42")
//
// [Middleware] caches the responses of http.Handlers:
//
//	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
//	r.Use(mw.Handler)
//
// # The words
//
// A load is the user's function, or the handler behind the middleware; what it
// asks is the origin. A rebuild is a load with all that belongs to it: the
// election before, the commit after. Callers of a key that is being rebuilt
// collapse: they share one flight, which is a rebuild, or the wait for another
// process's, with its callers in this process. The locker elects the holder of a
// key's lease; the store keeps entries for the fleet; the near tier keeps values
// in this process. A value is fresh, then stale, then expired, and is
// invalidated when it must not be served any more, whatever its age.
//
// # One key's life
//
// A value is fresh for its TTL, and is served from the near tier. After that it
// is stale, and may still be served at once in its stale-while-revalidate
// window, while a rebuild runs behind it, or in its stale-if-error window, if
// rebuilds fail. After its windows it is expired.
//
// A flight looks into the [driver.Store] first. If that has nothing fresh, it stands
// for election by the [driver.Locker]. The elected holder claims an epoch from the
// store, runs the load, commits the value under its epoch, and releases its
// lease, which wakes the flights of the other processes; they find the value in
// the store. A commit is refused if a later epoch was committed or the key was
// invalidated meanwhile, so that a holder that was paused, or read before an
// invalidation, cannot bring an old value back. The locker only elects, and may
// be wrong when its engine fails; the store fences.
//
// # What callers can rely on
//
// A rebuild belongs to no caller: it goes on if its first caller leaves, and
// its value is kept if all have left. A caller's context bounds its own wait and
// nothing else. A failed rebuild answers everybody who waits for it, in every
// process (in one, if it is context.Canceled), and is tried again by one caller
// after a pause that grows. A load that panics, calls runtime.Goexit or never
// returns is a failed rebuild. If the
// store or the locker does not answer, each process goes on by itself, with a
// bound on its rebuilds, and without paying for the outage call by call.
//
// # A fleet
//
// Without a Store the values stay in this process and its callers elect among
// themselves. With a Store, processes share what any of them has built; with a
// Locker too, one of them builds it:
//
//	users := bellwether.New(loadUser, bellwether.Options{
//		TTL:   time.Minute,
//		Store: redisstore.New(rdb), Locker: redislock.New(rdb), Namespace: "users",
//	})
//
// Stores are in packages below stores, lockers in those below lockers; any
// locker goes with any store. Namespace keeps caches of different values apart
// on one store. docs/engines.md in the repository compares them,
// docs/operations.md says how to choose the times and what to watch.
//
// # HTTP
//
// The middleware is a shared cache by RFC 9111. What says that it may be stored
// is stored; what is private goes to its own client only, and that is decided
// before anybody else has a byte of it. Clients that wait for a response read it
// while it is written. The handler runs detached from the request that began the
// rebuild; [Middleware.Handler] says what that means for it. Cache-Status
// (RFC 9211) on each response tells what the cache has done.
package bellwether
