package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// This file loads the servers: wrk in a closed loop for throughput, a generator in an open loop for latency.

// generatorEnv names the variable that makes this program the generator. It has a generatorConfig.
const generatorEnv = "BELLWETHER_BENCH_GENERATOR"

type generatorConfig struct {
	URL   string
	Size  int // of the expected body
	Order order
}

// generate is the generator's process.
func generate(config string) error {
	var c generatorConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}}
	get := got(func(ctx context.Context, key string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, "GET", c.URL, nil)
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		n, err := io.Copy(io.Discard, resp.Body)
		if err != nil {
			return "", err
		}
		if resp.StatusCode != http.StatusOK || n != int64(c.Size) {
			return "", fmt.Errorf("%s with %d bytes", resp.Status, n)
		}
		return valueOf(key), nil
	})
	w := &workerSide{origin: &origin{}, cache: get}
	w.drive(c.Order)
	return json.NewEncoder(os.Stdout).Encode(w.tally.report())
}

// runGenerator runs the generator in a process of its own.
func runGenerator(c generatorConfig) (report, error) {
	config, err := json.Marshal(c)
	if err != nil {
		return report{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return report{}, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), generatorEnv+"="+string(config), quickExit)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return report{}, fmt.Errorf("the generator: %w", err)
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		return report{}, err
	}
	if r.Err != "" {
		return report{}, fmt.Errorf("the generator: %s", r.Err)
	}
	return r, nil
}

// A throughput is wrk's result.
type throughput struct {
	Requests  int
	PerSecond float64
	Failures  int // statuses other than 2xx and 3xx, and errors of the connection
}

// missScript makes every tenth request of wrk a request for a new path.
const missScript = `
local n, base = 0, os.time() .. "-" -- text: a number this large would lose its end
request = function()
	n = n + 1
	if n %% 10 == 0 then
		return wrk.format("GET", "%s" .. base .. n)
	end
	return wrk.format("GET", "%s" .. "hot")
end
`

func runWrk(url string, connections int, d time.Duration, misses bool, dir string) (throughput, error) {
	args := []string{"-t1", fmt.Sprintf("-c%d", connections), fmt.Sprintf("-d%d", int(d.Seconds()))}
	if misses {
		path := url[strings.Index(url[len("http://"):], "/")+len("http://") : strings.LastIndexByte(url, '/')+1]
		script := filepath.Join(dir, "misses.lua")
		if err := os.WriteFile(script, fmt.Appendf(nil, missScript, path, path), 0o600); err != nil {
			return throughput{}, err
		}
		args = append(args, "-s", script)
	}
	out, err := exec.Command("wrk", append(args, url)...).Output()
	if err != nil {
		return throughput{}, fmt.Errorf("wrk: %w", err)
	}
	return parseWrk(string(out))
}

var (
	wrkRequests = regexp.MustCompile(`(\d+) requests in `)
	wrkRate     = regexp.MustCompile(`Requests/sec:\s+([\d.]+)`)
	wrkStatus   = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	wrkSocket   = regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`)
)

func parseWrk(out string) (t throughput, err error) {
	requests, rate := wrkRequests.FindStringSubmatch(out), wrkRate.FindStringSubmatch(out)
	if requests == nil || rate == nil {
		return t, fmt.Errorf("wrk has said something else than is known: %q", out)
	}
	if t.Requests, err = strconv.Atoi(requests[1]); err != nil {
		return t, err
	}
	if t.PerSecond, err = strconv.ParseFloat(rate[1], 64); err != nil {
		return t, err
	}
	for _, re := range []*regexp.Regexp{wrkStatus, wrkSocket} {
		found := re.FindStringSubmatch(out)
		for _, s := range found[min(1, len(found)):] {
			n, err := strconv.Atoi(s)
			if err != nil {
				return t, err
			}
			t.Failures += n
		}
	}
	return t, nil
}
