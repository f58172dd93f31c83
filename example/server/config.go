package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether"
)

// This file is the command line: each flag with default, values, and sentence in -h.

// A config is the values of the flags.
type config struct {
	addr, admin string
	upstream    *url.URL // nil: the demo pages
	store       string
	locker      string

	memcached, redis, etcd, zookeeper []string // addresses
	dynamodb                          *url.URL // nil: AWS's own
	dynamodbTable                     string

	// cache has the flags of the middleware. run sets Store, Locker and OnError.
	cache bellwether.HTTPOptions
}

// flags returns the flags, bound to c. c then has their defaults.
func (c *config) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("server", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the caller of parse prints
	fs.Usage = func() {}
	o := &c.cache

	define(fs, &c.addr, "addr", "127.0.0.1:8080", hostPort,
		"Listen for requests on `host:port`. Port 0 means any free port, which the log names.")
	define(fs, &c.upstream, "upstream", "", httpURL,
		"Proxy to `URL`, with the Host of URL. X-Forwarded-Host has the client's Host, if it is a name. Empty: serve the demo pages. "+
			"The name in a request's Host is part of the key of a page. All addresses count as one name, so the processes of a fleet share their pages.")
	define(fs, &c.store, "store", "memory", oneOf("memory", "memcached", "redis"),
		"Keep responses in `engine`: memory (of this process), memcached or redis (of the fleet).")
	define(fs, &o.Fleet.Namespace, "namespace", "", noColon,
		"Put this `name` before all keys in the store and the locker. Servers with different upstreams on one engine need different names, or they serve each other's pages.")
	define(fs, &c.locker, "locker", "", oneOf("local", "memcached", "redis", "etcd", "zookeeper", "dynamodb"),
		"Elect the rebuilding process by `engine`: local (each process for itself), memcached, redis, etcd, zookeeper or dynamodb. "+
			"Empty: the engine of -store, or local for memory.")
	define(fs, &c.memcached, "memcached", "127.0.0.1:11211", hostPorts,
		"Memcached servers as `host:port,...`. Keys spread over all servers.")
	define(fs, &c.redis, "redis", "127.0.0.1:6379", hostPorts,
		"Redis server as `host:port,...`. Several addresses are nodes of a cluster.")
	define(fs, &c.etcd, "etcd", "127.0.0.1:2379", hostPorts,
		"Etcd servers as `host:port,...`, members of one cluster, for -locker etcd.")
	define(fs, &c.zookeeper, "zookeeper", "127.0.0.1:2181", hostPorts,
		"ZooKeeper servers as `host:port,...`, for -locker zookeeper.")
	define(fs, &c.dynamodb, "dynamodb", "http://127.0.0.1:8000", httpURL,
		"DynamoDB endpoint `URL`, for -locker dynamodb. Empty: the endpoint of AWS. Credentials and region come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION. "+
			"Without them the server uses invented credentials at a URL, for emulators. Profiles and roles are not used.")
	define(fs, &c.dynamodbTable, "dynamodb-table", "bellwether", tableName,
		"Keep the leases in the DynamoDB table of this `name`. The server creates a missing table in the background, on demand.")

	define(fs, &o.TTL, "ttl", "0s", atLeast(0),
		"Keep responses without a lifetime of their own fresh for this `duration`. 0: do not store them.")
	define(fs, &o.StaleWhileRevalidate, "stale-while-revalidate", "0s", atLeast(0),
		"Serve a stale response at once during a rebuild, for this `duration` after its lifetime, unless it names a window of its own. 0: only if the upstream allows it.")
	define(fs, &o.StaleIfError, "stale-if-error", "0s", atLeast(0),
		"Serve a stale response after a failed rebuild, for this `duration` after its lifetime, unless it names a window of its own. 0: only if the upstream allows it.")
	define(fs, &o.ErrorTTL, "error-ttl", "1s", noneIfZero,
		"Serve a shared error of the upstream for this `duration` before the next try. The pauses grow with each failure. 0: an error answers only the requests that wait for it.")
	define(fs, &o.HeuristicFraction, "heuristic", "0", fraction,
		"Keep responses without a lifetime of their own fresh for this `fraction` of the time since their Last-Modified, if -ttl is 0. 0: do not store them.")
	define(fs, &o.StoreSetCookie, "set-cookie", "false", yesNo,
		"Store responses with Set-Cookie and a lifetime of their own: `true` or false. All clients then get the cookie.")
	define(fs, &o.UnsafeInvalidation, "unsafe-invalidation", "hard", invalidation,
		"After a successful unsafe request, such as POST, drop the stored responses of its URL (`hard`), make them stale (soft), or leave them (none).")
	define(fs, &o.InvalidateLocations, "invalidate-locations", "false", yesNo,
		"Extend -unsafe-invalidation to the URLs of this host that the response names in Location and Content-Location: `true` or false.")
	define(fs, &o.AnyLanguageOrder, "any-language-order", "false", yesNo,
		"Ignore the order of languages in Accept-Language: `true` or false. Many upstreams use the order.")
	define(fs, &o.Patience, "patience", "0s", atLeast(0),
		"Let a request with a stale response wait this `duration` for the fresh response first. 0: no wait.")
	define(fs, &o.MaxWait, "max-wait", "35s", atLeast(time.Millisecond),
		"Let a request without a stale response wait this `duration` for a rebuild, then answer 503. Without this flag it is -rebuild-timeout plus -lease.")
	define(fs, &o.Fleet.LeaseTTL, "lease", "5s", atLeast(10*time.Millisecond),
		"Replace a process that died during a rebuild after this `duration` at most, and sooner for pages with short rebuilds. A living process renews its lease.")
	define(fs, &o.RebuildTimeout, "rebuild-timeout", "30s", atLeast(time.Millisecond),
		"End a rebuild after this `duration`.")
	define(fs, &o.Fleet.EngineTimeout, "engine-timeout", "500ms", atLeast(time.Millisecond),
		"Wait at most this `duration` in sum for a silent store or locker, then go on without it.")
	define(fs, &o.Fleet.NearTTL, "near-ttl", "1s", atLeast(time.Millisecond),
		"Confirm responses in this process's memory with the store after this `duration`.")
	define(fs, &o.MaxBodyBytes, "max-body", "8388608", count[int64],
		"Store bodies of up to this `number` of bytes. Larger bodies pass through.")
	define(fs, &o.Limits.MaxRebuilds, "max-rebuilds", "4096", count[int],
		"Run up to this `number` of rebuilds at one time in this process. Pages that fetch other pages through this server need one rebuild each at the same time.")
	define(fs, &o.Limits.NearBytes, "near-bytes", "67108864", count[int64],
		"Keep up to this `number` of bytes of responses in this process's memory. With -store memory the memory is the store.")
	define(fs, &c.admin, "admin", "", hostPortOrNone,
		"Serve /stats, /metrics (for Prometheus), /healthz and POST /invalidate?url=, prefix=, tag= on `host:port`, without a password: let only operators reach it. Empty: off.")
	return fs
}

// define adds a flag whose text parse reads. def is its default, empty for none.
func define[T any](fs *flag.FlagSet, at *T, name, def string, parse func(string) (T, error), usage string) {
	v := &value[T]{at: at, text: def, parse: parse}
	if def != "" {
		if err := v.Set(def); err != nil {
			panic(fmt.Errorf("flag -%s: default %q: %w", name, def, err))
		}
	}
	fs.Var(v, name, usage)
}

type value[T any] struct {
	at    *T
	text  string
	parse func(string) (T, error)
}

// String returns the value as written.
func (v *value[T]) String() string { return v.text }

// Set implements [flag.Value]. Its error names the allowed values.
func (v *value[T]) Set(text string) error {
	x, err := v.parse(text)
	if err != nil {
		return err
	}
	*v.at, v.text = x, text
	return nil
}

// parse returns the config of a command line. The error is a single line with the flag, its value, and
// the allowed values, or [flag.ErrHelp] if the line asks for help.
func parse(args []string) (config, error) {
	var c config
	fs := c.flags()
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return c, err
	case err != nil:
		return c, fmt.Errorf("%w (-h lists the flags)", err)
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q: there are only flags (-h lists them)", fs.Arg(0))
	}
	given := make(map[string]bool)
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["max-wait"] {
		c.cache.MaxWait = 0 // the library derives it from the other two
	}
	if c.locker == "" {
		c.locker = map[string]string{"memory": "local", "memcached": "memcached", "redis": "redis"}[c.store]
	}
	if c.store == "memory" && c.locker != "local" {
		return c, fmt.Errorf("-locker %s with -store memory: the processes would take turns and share nothing; use -store memcached or redis, or -locker local", c.locker)
	}
	return c, nil
}

func usage(w io.Writer) {
	fmt.Fprint(w, "A caching reverse proxy: a page is built once for all waiting clients.\n\nusage: server [flags]\n\n")
	new(config).flags().VisitAll(func(f *flag.Flag) {
		name, text := flag.UnquoteUsage(f)
		def := f.DefValue
		if def == "" {
			def = "empty"
		}
		fmt.Fprintf(w, "  -%s %s\n    \t%s (default %s)\n", f.Name, name, text, def)
	})
}

func atLeast(least time.Duration) func(string) (time.Duration, error) {
	return func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d < least {
			return 0, fmt.Errorf("want a duration with its unit, such as 500ms, 10s or 2m, and at least %v", least)
		}
		return d, nil
	}
}

// noneIfZero parses a duration with 0 for none. The library has its default at 0, and none below.
func noneIfZero(s string) (time.Duration, error) {
	d, err := atLeast(0)(s)
	if err == nil && d == 0 {
		d = -1
	}
	return d, err
}

func fraction(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return 0, errors.New("want a number from 0 to 1, such as 0.1")
	}
	return f, nil
}

func yesNo(s string) (bool, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return false, errors.New("want true or false")
	}
	return b, nil
}

func invalidation(s string) (bellwether.Invalidation, error) {
	name, err := oneOf("hard", "soft", "none")(s)
	return map[string]bellwether.Invalidation{"soft": bellwether.SoftInvalidation, "none": bellwether.NoInvalidation}[name], err
}

func count[N int | int64](s string) (N, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || int64(N(n)) != n {
		return 0, errors.New("want a whole number, at least 1")
	}
	return N(n), nil
}

func oneOf(names ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(names, s) {
			return "", fmt.Errorf("want one of %s", strings.Join(names, ", "))
		}
		return s, nil
	}
}

func noColon(s string) (string, error) {
	if strings.Contains(s, ":") {
		return "", errors.New("want a name without a colon")
	}
	return s, nil
}

func hostPort(s string) (string, error) {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return "", errors.New("want host:port with a port from 0 to 65535")
	}
	return s, nil
}

func hostPortOrNone(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	return hostPort(s)
}

func hostPorts(s string) ([]string, error) {
	addrs := strings.Split(s, ",")
	for i, addr := range addrs {
		addrs[i] = strings.TrimSpace(addr)
		_, port, err := net.SplitHostPort(addrs[i])
		if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 {
			return nil, errors.New("want host:port, or several with commas between, with ports from 1 to 65535")
		}
	}
	return addrs, nil
}

func tableName(s string) (string, error) {
	for _, c := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-", c) {
			s = ""
			break
		}
	}
	if len(s) < 3 || len(s) > 255 {
		return "", errors.New("want 3 to 255 letters, digits, dots, dashes and underscores")
	}
	return s, nil
}

func httpURL(s string) (*url.URL, error) {
	if s == "" {
		return nil, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("want http://host[:port][/path] or https://..., without a user, a query or a fragment")
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || n == 0) {
		return nil, errors.New("want http://host[:port][/path] or https://..., with a port from 1 to 65535")
	}
	return u, nil
}
