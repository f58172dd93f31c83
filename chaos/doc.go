// Package chaos holds the tests that break things at random. Real processes each have a cache over
// a real store and a real locker behind a faulty network. A supervisor pauses, kills and cuts off
// processes and engines by a schedule drawn from a seed. The records of all processes make a
// history, and the checks hold Bellwether's promises against that history. docs/chaos.md lists the
// checks and the planted bug that each has caught.
//
//	go test -race ./chaos                                    # fixed seeds, under two minutes
//	go test -race ./chaos -run 'TestFleet$' -args -seed=7 -locker=etcd -store=redis -duration=1m
//	make chaos DURATION=30m                                  # seeds of its own, each printed
//
// A seed replays the schedule of decisions. The processes' interleaving also depends on the machine.
//
// The checks are sound: each reported violation is a violation, however slow the machine. They
// judge times from the safe side. They count and leave out events of a starved process or a faulty
// link. A run without anything to judge fails.
package chaos
