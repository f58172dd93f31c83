package testserver

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// dynaliteVersion is the one that .ci/dynalite/package-lock.json pins.
const dynaliteVersion = "4.0.0"

// DynamoDB returns a running dynalite, which speaks DynamoDB's protocol and
// keeps its tables in memory, or the endpoint at the host:port that the
// environment variable BELLWETHER_DYNAMODB names. It ends with the test.
func DynamoDB(tb testing.TB) *Server {
	tb.Helper()
	s := start(tb, "BELLWETHER_DYNAMODB", "node", "nodejs", func(port string) []string {
		program := filepath.Join(dynaliteDir(tb), "node_modules", "dynalite", "cli.js")
		if _, err := os.Stat(program); err != nil {
			tb.Fatalf("dynalite is not installed: run 'make deps', or set BELLWETHER_DYNAMODB=host:port to use a running DynamoDB: %v", err)
		}
		return []string{program, "--host", "127.0.0.1", "--port", port, "--createTableMs", "100"}
	})
	s.awaitHTTP()
	return s
}

// dynaliteDir is where .ci/deps has installed dynalite: outside of the
// repository, where neither "make clean" nor go's patterns come across it.
func dynaliteDir(tb testing.TB) string {
	tb.Helper()
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			tb.Fatal(err)
		}
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "bellwether", "dynalite-"+dynaliteVersion)
}

// awaitHTTP returns when the server answers a request, as DynamoDB and its
// emulators do to a plain GET.
func (s *Server) awaitHTTP() {
	s.tb.Helper()
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var err error
	for range 500 {
		var resp *http.Response
		if resp, err = client.Get("http://" + s.Addr + "/"); err == nil {
			resp.Body.Close()
			return
		}
		time.Sleep(10 * time.Millisecond) // a real process is starting
	}
	s.tb.Fatal(fmt.Errorf("no HTTP server at %s after 5 s: %w", s.Addr, err))
}
