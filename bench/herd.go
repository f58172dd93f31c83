package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// This file is `bench herd`: every strategy in every scenario, round after round.

type herdBench struct {
	size    size
	engines *engines
	fleet   *fleet
	trials  int // number of trials: each has keys of its own
	dir     string
}

func runHerd(args []string) error {
	flags := newFlags("herd")
	flags.sizes("short: the whole run ends within a minute", "long: figures to publish")
	rounds, json, note := flags.recorded()
	var (
		procs   = flags.Int("processes", 0, "number of processes (default: by size)")
		callers = flags.Int("callers", 0, "number of callers in each process (default: by size)")
		load    = flags.Duration("load", 0, "what a load takes (default: by size)")
		only    = some(flags, "scenarios", scenarios, func(s scenario) string { return s.name })
		who     = some(flags, "strategies", strategies, func(s strategy) string { return s.name })
	)
	if err := flags.parse(args); err != nil {
		return err
	}
	size := sized(flags, quick, full)
	override(&size.Rounds, *rounds)
	override(&size.Processes, *procs)
	override(&size.Callers, *callers)
	override(&size.Load, *load)
	chosen, err := only()
	if err != nil {
		return err
	}
	contestants, err := who()
	if err != nil {
		return err
	}
	began := time.Now()
	record, err := measureHerd(size, chosen, contestants, newProgress(os.Stderr))
	if err != nil {
		return err
	}
	record.Note = *note
	printHerd(os.Stdout, record, size, chosen)
	if *json != "" {
		if err := record.write(*json); err != nil {
			return err
		}
	}
	if took := time.Since(began); size.Limit > 0 && took > size.Limit {
		return fmt.Errorf("herd: took %v, with a limit of %v", took.Round(time.Second), size.Limit)
	}
	return nil
}

func override[T comparable](to *T, from T) {
	var zero T
	if from != zero {
		*to = from
	}
}

func newHerdBench(size size) (*herdBench, error) {
	e, err := startEngines()
	if err != nil {
		return nil, err
	}
	f, err := newFleet(size.Processes, e.addresses())
	if err != nil {
		e.close()
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bellwether-bench-*")
	if err != nil {
		f.close()
		e.close()
		return nil, err
	}
	return &herdBench{size: size, engines: e, fleet: f, dir: dir}, nil
}

func (b *herdBench) close() {
	b.fleet.close()
	b.engines.close()
	os.RemoveAll(b.dir)
}

// measureHerd has another order of strategies in each round, so a disturbance of the machine affects all.
func measureHerd(size size, scenarios []scenario, strategies []strategy, p *progress) (*record, error) {
	b, err := newHerdBench(size)
	if err != nil {
		return nil, err
	}
	defer b.close()
	total := 0
	for _, sc := range scenarios {
		for _, s := range strategies {
			if sc.applies(s, size) {
				total += size.Rounds
			}
		}
	}
	p.begin(total)
	defer p.end()
	rec := newRecord("herd", size)
	for round := range size.Rounds {
		for _, sc := range scenarios {
			for i := range strategies {
				s := strategies[(i+round*5)%len(strategies)]
				if !sc.applies(s, size) {
					continue
				}
				p.step(fmt.Sprintf("round %d of %d, %s, %s", round+1, size.Rounds, sc.name, s.name))
				m, err := b.trial(sc, s, round, nil)
				if errors.Is(err, errNotApplicable) {
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", sc.name, s.name, err)
				}
				rec.Measurements = append(rec.Measurements, m)
			}
		}
	}
	return rec, nil
}

// trial puts one strategy through one scenario, once, and calls after, if any, before the end.
func (b *herdBench) trial(sc scenario, s strategy, round int, after func(x *trial)) (measurement, error) {
	b.trials++
	log, err := os.CreateTemp(b.dir, "origin-*")
	if err != nil {
		return measurement{}, err
	}
	log.Close()
	defer os.Remove(log.Name())
	x := &trial{
		bench: b, size: b.size, scenario: sc, strategy: s, round: round, log: log.Name(),
		policy: policy{TTL: time.Minute, Lease: b.size.Lease},
		warmUp: 10 * time.Millisecond,
		trace:  after != nil,
		asking: b.size.Processes,
		m:      measurement{Scenario: sc.name, Strategy: s.name, Round: round},
	}
	if err := sc.run(x); err != nil {
		return measurement{}, err
	}
	if after != nil {
		after(x)
	}
	if x.m.Hung == 0 && !x.down {
		x.bench.fleet.all(func(int) order { return order{Do: "close"} }) // a killed process has closed
	}
	return x.m, x.finish()
}
