package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// This file is the supervisor: it starts the engines, the proxies, the origin and the workers,
// carries out a schedule, and collects the history.

type fleetRun struct {
	tb      testing.TB
	seed    int64
	plan    schedule
	engines []engine              // the store's and the locker's, or a common engine
	servers []*testserver.Server  // the engines' servers
	proxies [][]*testserver.Proxy // by worker and engine
	origin  *httptest.Server
	workers []*process // by number; nil while there is none
	config  workerConfig
	gaps    *gapMeter
	reading sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	events  []event
	loads   []originLoad
	count   map[string]int // number of loads, by key
	lives   []int          // by worker, how many processes it has had
	faults  []fault
	lines   int   // unreadable lines
	settled bool  // the faults are over; loads are quick and succeed
	calmAt  int64 // when it settled
	whole   bool  // the fleet recovered in time
	slow    int   // number of probes in which an engine was too slow for recovery
}

// An originLoad is a load at the origin, where it begins later than in the worker.
type originLoad struct {
	key     string
	version int
	begin   int64
}

// A fault is a time in which a worker, by its number, or every worker (-1) is unreliable.
type fault struct {
	span
	worker int
	forgot int // number of the engine that came back empty, -1 for none
}

// A process is a running worker.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{}
}

func (p *process) tell(o order) {
	line, _ := json.Marshal(o)
	// A dead or paused worker does not block: the pipe has room.
	p.in.Write(append(line, '\n'))
}

func runFleet(tb testing.TB, seed int64, length time.Duration, locker, store string, b bug) *fleetRun {
	tb.Helper()
	r := &fleetRun{tb: tb, seed: seed, count: map[string]int{}, lives: make([]int, fleetWorkers), workers: make([]*process, fleetWorkers)}
	names := []string{store}
	if locker != store {
		names = append(names, locker)
	}
	for _, name := range names {
		e, err := engineOf(name)
		if err != nil {
			tb.Fatal(err)
		}
		s := e.start(tb)
		s.MustOwn(tb)
		r.engines, r.servers = append(r.engines, e), append(r.servers, s)
		r.prepare(len(r.engines) - 1)
	}
	r.plan = draw(seed, length, len(r.engines))
	if b.tune != nil {
		b.tune(&r.plan)
	}
	r.origin = httptest.NewServer(http.HandlerFunc(r.load))
	tb.Cleanup(r.origin.Close)
	for range fleetWorkers {
		var links []*testserver.Proxy
		for _, s := range r.servers {
			links = append(links, testserver.NewProxy(tb, s.Addr))
		}
		r.proxies = append(r.proxies, links)
	}
	r.config = workerConfig{Seed: seed, Locker: locker, Store: store, Origin: r.origin.URL, Bug: b.name, Times: r.plan.times}
	r.gaps = newGapMeter(func(span) {})
	defer r.gaps.stop()
	tb.Cleanup(func() {
		for _, p := range r.workers {
			if p != nil {
				p.cmd.Process.Signal(syscall.SIGKILL)
				<-p.ended
			}
		}
		r.reading.Wait()
	})
	for w := range fleetWorkers {
		r.startWorker(w)
	}
	rest := 3 * time.Second
	if b.name != "" {
		rest = time.Second
	}
	r.carryOut(rest)
	if b.name == "" || b.check == checkRecovery {
		r.settle()
	}
	r.end()
	return r
}

func (r *fleetRun) prepare(engine int) {
	r.tb.Helper()
	if prepare := r.engines[engine].prepare; prepare != nil {
		if err := prepare(r.servers[engine].Addr); err != nil {
			r.tb.Fatal(err)
		}
	}
}

// load is the origin.
func (r *fleetRun) load(w http.ResponseWriter, req *http.Request) {
	key := strings.TrimPrefix(req.URL.Path, "/")
	r.mu.Lock()
	r.count[key]++
	n := r.count[key]
	r.loads = append(r.loads, originLoad{key, n, now()})
	settled := r.settled
	r.mu.Unlock()
	takes, fails := r.plan.answer(r.seed, key, n)
	if settled {
		takes, fails = 50*time.Millisecond, false
	}
	select {
	case <-time.After(takes):
	case <-req.Context().Done():
	}
	if fails {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, "%s#%d", key, n)
}

func (r *fleetRun) startWorker(n int) {
	r.tb.Helper()
	c := r.config
	r.mu.Lock()
	r.lives[n]++
	c.Worker, c.Life = n, r.lives[n]
	r.mu.Unlock()
	last := len(r.engines) - 1
	c.StoreAddr, c.LockerAddr = r.proxies[n][0].Addr, r.proxies[n][last].Addr
	config, err := json.Marshal(c)
	if err != nil {
		r.tb.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(config),
		"GORACE=atexit_sleep_ms=0") // by default the race detector delays every exit by a second
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		r.tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.tb.Fatal(err)
	}
	p := &process{cmd: cmd, in: in, ended: make(chan struct{})}
	r.workers[n] = p
	r.reading.Go(func() {
		r.read(out, c.Worker, c.Life)
		cmd.Wait()
		close(p.ended)
	})
}

// read reads a worker's journal until the worker has ended.
func (r *fleetRun) read(out io.Reader, worker, life int) {
	lines := bufio.NewReaderSize(out, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // the rest is an unfinished line of a killed worker
		}
		var e event
		err = json.Unmarshal(line, &e)
		e.Worker, e.Life = worker, life
		r.mu.Lock()
		if r.events = append(r.events, e); err != nil {
			r.lines++
		}
		r.mu.Unlock()
	}
}

// failing records that worker n (-1: every worker) is unreliable until the returned function is
// called. forgets is the number of the engine that loses its data.
func (r *fleetRun) failing(n, forgets int) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.faults)
	r.faults = append(r.faults, fault{span{now(), forever}, n, forgets})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.faults[i].end = now()
	}
}

// carryOut carries out the schedule. A step that lasts ends in time. No worker and no engine has
// two faults of one kind at a time. carryOut goes on for rest after the last step.
func (r *fleetRun) carryOut(rest time.Duration) {
	type ending struct {
		at time.Time
		do func()
	}
	var endings []ending
	busy := map[string]bool{}
	start := time.Now()
	// endUntil ends the faults that are due by then.
	endUntil := func(t time.Time) {
		for len(endings) > 0 {
			first := 0
			for i, e := range endings {
				if e.at.Before(endings[first].at) {
					first = i
				}
			}
			if endings[first].at.After(t) {
				break
			}
			time.Sleep(time.Until(endings[first].at)) // real processes
			do := endings[first].do
			endings = append(endings[:first], endings[first+1:]...)
			do()
		}
		time.Sleep(time.Until(t))
	}
	for _, s := range r.plan.steps {
		endUntil(start.Add(s.at))
		if s.do == invalidate {
			r.workers[s.worker].tell(order{Do: "invalidate", Key: s.key})
			continue
		}
		who := fmt.Sprint(s.do, s.worker, s.engine)
		switch s.do {
		case pauseWorker, killWorker:
			who = fmt.Sprint("worker", s.worker)
		case pauseEngine, killEngine:
			who = fmt.Sprint("engine", s.engine)
		}
		if busy[who] {
			continue
		}
		busy[who] = true
		end := r.inflict(s)
		endings = append(endings, ending{time.Now().Add(s.lasts), func() {
			busy[who] = false
			end()
		}})
	}
	endUntil(start.Add(r.plan.steps[len(r.plan.steps)-1].at + rest))
}

// inflict begins a lasting step, and returns the function for the end.
func (r *fleetRun) inflict(s step) (end func()) {
	link := r.proxies[s.worker][s.engine]
	server := r.servers[s.engine]
	switch s.do {
	case cutLink:
		over := r.failing(s.worker, -1)
		link.Set(s.fault)
		return func() {
			link.Set(testserver.NoFault)
			over()
		}
	case slowLink:
		over := r.failing(s.worker, -1)
		link.SetLatency(r.plan.times.Engine / 2)
		return func() {
			link.SetLatency(0)
			over()
		}
	case pauseWorker:
		over := r.failing(s.worker, -1)
		p := r.workers[s.worker].cmd.Process
		p.Signal(syscall.SIGSTOP)
		return func() {
			p.Signal(syscall.SIGCONT)
			over()
		}
	case killWorker:
		over := r.failing(s.worker, -1)
		p := r.workers[s.worker]
		p.cmd.Process.Signal(syscall.SIGKILL)
		<-p.ended
		return func() {
			r.startWorker(s.worker)
			over()
		}
	case pauseEngine:
		over := r.failing(-1, -1)
		server.Signal(syscall.SIGSTOP)
		return func() {
			server.Signal(syscall.SIGCONT)
			over()
		}
	default: // killEngine
		forgets := -1
		if r.engines[s.engine].forgets {
			forgets = s.engine
		}
		over := r.failing(-1, forgets)
		server.Kill()
		return func() {
			server.Start()
			r.prepare(s.engine)
			over()
		}
	}
}

const (
	recovery  = 15 * time.Second // after the last fault: breakers, reconnections, sessions, the storm's keys
	recovered = 3                // number of new keys in a row that must cost one load each
)

// settle handles the time after the faults: all processes ask for new keys at the same time, until
// each of several keys costs one load. Then every old key is invalidated and requested everywhere.
func (r *fleetRun) settle() {
	r.mu.Lock()
	r.settled, r.calmAt = true, now()
	r.mu.Unlock()
	probe := r.probe()
	deadline := time.Now().Add(recovery)
	for n, good := 0, 0; good < recovered && time.Now().Before(deadline); n++ {
		if took := probe(); took > r.plan.times.Engine/4 {
			r.slow++
		}
		key := fmt.Sprint("after", n)
		for _, p := range r.workers {
			p.tell(order{Do: "get", Key: key, Callers: 10})
		}
		time.Sleep(400 * time.Millisecond) // real processes
		if good++; !r.one(key) {
			good = 0
		}
		r.whole = good == recovered
	}
	for n := range fleetKeys {
		r.workers[n%fleetWorkers].tell(order{Do: "invalidate", Key: fmt.Sprint("k", n)})
	}
	time.Sleep(time.Second)
	for n := range fleetKeys {
		for _, p := range r.workers {
			p.tell(order{Do: "get", Key: fmt.Sprint("k", n), Callers: 1})
		}
	}
	time.Sleep(time.Second)
}

// probe returns a function that takes and returns a lease and reads the store, without a proxy, and
// returns the duration. The first call, which connects, is already made.
func (r *fleetRun) probe() func() time.Duration {
	r.tb.Helper()
	var clients []client
	for i, e := range r.engines {
		c, err := e.open(r.servers[i].Addr)
		if err != nil {
			r.tb.Fatal(err)
		}
		r.tb.Cleanup(func() { c.close() })
		clients = append(clients, c)
	}
	locker, store := clients[len(clients)-1].locker, clients[0].store
	probe := func() time.Duration {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		start := time.Now()
		// The checks judge the answers.
		if lease, err := locker.TryAcquire(ctx, "probe", time.Second); err == nil {
			lease.Release(ctx)
		}
		store.Get(ctx, "probe")
		return time.Since(start)
	}
	probe()
	return probe
}

// one reports whether a key was loaded once, and every caller has been served.
func (r *fleetRun) one(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	served := 0
	for _, e := range r.events {
		if e.Kind == kindGet && e.Key == key && e.Result == done {
			served++
		}
	}
	most := 1
	if r.plan.times.Hedge > 0 {
		most = 2 // a busy machine makes a load look slow
	}
	return r.count[key] >= 1 && r.count[key] <= most && served == 10*fleetWorkers
}

// end ends the workers, and reads their last lines.
func (r *fleetRun) end() {
	r.tb.Helper()
	for _, p := range r.workers {
		p.in.Close()
	}
	for i, p := range r.workers {
		select {
		case <-p.ended:
		case <-time.After(20 * time.Second):
			r.tb.Errorf("worker %d has not ended 20 s after it was asked to: its stacks follow", i)
			p.cmd.Process.Signal(syscall.SIGQUIT)
			<-p.ended
		}
		r.workers[i] = nil
	}
	r.reading.Wait()
	if r.lines > 0 {
		r.tb.Errorf("%d lines of the workers' journals make no sense", r.lines)
	}
}
