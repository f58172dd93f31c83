// Command bench lets a herd loose on one cold key, in real processes around a
// real Redis, and prints what each way of protecting the origin comes to.
//
//	go run ./bench
//
// All figures are of one run on one machine, with the processes competing for
// its cores; compare the rows, not the milliseconds.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
)

// workerEnv names the variable that makes this program one of the herd's
// processes: a JSON herd.
const workerEnv = "BELLWETHER_BENCH_WORKER"

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if h := os.Getenv(workerEnv); h != "" {
		if err := work(h); err != nil {
			log.Fatal(err)
		}
		return
	}
	var h herd
	flag.IntVar(&h.Processes, "processes", 8, "number of processes, each with connections of its own")
	flag.IntVar(&h.Callers, "callers", 250, "number of callers in each process")
	flag.DurationVar(&h.Load, "load", 310*time.Millisecond, "how long the load takes")
	rounds := flag.Int("rounds", 5, "number of herds per strategy; the medians are printed")
	flag.StringVar(&h.Redis, "redis", "", "host:port of a Redis to use; it counts the commands of all its clients (default: a redis-server of its own)")
	flag.Parse()
	if flag.NArg() > 0 || h.Processes < 1 || h.Callers < 1 || h.Load <= 0 || *rounds < 1 {
		log.Fatal("unexpected argument, or a number that is not positive; -h explains the flags")
	}
	if err := bench(h, *rounds); err != nil {
		log.Fatal(err)
	}
}

func bench(h herd, rounds int) error {
	if h.Redis == "" {
		addr, stop, err := startRedis()
		if err != nil {
			return err
		}
		defer stop()
		h.Redis = addr
	}
	fmt.Printf("one cold key, %d processes x %d callers, a load of %v, medians of %d herds\n\n", h.Processes, h.Callers, h.Load, rounds)
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "strategy\tloads\tp50\tp99\tmax\tRedis commands\tfailed\t")
	for _, s := range strategies {
		h.Strategy = s.name
		row, err := h.run(rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(out, "%s\t%d\t%v\t%v\t%v\t%d\t%d\t\n", s.name, row.loads,
			round(row.p50), round(row.p99), round(row.max), row.commands, row.failed)
	}
	return out.Flush()
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// startRedis starts a redis-server on a free port of this machine.
func startRedis() (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("%w: run 'make deps' to install it, or name a running one with -redis", err)
	}
	stop = func() { cmd.Process.Kill(); cmd.Wait() }
	for range 500 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return addr, stop, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return "", nil, fmt.Errorf("redis-server does not answer at %s", addr)
}

// commands is how many commands the server has run, those inside scripts
// included, without those that set connections up or ask for this number.
func commands(ctx context.Context, rdb *redis.Client) (int, error) {
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	total := 0
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		switch name {
		case "info", "ping", "hello", "client|setinfo":
			continue
		}
		var n int
		if ok {
			fmt.Sscanf(rest, "%d", &n)
		}
		total += n
	}
	return total, nil
}

// spawn starts one of the herd's processes and returns the way to talk to it.
func (h herd) spawn() (*worker, error) {
	config, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(config))
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
	return &worker{cmd: cmd, stdin: in, in: json.NewEncoder(in), out: json.NewDecoder(out)}, nil
}
