// Package zklock is a [driver.Locker] and a [driver.Watcher] on ZooKeeper, with a fair mutex,
// [Locker.Lock].
//
// It uses the client github.com/go-zookeeper/zk. A lease is a pair of ephemeral nodes, created and
// deleted in a single transaction:
//
//	/bellwether/KEY:lease     "TOKEN 5000": the holder and the length in ms
//	/bellwether/TOKEN:holder  its identity, under a name used only once
//
// The first node excludes other holders. The second tells the lease from all other leases of the key:
// versions begin again with each node, so a delete by version alone could hit another's lease. The protocol:
//
//  1. Acquire is one transaction that creates the pair. After a refusal, a read returns the holder and the
//     announced length.
//  2. Renew is one transaction: check that the holder's node exists, write the new length.
//  3. Release is one transaction that deletes the pair.
//  4. A Locker takes over the lease of a silent holder with a living session after it has seen the
//     same mzxid for the whole announced length, by its own monotonic clock. One transaction
//     deletes the holder's node and the lease's node in the version seen, and creates the new pair.
//     Of several Lockers, ZooKeeper lets one win. Clocks of two machines are never compared.
//  5. The pair goes with its session. When the Locker learns of the session's end from a server, it closes
//     the leases' Lost channels ([driver.LossNotifier]).
//  6. The holder's Locker removes a lease that runs out.
//  7. Watch has ZooKeeper watch the holder's node for children, once for each Locker and lease, for all
//     callers. There are none: only the node's end triggers this watch (by release, takeover or the end of a
//     session), and no renewal does. The name never comes again, so a watch set too late finds no node, and
//     no end is missed.
//
// A request whose reply was lost with the connection is repeated in the same session. An acquire then finds
// its own token. A release that finds nothing before the lease's end was carried out the first time. A node
// without a holder, as of a caller that has left, is removed in the background as soon as a server answers.
// [Locker.Lock] is a queue of ephemeral sequential nodes below a container node of the key.
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
// Every write goes to the disks of a majority: a herd costs the ensemble a write for each process. A process
// has one connection, of about 2 MB, and one session, kept alive with a ping each third of SessionTimeout.
// Raise a server's maxClientCnxns, 60 by default, if more processes share an address.
//
// All leases are below one parent, so a free key leaves no node. But a tool that lists the parent gets all
// leases at once, and no answer beyond some ten thousand (jute.maxbuffer).
//
// # Limits
//
// A dead holder is replaced when its lease ends, or earlier when its session ends: SessionTimeout to one tick
// more after its last sign of life. [Locker.Close] gives a process's leases back at once. A holder cut off
// from ZooKeeper learns of its session's end only from a server. Until then renewals fail without
// ErrLeaseLost, and two holders may believe in the lease. The Store's epochs let only one of them write.
// [driver.Tokener] does the same for other resources: the token is the czxid, which rises as long as the
// ensemble keeps its data.
//
// A restart of servers, even of all, loses neither leases nor watches if the client is back within
// SessionTimeout, counted again from the election of a leader. An ensemble that has lost its data refuses a
// Locker that has seen a later zxid. The Locker's calls fail, and Lost stays open, until other clients'
// writes have passed that zxid. A new Locker connects at once.
//
// To free a lease by hand, delete both of its nodes in one transaction (multi). With only KEY:lease deleted,
// the former holder's Renew and Release still find its own node, and succeed on the lease of its successor.
//
// A queue of Lock has room for 100,000 waiters: the Locker refuses packets of more than 4 MiB.
//
// By default every client of the ensemble may read and change the nodes: see [Locker.ACL].
//
// Under an enforced quota (enforceQuota), Prefix needs room for two nodes for each lease held at one time, and
// about 30 bytes. With local sessions (localSessionsEnabled), leases need localSessionsUpgradingEnabled too.
// Otherwise an acquire fails, with the remedy in its error.
//
// Leases need ZooKeeper 3.4 or later. Lock needs 3.5.1 or later, for container nodes. Tested with 3.8.
package zklock
