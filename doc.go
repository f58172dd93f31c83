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
// # One key's life
//
// A value is fresh for its TTL, and is served from the near tier, the decoded
// values in this process. After that it is stale, and may still be served at
// once in its stale-while-revalidate window, while a rebuild runs behind it, or
// in its stale-if-error window, if rebuilds fail. After its windows it is
// expired.
//
// Callers of a key that has to be rebuilt share one flight per process. The
// flight looks into the [Store], the tier that the fleet shares; if that has
// nothing fresh, it stands for election by the [Locker]. The elected holder
// claims an epoch from the store, runs the load, commits the value under its
// epoch, and releases its lease, which wakes the flights of the other
// processes; they find the value in the store. A commit is refused if a later
// epoch was committed or the key was invalidated meanwhile, so that a holder
// that was paused, or read before an invalidation, cannot bring an old value
// back.
//
// # What callers can rely on
//
// A rebuild belongs to no caller: it goes on if its first caller leaves, and
// its value is kept if all have left. A failed rebuild answers everybody who
// waits for it, in every process, and is tried again by one caller after a
// pause that grows. A load that panics, calls runtime.Goexit or never returns
// is a failed rebuild. If the store or the locker does not answer, each process
// goes on by itself, with a bound on its rebuilds, and without paying for the
// outage call by call.
package bellwether
