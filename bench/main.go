// Bench measures Bellwether beside its alternatives, in real processes over real engines.
//
//	go run ./bench herd             # every strategy in every scenario, under a minute
//	go run ./bench herd -full       # the same with figures to publish
//	go run ./bench http             # the middleware beside nginx, Varnish and a bare handler
//	go run ./bench near             # the memory and the garbage collection of a million values
//	go run ./bench plots            # the pictures in docs
//	go run ./bench outage           # the store killed for 30 s under load
//	go run ./bench compare A B      # two files that -json has written
//
// All figures are from one run on one machine, whose processes compete for its cores: compare the
// rows, not the milliseconds. README.md describes the method and its traps.
package main

import (
	"fmt"
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	if handled, err := asProcess(); handled {
		return err
	}
	commands := map[string]func(args []string) error{
		"herd": runHerd, "http": runHTTP, "near": runNear, "plots": runPlots, "outage": runOutage, "compare": runCompare,
	}
	if len(args) > 0 && commands[args[0]] != nil {
		return commands[args[0]](args[1:])
	}
	return fmt.Errorf("what? One of: herd, http, near, plots, outage, compare; each explains its flags with -h")
}

// asProcess runs the program as a worker of the herd, as an HTTP server, or as the generator.
func asProcess() (handled bool, err error) {
	for env, f := range map[string]func(config string) error{workerEnv: work, serverEnv: serve, generatorEnv: generate} {
		if config := os.Getenv(env); config != "" {
			return true, f(config)
		}
	}
	return false, nil
}
