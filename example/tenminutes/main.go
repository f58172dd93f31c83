// Tenminutes is the program of docs/ten-minutes.md: a service whose cache gets one more option in
// each step. It sends the same requests without and with the option, and prints the numbers of both.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

// header is the head of the table that the program prints.
const header = "| | requests | loads | requests that waited | longest wait | stale answers | failures |\n|---|---|---|---|---|---|---|"

func main() {
	only := flag.String("step", "", "run this `step` alone: ttl, stale-while-revalidate, stale-if-error, max-wait or fleet")
	file := flag.String("o", "", "write the measured requests and loads to this JSON `file`, for docs/pictures")
	flag.Parse()
	measured := map[string][]Panel{}
	fmt.Println(header)
	for _, s := range steps {
		if *only != "" && *only != s.name {
			continue
		}
		measured[s.name] = s.panels()
		for _, p := range measured[s.name] {
			fmt.Println(p.row())
		}
	}
	if len(measured) == 0 {
		fmt.Fprintf(os.Stderr, "tenminutes: there is no step %q\n", *only)
		os.Exit(2)
	}
	if *file == "" {
		return
	}
	b, err := json.Marshal(measured)
	if err == nil {
		err = os.WriteFile(*file, append(b, '\n'), 0o644)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "tenminutes: %v\n", err)
		os.Exit(1)
	}
}
