package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// This file starts the servers: the Go servers, and the proxies in front of a bare one.

// A server is a way to serve, with all its processes.
type server struct {
	name  string
	url   string
	pids  []int // of the started processes; their descendants count too
	admin string
}

// serverKinds are the compared servers. needs is a required program.
var serverKinds = []struct {
	name, needs, caveat string
	start               func(l *life) *server
}{
	{"bare", "", "the floor: it makes every response anew", startGo("bare")},
	{"bellwether", "", "", startGo("bellwether")},
	{"http-cache", "", "victorspringer/http-cache: it knows neither Cache-Control nor stale; its TTL is set to a second", startGo("http-cache")},
	{"stampede", "", "go-chi/stampede over its memory backend: it reads no Cache-Control and serves nothing stale; its TTL is set to a second", startGo("stampede")},
	{"nginx", "nginx", "proxy_cache with lock, use_stale updating and background update; bodies in files, without tcp_nopush, which costs 40 ms a response over loopback; it counts whole seconds, and makes a page of one second anew every two; nginx and the Go server behind it", startNginx},
	{"varnish", "varnishd", "in memory, built-in VCL, 10 s of grace; Varnish and the Go server behind it", startVarnish},
}

// missing returns the Debian packages that `bench http` lacks.
func missing() []string {
	var packages []string
	for program, pkg := range map[string]string{"nginx": "nginx", "varnishd": "varnish", "wrk": "wrk"} {
		if _, err := exec.LookPath(program); err != nil {
			packages = append(packages, pkg)
		}
	}
	return packages
}

func startGo(kind string) func(l *life) *server {
	return func(l *life) *server {
		c := serverConfig{Kind: kind, Addr: testserver.FreeAddr(l), Admin: testserver.FreeAddr(l)}
		config, err := json.Marshal(c)
		if err != nil {
			l.Fatal(err)
		}
		self, err := os.Executable()
		if err != nil {
			l.Fatal(err)
		}
		s := &server{name: kind, url: "http://" + c.Addr, admin: "http://" + c.Admin}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), serverEnv+"="+string(config), quickExit)
		cmd.Stderr = os.Stderr
		s.pids = []int{l.start(cmd)}
		s.await(l)
		return s
	}
}

const nginxConfig = `
daemon off;
worker_processes auto;
%[4]s
error_log %[1]s/error.log warn;
pid %[1]s/nginx.pid;
events { worker_connections 4096; }
http {
	access_log off;
	sendfile on;
	keepalive_requests 10000000;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	proxy_cache_path %[1]s/cache levels=1:2 use_temp_path=off keys_zone=c:32m max_size=512m inactive=10m;
	upstream origin { server %[2]s; keepalive 64; }
	server {
		listen %[3]s;
		location / {
			proxy_pass http://origin;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_cache c;
			proxy_cache_lock on;
			proxy_cache_use_stale updating error timeout;
			proxy_cache_background_update on;
			add_header X-Cache $upstream_cache_status;
		}
	}
}
`

func startNginx(l *life) *server {
	origin := startGo("bare")(l)
	addr, dir := testserver.FreeAddr(l), l.TempDir()
	user := ""
	if os.Getuid() == 0 {
		user = "user root;" // the files are in our own directory
	}
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(nginxConfig, dir, strings.TrimPrefix(origin.url, "http://"), addr, user)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		l.Fatal(err)
	}
	s := &server{name: "nginx", url: "http://" + addr, admin: origin.admin}
	s.pids = append(origin.pids, l.start(exec.Command("nginx", "-e", filepath.Join(dir, "error.log"), "-p", dir, "-c", config)))
	s.await(l)
	return s
}

func startVarnish(l *life) *server {
	origin := startGo("bare")(l)
	addr, dir := testserver.FreeAddr(l), l.TempDir()
	s := &server{name: "varnish", url: "http://" + addr, admin: origin.admin}
	cmd := exec.Command("varnishd", "-F", "-j", "none", "-n", filepath.Join(dir, "varnish"), "-a", addr,
		"-b", strings.TrimPrefix(origin.url, "http://"), "-s", "malloc,512m")
	s.pids = append(origin.pids, l.start(cmd))
	s.await(l)
	return s
}

// start starts a program that ends with the life or the bench: by its input, or for proxies by the kernel.
func (l *life) start(cmd *exec.Cmd) int {
	in, err := cmd.StdinPipe()
	if err != nil {
		l.Fatal(err)
	}
	started := make(chan error)
	go func() {
		// For the kernel the parent is the starting thread: this goroutine keeps its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
			close(started)
		}
	}()
	if err := <-started; err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() {
		in.Close()
		cmd.Process.Signal(syscall.SIGTERM)
		killed := time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() })
		<-started
		killed.Stop()
	})
	return cmd.Process.Pid
}

func (s *server) await(l *life) {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var err error
	for range 1000 {
		var resp *http.Response
		if resp, err = client.Get(s.url + "/1k/1/0/await"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
			err = errors.New(resp.Status)
		}
		time.Sleep(10 * time.Millisecond) // a real process is starting
	}
	l.Fatalf("%s does not answer after 10 s: %v", s.name, err)
}

func (s *server) runs() (int, error) {
	resp, err := http.Get(s.admin)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(b))
}

// cpu returns the processes' time so far by their clocks: /proc counts in 10 ms, too coarse for a short run.
func (s *server) cpu() (time.Duration, error) {
	parents := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if err != nil {
			continue // the process has ended
		}
		pid, parent, err := parseStat(string(b))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", stat, err)
		}
		parents[pid] = parent
	}
	var total time.Duration
	for pid := range parents {
		for p := pid; p > 1; p = parents[p] {
			if !slices.Contains(s.pids, p) {
				continue
			}
			took, err := processTime(pid)
			if err != nil {
				return 0, fmt.Errorf("the processor time of %s: %w", s.name, err)
			}
			total += took
			break
		}
	}
	return total, nil
}

// processTime returns the processor time of all threads of a process, also of ended threads.
func processTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	// clock_getcpuclockid(3): the process's number inverted, and CPUCLOCK_SCHED.
	err := unix.ClockGettime(int32(^pid<<3|2), &t)
	return time.Duration(t.Nano()), err
}

// parseStat parses /proc/PID/stat: the process and its parent. The name may have spaces and brackets.
func parseStat(line string) (pid, parent int, err error) {
	name, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if name < 0 || end < name {
		return 0, 0, errors.New("no name")
	}
	f := strings.Fields(line[end+1:])
	if len(f) < 2 {
		return 0, 0, errors.New("too short")
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(line[:name])); err != nil {
		return 0, 0, err
	}
	parent, err = strconv.Atoi(f[1])
	return pid, parent, err
}
