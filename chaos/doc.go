// Package chaos holds the tests that break things at random: real processes,
// each with a cache over a real store and a real locker behind a faulty network
// of its own, and a supervisor that pauses, kills and cuts off processes and
// engines by a schedule drawn from a seed. What everybody saw makes a history,
// and that is held against what Bellwether promises; docs/chaos.md says which
// checks there are, and which planted bug each of them has caught.
//
//	go test -race ./chaos                                    # fixed seeds, under two minutes
//	go test -race ./chaos -run 'TestFleet$' -args -seed=7 -locker=etcd -store=redis -duration=1m
//	make chaos DURATION=30m                                  # seeds of its own, each printed
//
// A seed stands for the schedule of decisions, and replays that. What the
// processes make of it depends on the machine too.
//
// The checks are meant to be sound: what they call a violation is one, however
// slow the machine. Where a time has to be judged, it is judged from the safe
// side, and what cannot be judged, because a process was starved or a link was
// faulty, is counted and left out; a run in which nothing could be judged fails.
package chaos
