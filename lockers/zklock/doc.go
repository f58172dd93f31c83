// Package zklock is a [driver.Locker] and a [driver.Watcher] on ZooKeeper, with a fair mutex,
// [Locker.Lock].
//
// It uses the client github.com/go-zookeeper/zk. A lease is a pair of ephemeral nodes, created and
// deleted in a single transaction:
//
//	/bellwether/KEY:lease     "TOKEN 5000": the holder and the length in ms
//	/bellwether/TOKEN:holder  its identity, under a name used only once
//
// The first node excludes other holders. The second tells the lease from all other leases of the
// key: the version of a node begins again with each new node, so two leases of a key may have the
// same version, and a delete by version alone could delete another holder's lease. The protocol:
//
//  1. Acquire is one transaction that creates the pair. (Its last operation writes the data again,
//     because only a write returns the node's czxid.) After a refusal, a read returns the holder
//     and the announced length.
//  2. Renew is one transaction: check that the holder's node exists, write the new length.
//  3. Release is one transaction that deletes the pair.
//  4. A Locker takes over the lease of a silent holder with a living session after it has seen the
//     same mzxid for the whole announced length, by its own monotonic clock. One transaction
//     deletes the holder's node and the lease's node in the version seen, and creates the new pair.
//     Of several Lockers, ZooKeeper lets one win. Clocks of two machines are never compared.
//  5. The pair goes with its session. The Locker learns of the session's end from a server, and
//     closes the leases' Lost channels at that moment ([driver.LossNotifier]).
//  6. The holder's Locker removes a lease that runs out.
//  7. Watch has ZooKeeper watch the holder's node, once for each Locker and lease, for all callers.
//     It watches the node's children, of which there are none: only the node's end triggers this
//     watch (by release, takeover or the end of a session), and no renewal does. The name of the
//     node never comes again, so a watch set after the end finds no node, and no end is missed.
//
// A request whose reply was lost with the connection is repeated in the same session. An acquire
// then finds its own token. A release that finds nothing before the lease's end was carried out the
// first time. A node without a holder, after the end of the caller's context or a connection that
// did not come back in time, is removed in the background as soon as a server answers.
//
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
// Every write goes through the leader and to the disks of a majority. A refused acquire is a write
// too, so a herd costs the ensemble a write for each process.
//
// A process has one connection, of about 2 MB, and one session, kept alive with a ping each third
// of SessionTimeout. A server refuses more than maxClientCnxns connections from one address, 60 by
// default: raise it if more processes share a machine or a NAT address.
//
// All leases are below one parent, so a free key leaves no node. As the price, a tool that lists the
// parent gets all leases at once, and no answer beyond some ten thousand (jute.maxbuffer).
//
// # Limits
//
// A dead holder is replaced when its lease ends, or earlier when its session ends: SessionTimeout to
// one tick more after its last sign of life. [Locker.Close] gives a process's leases back at once.
//
// A holder cut off from ZooKeeper cannot know whether its session has ended. Its leases are lost for
// certain only when a server says so. Until then renewals fail without ErrLeaseLost, and two holders
// may believe in the lease. The Store's epochs let only one of them write. [driver.Tokener] does the
// same for other resources: the token is the czxid, which rises as long as the ensemble keeps its data.
//
// A restart of servers, even of all, loses neither leases nor watches if the client is back within
// SessionTimeout. The ensemble counts a session's time again from the election of a leader. An
// ensemble without a majority answers no requests.
//
// An ensemble that has lost its data refuses a Locker that has seen a later zxid than the ensemble's.
// The Locker's calls fail, and Lost stays open, until other clients' writes have passed that zxid. A
// new Locker connects at once.
//
// To free a lease by hand, delete both of its nodes in a single transaction (multi): KEY:lease, and
// the TOKEN:holder named in its data. With only the first deleted, the former holder's Renew and
// Release still find its own node, and succeed on the lease of its successor.
//
// By default every client of the ensemble may read and change the nodes. [Locker.AuthScheme],
// [Locker.Auth] and [Locker.ACL] keep them to the fleet. Missing nodes of Prefix get the same ACL.
//
// # Versions
//
// Leases need ZooKeeper 3.4 or later. Lock needs 3.5.1 or later, for container nodes. Tested with 3.8.
package zklock
