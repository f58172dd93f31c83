package sweeplog

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

func tagged(tags ...string) func() ([]string, bool) {
	return func() ([]string, bool) { return tags, false }
}

func signpost() ([]string, bool) { return nil, true }

// The log against an item whose load saw the log up to position 10.
func TestLog_Against(t *testing.T) {
	const heard = 7 * time.Second
	secure := httpcache.Secure + "host/a"
	for name, test := range map[string]struct {
		sweep  Sweep
		key    string
		traits func() ([]string, bool)
		gone   bool
		stale  durations.Instant
	}{
		"its key":                   {Sweep{At: 11, Kind: ByKey, What: "host/a"}, "host/a", tagged(), true, durations.Forever},
		"its key, with TLS":         {Sweep{At: 11, Kind: ByKey, What: "host/a"}, secure, tagged(), true, durations.Forever},
		"its key, without TLS only": {Sweep{At: 11, Kind: ByKey, What: "host/a", Plain: true}, secure, tagged(), false, durations.Forever},
		"a variant of its key":      {Sweep{At: 11, Kind: ByKey, What: "host/a"}, "host/a" + VariantMark + "gzip", tagged(), true, durations.Forever},
		"a longer key":              {Sweep{At: 11, Kind: ByKey, What: "host/a"}, "host/ab", tagged(), false, durations.Forever},
		"its prefix":                {Sweep{At: 11, Kind: ByPrefix, What: "host/a"}, "host/ab", tagged(), true, durations.Forever},
		"everything":                {Sweep{At: 11, Kind: ByPrefix}, secure, tagged(), true, durations.Forever},
		"another prefix":            {Sweep{At: 11, Kind: ByPrefix, What: "host/b"}, "host/ab", tagged(), false, durations.Forever},
		"its tag":                   {Sweep{At: 11, Kind: ByTag, What: "x"}, "host/a", tagged("w", "x"), true, durations.Forever},
		"another tag":               {Sweep{At: 11, Kind: ByTag, What: "x"}, "host/a", tagged("xx"), false, durations.Forever},
		"a kind of a later version": {Sweep{At: 11, Kind: "moon"}, "host/a", tagged(), true, durations.Forever},
		"softly":                    {Sweep{At: 11, Kind: ByTag, What: "x", Soft: true}, "host/a", tagged("x"), false, heard},
		"softly, a signpost":        {Sweep{At: 11, Kind: ByKey, What: "host/a", Soft: true}, "host/a", signpost, false, durations.Forever},
		"hard, a signpost":          {Sweep{At: 11, Kind: ByKey, What: "host/a"}, "host/a", signpost, true, durations.Forever},
		"before its load":           {Sweep{At: 10, Kind: ByKey, What: "host/a"}, "host/a", tagged(), false, durations.Forever},
	} {
		test.sweep.Heard = heard
		l := &Log{Since: 1, Sweeps: []Sweep{test.sweep}, At: 11}
		if gone, stale := l.Against(test.key, 10, test.traits); gone != test.gone || stale != test.stale {
			t.Errorf("%s: gone %t, stale from %v; want %t, %v", name, gone, stale, test.gone, test.stale)
		}
	}
	forgotten := &Log{Since: 11, At: 20}
	for position, want := range map[uint64]bool{10: true, 11: false, 20: false} {
		if gone, _ := forgotten.Against("host/a", position, tagged()); gone != want {
			t.Errorf("a log that has forgotten all up to 11, and a load at %d: gone %t, want %t", position, gone, want)
		}
	}
	if gone, stale := (*Log)(nil).Against("host/a", 0, tagged()); gone || stale != durations.Forever {
		t.Error("no log has something against an item")
	}
	if gone, _ := Only([]Sweep{{Kind: ByKey, What: "host/a"}}, 0).Against("host/a", 1<<63, tagged()); !gone {
		t.Error("a sweep that is not in the log's order misses an item of a late load")
	}
}

// The log remembers its latest sweeps, within its bounds, each sweep once.
func TestLog_Bounds(t *testing.T) {
	l := &Log{Since: 1}
	for i := range 2 * MaxSweeps {
		l = l.and(uint64(i+2), []Sweep{{Kind: ByTag, What: Exact(fmt.Sprint(i))}})
	}
	if n := len(l.Sweeps); n != MaxSweeps || l.Since != l.Sweeps[0].At-1 {
		t.Errorf("%d sweeps since %d, the first at %d", n, l.Since, l.Sweeps[0].At)
	}
	if again := l.and(5000, []Sweep{{Kind: ByTag, What: "999"}}); len(again.Sweeps) != MaxSweeps || again.Since != l.Since {
		t.Errorf("a repeated sweep takes room: %d sweeps since %d, before %d", len(again.Sweeps), again.Since, l.Since)
	}
	if soft := l.and(5000, []Sweep{{Kind: ByTag, What: "999", Soft: true}}); soft.Sweeps[MaxSweeps-2].Soft || len(soft.Sweeps) != MaxSweeps {
		t.Error("a soft sweep takes the place of a hard one")
	}
	if all := l.and(5000, []Sweep{{Kind: ByPrefix}}); len(all.Sweeps) != 1 || all.Since != l.Since {
		t.Errorf("a sweep of everything leaves %d sweeps since %d", len(all.Sweeps), all.Since)
	}
	if soft := l.and(5000, []Sweep{{Kind: ByPrefix, Soft: true}}); len(soft.Sweeps) != MaxSweeps || !soft.Sweeps[MaxSweeps-1].Soft {
		t.Errorf("a soft sweep of everything leaves %d sweeps", len(soft.Sweeps))
	}
	large := l.and(5000, []Sweep{{Kind: ByTag, What: Exact(strings.Repeat("\xff", 100<<10))}})
	if data, err := json.Marshal(large); err != nil || len(data) > 300<<10 {
		t.Errorf("a log of %d bytes, %v", len(data), err)
	}
	if many := l.and(5000, make([]Sweep, MaxSweeps+1)); len(many.Sweeps) != 0 || many.Since != 5000 {
		t.Errorf("too many sweeps at one time: %d are kept, since %d", len(many.Sweeps), many.Since)
	}
}

// A log decodes from its entry byte for byte. An entry with other content is no log.
func TestLog_Entry(t *testing.T) {
	l := (&Log{Since: 3}).and(9, []Sweep{{Kind: ByTag, What: "\xff\x00é", Soft: true}, {Kind: ByPrefix, What: "host/", Plain: true}})
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := decode(driver.Entry{Kind: driver.KindValue, Value: data})
	if !ok || fmt.Sprint(got) != fmt.Sprint(l) {
		t.Errorf("%v, %t; want %v", got, ok, l)
	}
	for _, entry := range []driver.Entry{{}, {Kind: driver.KindValue}, {Kind: driver.KindValue, Value: []byte("{}")}, {Kind: driver.KindNotFound, Value: data}} {
		if l, ok := decode(entry); ok {
			t.Errorf("%+v is the log %v", entry, l)
		}
	}
}

// A sweep keeps the instant at which the process first heard of it.
func TestLog_Hear(t *testing.T) {
	known := &Log{Sweeps: []Sweep{{At: 5, Heard: time.Second}}}
	next := &Log{Sweeps: []Sweep{{At: 5}, {At: 6}}, At: 6}
	next.hear(known, time.Minute)
	if next.Sweeps[0].Heard != time.Second || next.Sweeps[1].Heard != time.Minute || next.HeardSince(2*time.Second) != 1 {
		t.Errorf("%+v", next.Sweeps)
	}
}
