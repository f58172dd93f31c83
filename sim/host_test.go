//go:build !race

package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

// build compiles root's test package to a module. Files of overlay, by path below root, replace the disk's.
func build(root string, overlay map[string][]byte) ([]byte, error) {
	dir, err := os.MkdirTemp("", "bellwether-sim-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	var replace []string
	for name, text := range overlay {
		file := filepath.Join(dir, strconv.Itoa(len(replace))+".go")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return nil, err
		}
		replace = append(replace, fmt.Sprintf("%q: %q", filepath.Join(root, name), file))
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, fmt.Appendf(nil, `{"Replace": {%s}}`, strings.Join(replace, ",")), 0o644); err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "root.wasm")
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", list, "-o", out, ".")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOWORK=off", "GOFLAGS=")
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go test -c: %w\n%s", err, said)
	}
	return os.ReadFile(out)
}

// A host has one compiled module, and plays scenarios with it. It is safe for concurrent use.
type host struct {
	runtime wazero.Runtime
	module  wazero.CompiledModule
}

// maxPages bounds a guest's memory, in pages of 64 KiB. A scenario needs 30 MB. An endless loop
// that makes garbage ends after 256 MB, and not after minutes and 4 GB.
const maxPages = 4096

// memoryLimit is the memory at which the guest collects garbage. Collections are rare on purpose. While
// a goroutine grows a queue of otter's, the others loop until it has finished. The guest has one thread
// and no preemption, so this loop has no end if a collection takes the first goroutine's turn.
const memoryLimit = "160MiB"

// newHost compiles a module of build, or finds it in an earlier host's directory, if dir is not empty.
func newHost(ctx context.Context, module []byte, dir string) (*host, error) {
	config := wazero.NewRuntimeConfigCompiler().WithMemoryLimitPages(maxPages)
	if dir != "" {
		cache, err := wazero.NewCompilationCacheWithDir(dir)
		if err != nil {
			return nil, err
		}
		config = config.WithCompilationCache(cache)
	}
	h := &host{runtime: wazero.NewRuntimeWithConfig(ctx, config)}
	b := h.runtime.NewHostModuleBuilder(wasi_snapshot_preview1.ModuleName)
	wasi_snapshot_preview1.NewFunctionExporter().ExportFunctions(b)
	b.NewFunctionBuilder().WithFunc(randomGet).Export("random_get")
	b.NewFunctionBuilder().WithFunc(clockTimeGet).Export("clock_time_get")
	b.NewFunctionBuilder().WithFunc(pollOneoff).Export("poll_oneoff")
	if _, err := b.Instantiate(ctx); err != nil {
		return nil, err
	}
	var err error
	h.module, err = h.runtime.CompileModule(experimental.WithCompilationWorkers(ctx, runtime.GOMAXPROCS(0)), module)
	return h, err
}

func (h *host) close() error { return h.runtime.Close(context.Background()) }

// A play is the result of one scenario.
type play struct {
	Steps      int    // of the scenario
	Operations int    // calls of caches and middlewares
	Trace      string // a hash of all events and their times
	Violations []string
	Output     string
}

var (
	scenarioLine  = regexp.MustCompile(`(?m)^scenario steps=(\d+) operations=(\d+) trace=([0-9a-f]+)$`)
	violationLine = regexp.MustCompile(`(?m)^ +model_test\.go:\d+: (\S+: .*)$`)
)

// play plays the seed's scenario: all steps, or numbers as in "0,1". environment has the form of os.Environ.
func (h *host) play(ctx context.Context, seed int, steps string, environment ...string) (play, error) {
	w := &world{state: uint64(seed), now: 1_700_000_000_000_000_000}
	ctx = context.WithValue(ctx, worldKey{}, w)
	var out bytes.Buffer
	config := wazero.NewModuleConfig().WithName("").WithStartFunctions().
		WithArgs("sim", "-test.run=^TestModel$", "-test.timeout=0").
		WithEnv("GOGC", "off").WithEnv("GOMEMLIMIT", memoryLimit).
		WithEnv("BELLWETHER_SCENARIO", strconv.Itoa(seed)).WithEnv("BELLWETHER_STEPS", steps).WithStdout(&out).WithStderr(&out)
	for _, e := range environment {
		name, value, _ := strings.Cut(e, "=")
		config = config.WithEnv(name, value)
	}
	instance, err := h.runtime.InstantiateModule(ctx, h.module, config)
	if err != nil {
		return play{}, err
	}
	defer instance.Close(ctx)
	_, err = instance.ExportedFunction("_start").Call(ctx)
	p := play{Output: out.String()}
	exit, ok := errors.AsType[*sys.ExitError](err)
	if err != nil && !ok {
		return p, err
	}
	if m := scenarioLine.FindStringSubmatch(p.Output); m != nil {
		p.Steps, _ = strconv.Atoi(m[1])
		p.Operations, _ = strconv.Atoi(m[2])
		p.Trace = m[3]
	}
	for _, m := range violationLine.FindAllStringSubmatch(p.Output, -1) {
		p.Violations = append(p.Violations, m[1])
	}
	switch {
	case ok && exit.ExitCode() != 0 && len(p.Violations) == 0:
		p.Violations = []string{"the test has crashed:\n" + p.Output} // a deadlock, a panic
	case p.Trace == "" && len(p.Violations) == 0:
		return p, fmt.Errorf("the guest says nothing of the scenario:\n%s", p.Output)
	}
	return p, nil
}

func commas(steps []int) string {
	words := make([]string, len(steps))
	for i, s := range steps {
		words[i] = strconv.Itoa(s)
	}
	return strings.Join(words, ",")
}

// shrink returns a smallest list of steps with which the play still fails, after at most tries plays.
func shrink(steps []int, tries int, fails func(steps []int) bool) []int {
	for size := len(steps) / 2; size >= 1; size /= 2 {
		for again := true; again; {
			again = false
			for from := 0; from < len(steps) && tries > 0; {
				rest := append(append([]int{}, steps[:from]...), steps[min(from+size, len(steps)):]...)
				if tries--; len(rest) > 0 && fails(rest) {
					steps, again = rest, size == 1
				} else {
					from += size
				}
			}
		}
	}
	return steps
}

// A world is the outside of a guest.
type world struct {
	state uint64 // of the random numbers
	now   uint64 // nanoseconds
}

type worldKey struct{}

func worldOf(ctx context.Context) *world { return ctx.Value(worldKey{}).(*world) }

// next is splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
func (w *world) next() uint64 {
	w.state += 0x9E3779B97F4A7C15
	z := w.state
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

const (
	success = 0
	fault   = 21 // WASI's EFAULT
)

func randomGet(ctx context.Context, m api.Module, at, n uint32) uint32 {
	b, ok := m.Memory().Read(at, n)
	if !ok {
		return fault
	}
	w := worldOf(ctx)
	for i := range b {
		b[i] = byte(w.next())
	}
	return success
}

// clockTimeGet advances the clock by a microsecond with each reading.
func clockTimeGet(ctx context.Context, m api.Module, _ uint32, _ uint64, at uint32) uint32 {
	w := worldOf(ctx)
	w.now += 1000
	if !m.Memory().WriteUint64Le(at, w.now) {
		return fault
	}
	return success
}

// pollOneoff moves the clock to the earliest awaited deadline. The layout is
// wasi_snapshot_preview1's: a subscription has 48 bytes, an event 32.
func pollOneoff(ctx context.Context, m api.Module, subscriptions, events, n, count uint32) uint32 {
	w, mem := worldOf(ctx), m.Memory()
	const clock, absolute = 0, 1
	first := ^uint64(0)
	var clocks []uint64 // the user data of each clock
	for i := range n {
		at := subscriptions + 48*i
		data, ok := mem.ReadUint64Le(at)
		kind, _ := mem.ReadByte(at + 8)
		deadline, _ := mem.ReadUint64Le(at + 24)
		flags, _ := mem.ReadUint16Le(at + 40)
		if !ok {
			return fault
		}
		if kind != clock {
			continue
		}
		if flags&absolute == 0 {
			deadline += w.now
		}
		first = min(first, deadline)
		clocks = append(clocks, data)
	}
	if len(clocks) > 0 {
		w.now = max(w.now, first)
	}
	for i, data := range clocks {
		at := events + 32*uint32(i)
		mem.WriteUint64Le(at, data)
		mem.WriteUint64Le(at+8, 0)
		mem.WriteUint64Le(at+16, 0)
		mem.WriteUint64Le(at+24, 0)
	}
	mem.WriteUint32Le(count, uint32(len(clocks)))
	return success
}
