// Package etcdlock is a [driver.Locker] and a [driver.Watcher] on etcd
// 3.4 or later (it is tested with 3.4.23), by the client
// go.etcd.io/etcd/client/v3. Its leases are [driver.Tokener]s.
//
// A lease is a key. Its value names the holder by a random token, the length of
// the lease in milliseconds, and how often it was renewed. The steps are those
// of the classic leader-election lock; each is one transaction, which compares
// and acts in one round trip:
//
//  1. Compare and swap. Acquire puts the key if its create revision is 0, else
//     gets it, so that a refusal says in the same round trip whose the lease is
//     and how long it was announced to be.
//  2. Time to live. The length is in the value. Whoever has seen one and the
//     same value for its whole announced length, on a monotonic clock of its
//     own that began after the reply was read, takes the key over if its mod
//     revision is still the one seen. Of several who try, etcd lets one win.
//  3. Renewal. Renew puts the next count and length if the mod revision is the
//     lease's own.
//  4. Versioned unlock. Release deletes the key if the mod revision is the
//     lease's own.
//  5. Watch instead of poll. A process watches a key that somebody in it waits
//     for, once, from the revision after the one that TryAcquire saw: nothing
//     is missed, and nothing is asked twice.
//
// The fencing token is the revision of the transaction that took the lease.
//
// # The etcd leases
//
// Step 2 is there because an etcd lease lasts whole seconds, and at least one
// and a half election time-outs (2 s by default). Here etcd leases only sweep
// up: each key hangs on one, so that what a dead process leaves behind goes away
// although nobody asks for it. A Locker has one etcd lease at a time for all its
// keys of a like length; it serves new keys for about ten seconds and is never
// kept alive. An expired one has nothing on it but what is over: it outlives
// every lease that hangs on it.
//
// The two usual ways were measured beside this one (BenchmarkWays; ways.txt, on
// a busy machine, where the counts are firmer than the times). An etcd lease for
// each held key costs three requests in the place of two for an acquire and its
// release, and three in the place of one for a try that is refused: about 1.4
// and 3.3 times as long. A session, one etcd lease that is kept alive, costs as
// much as this, and ties all keys to it: a process that is paused, or cut off,
// for longer than the session's time loses leases that it has announced for
// longer, and all of them.
//
// # Costs
//
// Round trips: acquire 1, refused 1, take over 2, renew 1, release 1, watch 0.
// A Locker's first acquire, and about one in ten seconds after it, costs one
// more, for the etcd lease. Each is an entry in the raft log, the refused
// acquire included, so its time is that of a write to a majority's disks. A
// watch is one message each way on a stream that all watches of the client
// share, and another when it ends.
//
// A released lease is taken as soon as its watchers have heard; a dead holder's
// when its announced length is over, counted from its last renewal where
// somebody watched it, else from when the first look saw it. Etcd's own expiry,
// which comes through the watches too, takes up to ten seconds and twice the
// lease's length longer, and matters only where nobody waits.
//
// # Limits
//
// History: etcd keeps each change until it is compacted, about 200 bytes for a lease
// that was taken and released. Turn auto-compaction on (--auto-compaction-mode periodic
// --auto-compaction-retention 1h). Without it the database reaches its quota, etcd
// raises the alarm NOSPACE, and no lease is taken any more.
//
// Partition: a member without a majority answers nothing, so on its side nobody
// acquires or renews, and its watches end. Leases end there as their holders
// count, and the other side takes over no sooner.
//
// Restart: etcd keeps keys and etcd leases on disk, so a lease outlives the
// restart of a member, of all members, and a change of leader; etcd begins the
// time of its own leases anew then, which only makes them longer. Watches go on
// where they were. A cluster restored from a backup, or emptied, has lost what
// was newer; holders find that out when they renew. Its revisions run backwards,
// so tokens may too, and a watch from before it hears nothing until its caller's
// timer for HeldError.Until.
//
// Clocks: no two machines' are compared. Lengths are counted on monotonic
// clocks, which are trusted to run at like speeds for a lease's length. A process
// whose clock stands still, because its machine sleeps, believes in its lease
// for too long; that is what the store's epochs, and Token, are for.
//
// A request whose reply is lost with its connection is sent once more. A
// repeated acquire finds its own token and succeeds. A repeated release finds
// nothing, and reports ErrLeaseLost for a lease that the first attempt has
// freed. If the second attempt gets no answer either, the acquire fails, and may
// leave a key that nobody holds; it blocks its lease for no longer than it
// announces.
//
// Users with passwords: the client (3.7.3, with etcd 3.4.23) cannot renew a token
// that has ended. From then on each of its calls runs into its time-out, until
// the client is made anew. A simple token, etcd's default, ends when it was not
// used for five minutes, and at times with etcd's restart; a JWT when its time is
// over. Users by client certificates (--client-cert-auth, without Username) have
// no token, and outlast both.
//
// A lease longer than a hundred years is shortened to that.
//
// # The client
//
// The client logs failed requests by itself, to stderr, unless its
// Config.Logger is set. While etcd is out of reach its calls wait, so that the
// end of a context, or ten seconds, is what such a call is told by. Set
// DialKeepAliveTime and DialKeepAliveTimeout, or a
// connection that is dead without having been closed is found out only by the
// kernel, and watches hear nothing until then.
package etcdlock
