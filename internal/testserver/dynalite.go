package testserver

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// dynaliteVersion is the version in .ci/dynalite/package-lock.json.
const dynaliteVersion = "4.0.0"

// outlive is a module for node: without it, dynalite ends when a client breaks off a request.
const outlive = `data:text/javascript,process.on("uncaughtException",e=>{if(e.code!=="ECONNRESET")throw(e)})`

// DynamoDB returns a dynalite in memory, which ends with the test, or the host:port in BELLWETHER_DYNAMODB.
func DynamoDB(tb testing.TB) *Server {
	tb.Helper()
	return startWhen(answersHTTP, dynamoHTTP, tb, "BELLWETHER_DYNAMODB", "node", "nodejs", func(port string) []string {
		program := filepath.Join(dynaliteDir(tb), "node_modules", "dynalite", "cli.js")
		if _, err := os.Stat(program); err != nil {
			tb.Fatalf("dynalite is not installed: run 'make deps', or set BELLWETHER_DYNAMODB=host:port to use a running DynamoDB: %v", err)
		}
		return []string{"--import", outlive, program, "--host", "127.0.0.1", "--port", port, "--createTableMs", "100"}
	})
}

// dynaliteDir is where .ci/deps installs dynalite: away from "make clean" and go's patterns.
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

// answersHTTP is ready for DynamoDB and its emulators, which answer a plain GET.
func answersHTTP(addr string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + addr + "/")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
