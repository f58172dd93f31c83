// Package etcdlock is a [driver.Locker] and a [driver.Watcher] on etcd 3.4 or later, over the
// client go.etcd.io/etcd/client/v3.
//
// It is tested with etcd 3.4.23. Its leases are [driver.Tokener]s. A lease is a key with the holder's random
// token, the length of the lease in milliseconds, and the number of renewals. Each step is one transaction:
//
//  1. Acquire puts the key if its create revision is 0, and else gets the holder and the announced length.
//  2. A Locker takes over a key seen with the same value for its whole announced length, if token and mod
//     revision are unchanged. It counts from after the reply, on its own monotonic clock. Of several Lockers,
//     etcd lets one win.
//  3. Renew puts the next count and length if token and mod revision are the lease's own.
//  4. Release deletes the key if token and mod revision are the lease's own.
//  5. A process watches a key once for all its waiters, from the revision after TryAcquire's look: no event
//     is missed. A look from before the present holder begins a second watch.
//
// The fencing token is the revision of the transaction that took the lease.
//
// # The etcd leases
//
// Step 2 exists because an etcd lease lasts whole seconds, and at least one and a half election time-outs (2
// s by default). Here etcd leases only sweep up the keys of a dead process. A Locker has one etcd lease at a
// time for all its keys of a like length. It takes new keys for about ten seconds and is never kept alive. It
// outlives every lease attached to it, so its expiry removes only ended leases. The two usual ways were
// measured beside this one (BenchmarkWays, ways.txt). An etcd lease for each held key costs three requests
// instead of two for an acquire and its release, and three instead of one for a refused try. A session, one
// etcd lease kept alive, costs the same as this way. But a process paused or cut off for longer than the
// session's time loses all its leases, even longer ones.
//
// # Costs
//
// Round trips: acquire 1, refused 1, take over 2, renew 1, release 1, watch 0. About one acquire in ten
// seconds costs one more, for the etcd lease. Each request, even a refused acquire, is an entry in the raft
// log, so it takes as long as a write to a majority's disks. A watch is one message each way on a stream
// shared by all watches of the client, and another at its end. A dead holder's lease is taken at the end of
// its announced length, counted from its last renewal if a watcher saw it, else from the first look.
//
// # Limits
//
// History: etcd keeps about 200 bytes for each lease taken and released until compaction. Turn
// auto-compaction on (--auto-compaction-mode periodic --auto-compaction-retention 1h). At its quota etcd
// raises the alarm NOSPACE, and no lease is taken any more.
//
// Partition: a member cut off from the majority refuses each request as soon as it has lost its leader, within
// two election time-outs. The request then goes to another member. A process that reaches no other member
// acquires and renews nothing, and its watches end. Restart: a lease outlives the restart of all members and a
// change of leader, which only lengthen etcd leases. Watches go on without a gap.
//
// Lost data: a cluster restored from a backup, or emptied, has lost newer leases. Until a holder's next Renew
// or Release, two holders may believe in the lease, and the store's epochs let only one of them write.
// Revisions run backwards, so tokens may too, and an older watch hears nothing until its caller's timer.
//
// Clocks: lengths, of at most a hundred years, are counted on monotonic clocks, assumed to run at like
// speeds. Clocks of two machines are never compared. A process whose machine sleeps believes in its lease for
// too long; the store's epochs, and Token, protect against it.
//
// Lost replies: a request is sent once more. A repeated acquire finds its own token and succeeds. A repeated
// release finds nothing, and reports ErrLeaseLost for a lease freed by the first attempt. Without a second
// answer the acquire fails and may leave a key without a holder, for at most the announced length.
//
// Pause: an etcd that is paused or cut off may carry out an abandoned request late. An acquire whose caller
// has left is undone in the background, in up to five attempts of ten seconds. Carried out after the last
// attempt, or after an attempt that found no key, it leaves a key without a holder too.
//
// Users with passwords: the client (3.7.3, with etcd 3.4.23) cannot renew an ended auth token. From then on
// each of its calls runs into its time-out, until the client is made anew. A simple token, etcd's default,
// ends after five minutes without use, and at times with etcd's restart; a JWT ends at its expiry. Users with
// client certificates (--client-cert-auth, without Username) have no token.
//
// # The client
//
// The client logs failed requests to stderr, unless its Config.Logger is set. Its calls wait while etcd is
// out of reach, until the end of their context or for ten seconds. Set DialKeepAliveTime and
// DialKeepAliveTimeout. Otherwise a silent member keeps its share of the calls, each of which times out, and
// watches hear nothing from it, until the kernel detects a dead connection.
package etcdlock
