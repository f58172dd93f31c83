// Package zklock is a [driver.Locker] and a [driver.Watcher] on
// ZooKeeper, by the client github.com/go-zookeeper/zk, and beside it a fair
// mutex, [Locker.Lock].
//
// A lease is a pair of ephemeral nodes that come and go in one transaction:
//
//	/bellwether/KEY:lease     "TOKEN 5000": whose it is, and for how many ms
//	/bellwether/TOKEN:holder  its identity, with a name that no other ever has
//
// The first excludes others. The second tells this lease from all others of the
// key: a node's version begins anew with each node, so two leases of one key may
// well have the same version, and who deletes by version alone deletes another's.
// The protocol:
//
//  1. Acquire is one transaction that creates the pair. (Its last operation
//     writes the data again, because only that returns the node's czxid.) If it
//     is refused, a read shows whose the lease is and how long it was announced
//     to be.
//  2. Renew is one transaction: check that the holder's node is there, write the
//     new length.
//  3. Release is one transaction that deletes the pair.
//  4. A holder that falls silent while its session lives is taken over by whoever
//     has seen one and the same mzxid for the whole announced length, by its own
//     monotonic clock: one transaction deletes that holder's node and the lease's
//     in the version seen, and creates the new pair. Of several who try, ZooKeeper
//     lets one win. No two machines' clocks are compared.
//  5. When the session ends, the pair is gone. The Locker learns of it when a
//     server says so, and closes the leases' Lost channels at that moment
//     ([driver.LossNotifier]).
//  6. A lease that its holder lets run out is removed by the holder's Locker.
//  7. Watch has ZooKeeper watch the holder's node, once for each Locker and lease,
//     however many callers wait. It asks for the node's children, of which there
//     are none: that is the watch that the node's end triggers, by release,
//     takeover or the end of a session, but no renewal. As the node's name never
//     comes again, a watch that is set after the end finds no node, and no end is
//     missed.
//
// A request whose reply was lost with the connection is made again in the same
// session. An acquire then finds its own token; a release that finds nothing
// before the lease's end was carried out the first time. What was asked for and
// is held by nobody (the caller's context has ended, the connection did not come
// back in time) is removed behind the callers, as soon as a server answers.
//
// [Locker.Lock] is a queue of ephemeral sequential nodes below a container node
// of the key; its comment tells what that costs.
//
// # Costs
//
//	acquire            1 request, a write
//	acquire, refused   2, a write and a read
//	acquire, takeover  3, two writes and a read
//	renew              1, a write
//	release            1, a write
//	watch              1, a read, for each lease and process
//
// Every write goes through the leader and to the disks of a majority. A refused
// acquire is one too, so a herd costs the ensemble a write for each process.
//
// A process has one connection, of about 2 MB, and one session, which it keeps
// alive with a ping each third of SessionTimeout. A server refuses more than
// maxClientCnxns connections from one address, 60 by default: raise it where more
// processes share a machine or reach the ensemble by one address (NAT).
//
// All leases are below one parent: nothing is left of a key that is not held,
// whatever the number of keys. The price is that a tool which lists the parent
// gets all leases at one time, and beyond some ten thousand of them no answer
// (jute.maxbuffer).
//
// # Limits
//
// A dead holder is replaced when its session ends, SessionTimeout to one tick
// more after it was last heard of, or when its lease is over, whichever comes
// first. A process that ends with [Locker.Close] gives its leases back at once.
//
// A holder that is cut off from ZooKeeper cannot know whether its session has
// ended. Its leases are lost for certain only when a server says so; until then
// renewals fail without ErrLeaseLost, and two may believe that they hold the
// lease. The Store's epochs let only one of them write, and [driver.Tokener]
// does the same for other resources: the token is the czxid, which rises as long
// as the ensemble keeps its data.
//
// A restart of servers, or of all of them, loses neither leases nor watches if the
// client is back within SessionTimeout; the ensemble counts a session's time anew
// from when it has a leader again. An ensemble without a majority answers nobody.
//
// Whoever frees a lease by hand deletes both of its nodes, KEY:lease and the
// TOKEN:holder that its data names, in one transaction (multi). With the first
// alone gone, the former holder's Renew and Release still find its own node, and
// succeed on the lease of its successor.
//
// By default the nodes may be read and changed by everybody who reaches the ensemble.
// Set [Locker.AuthScheme], [Locker.Auth] and [Locker.ACL] to keep them to the fleet. The
// missing nodes of Prefix are made with that ACL too.
//
// # Versions
//
// ZooKeeper 3.4 or later for the leases, 3.5.1 or later for Lock, which needs
// container nodes. Tested with 3.8.
package zklock
