package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

// This file is the fleet: the bench executes its own program once for each process.

// workerEnv names the variable, with the engines' addresses, of a process of the fleet.
const workerEnv = "BELLWETHER_BENCH_WORKER"

// quickExit is for executed processes: by default the race detector delays every exit by a second.
const quickExit = "GORACE=atexit_sleep_ms=0"

type fleet struct {
	config  string
	workers []*worker
}

type worker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	in    *json.Encoder
	out   *json.Decoder
	dead  atomic.Bool // killed by the bench; set before the kill
}

func newFleet(processes int, a addresses) (*fleet, error) {
	config, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	f := &fleet{config: string(config), workers: make([]*worker, processes)}
	for i := range f.workers {
		if f.workers[i], err = f.spawn(); err != nil {
			f.close()
			return nil, err
		}
	}
	return f, nil
}

func (f *fleet) spawn() (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+f.config, quickExit)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &worker{cmd: cmd, stdin: in, in: json.NewEncoder(in), out: json.NewDecoder(out)}
	var ready report
	if err := w.out.Decode(&ready); err != nil {
		w.kill()
		w.cmd.Wait()
		return nil, fmt.Errorf("a worker did not start: %w", err)
	}
	return w, nil
}

func (w *worker) kill() {
	w.dead.Store(true)
	w.cmd.Process.Kill()
}

func (w *worker) tell(o order) (report, error) {
	if err := w.in.Encode(o); err != nil {
		return report{}, fmt.Errorf("a worker has ended: %w", err)
	}
	var r report
	if err := w.out.Decode(&r); err != nil {
		return report{}, fmt.Errorf("a worker has ended: %w", err)
	}
	if r.Err != "" {
		return report{}, errors.New(r.Err)
	}
	return r, nil
}

// all gives every process its order at the same time. A process that is killed meanwhile has no report.
func (f *fleet) all(of func(i int) order) ([]report, error) {
	reports, errs := make([]report, len(f.workers)), make([]error, len(f.workers))
	var wg sync.WaitGroup
	for i, w := range f.workers {
		o := of(i)
		wg.Go(func() { reports[i], errs[i] = w.tell(o) })
	}
	wg.Wait()
	var alive []report
	for i, w := range f.workers {
		switch {
		case errs[i] == nil:
			alive = append(alive, reports[i])
		case !w.dead.Load():
			return nil, errs[i]
		}
	}
	return alive, nil
}

// mend replaces the dead processes.
func (f *fleet) mend() error {
	for i, w := range f.workers {
		if w.dead.Load() {
			w.stdin.Close()
			w.cmd.Wait()
			var err error
			if f.workers[i], err = f.spawn(); err != nil {
				return err
			}
		}
	}
	return nil
}

// close ends the processes: they end with their input, or are killed.
func (f *fleet) close() {
	for _, w := range f.workers {
		if w == nil {
			continue
		}
		w.stdin.Close()
		killed := time.AfterFunc(5*time.Second, func() { w.cmd.Process.Kill() })
		w.cmd.Wait()
		killed.Stop()
	}
}
