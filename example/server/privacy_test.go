package main

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// TestServer_EachClientGetsItsOwn has each client of a failing origin get a whole answer for itself or for
// all, whatever the other clients ask and however they fail.
func TestServer_EachClientGetsItsOwn(t *testing.T) {
	const clients = 48
	responses := map[string]int{"redis": 50_000, "memcached": 15_000}
	if testing.Short() {
		responses = map[string]int{"redis": 3_000, "memcached": 1_000}
	}
	eachEngine(t, func(t *testing.T, _ *testserver.Server, flags []string) {
		enough := responses[flags[1]]
		o := &hostileOrigin{prefix: unique + "/own/" + flags[1], pages: hostilePages()}
		upstream := httptest.NewServer(o)
		defer upstream.Close()
		flags = append(flags, "-upstream", upstream.URL, "-max-body", strconv.Itoa(maxBody))
		fleet := []*process{startProgram(t, "both protocols", flags...), startProgram(t, "both protocols", flags...)}

		all := newTallies()
		began := time.Now()
		var wg sync.WaitGroup
		for n := range clients {
			v := newVisitor(n)
			for tab := range 2 {
				wg.Go(func() {
					defer v.client.CloseIdleConnections()
					random := rand.New(rand.NewPCG(uint64(n), uint64(tab)))
					for judged := 0; judged < enough; judged = int(all.judged.Load()) {
						// Half of the requests meet at one new URL, another after each 24 answers.
						// The others are for one of two URLs of any page, which expire meanwhile.
						meeting := judged / 24
						p, url := o.pages[meeting%len(o.pages)], 2+meeting
						if random.IntN(2) == 0 {
							p, url = o.pages[random.IntN(len(o.pages))], random.IntN(2)
						}
						all.enter(v.visit(p, fleet[random.IntN(len(fleet))], fmt.Sprint(o.prefix, p.path, url), random))
					}
				})
			}
		}
		wg.Wait()
		t.Logf("%d responses in %v, %d over HTTP/1.1 and %d over h2c, by %d answers of the origin\n%s",
			all.judged.Load(), time.Since(began).Round(time.Millisecond), all.protocols[1], all.protocols[2], o.serial.Load(), all)
		if all.protocols[1] == 0 || all.protocols[2] == 0 {
			t.Error("want responses over both protocols")
		}
		for _, kind := range kinds {
			got := all.of[kind]
			if got.responses == 0 {
				t.Errorf("%s: no response", kind)
			}
			for _, defect := range slices.Sorted(maps.Keys(got.defects)) {
				t.Errorf("%s: %d responses of %d are %s, such as: %v", kind, got.defects[defect], got.responses, defect, got.examples[defect])
			}
		}
	})
}

// The judge finds each defect, and accepts the answers that the origin allows.
func TestVisit_Defect(t *testing.T) {
	private := hostilePage{of: oneClient}
	failing := hostilePage{of: oneClient, own: failure5xx}
	seven, eight := identity{Client: "7", Cookie: "sid=7"}, identity{Client: "8", Cookie: "sid=8"}
	five := identity{Client: "5", Cookie: "sid=5"} // its account fails
	mine, other := compose("/a", seven, 1, 100), compose("/a", seven, 2, 100)
	broken := io.ErrUnexpectedEOF
	for _, test := range []struct {
		name   string
		page   hostilePage
		asks   identity
		status int
		body   string
		err    error
		want   string
	}{
		{"its own", private, seven, 200, mine, nil, ""},
		{"another's private page", private, eight, 200, mine, nil, foreign},
		{"another's shared page", hostilePage{of: everybody}, eight, 200, mine, nil, ""},
		{"another's page by session", hostilePage{of: oneSession}, eight, 200, mine, nil, foreign},
		{"another page", private, seven, 200, compose("/b", seven, 1, 100), nil, wrong},
		{"a header of another answer", private, seven, 200, other, nil, wrong},
		{"two bodies mixed", private, seven, 200, mine[:150] + other[150:], nil, wrong},
		{"more than the body", private, seven, 200, mine + "x", nil, wrong},
		{"no body of the origin's", private, seven, 200, "hello", nil, wrong},
		{"a short body", private, seven, 200, mine[:len(mine)-1], nil, short},
		{"a very short body", private, seven, 200, mine[:25], nil, short},
		{"an empty body", private, seven, 200, "", nil, short},
		{"its own failure", failing, five, 500, compose("/a", five, 1, 100), nil, ""},
		{"its own broken body", failing, five, 200, mine[:25], broken, ""},
		{"another's failure", failing, seven, 500, compose("/a", five, 1, 100), nil, foreign},
		{"another's failure, without its name", failing, seven, 502, "Bad Gateway\n", nil, anothers},
		{"another's broken body", failing, seven, 200, mine[:25], broken, anothers},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := visit{page: test.page, asks: test.asks, path: "/a", answer: answer{
				status: test.status, header: http.Header{"X-Serial": {"1"}}, body: test.body, err: test.err,
			}}
			if got := v.defect(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
