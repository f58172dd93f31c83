package jsonloss

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

type (
	withSecret  struct{ Name, secret string }
	withTwo     struct{ first, second int }
	withAny     struct{ Extra any }
	withError   struct{ Err error }
	withChannel struct{ Done chan int }
	withFunc    struct{ Call func() }
	withMeant   struct {
		Name string
		//lint:ignore U1000 what JSON does not keep is meant to be lost
		memo string   `json:"-"`
		Done chan int `json:"-"`
		_    int
		//lint:ignore U1000 as above
		mu sync.Mutex
		//lint:ignore U1000 as above
		none struct{}
	}
	withOptional struct {
		Next *withChannel
		Call func() `json:",omitzero"`
	}
	node struct {
		Next *node
		id   int
	}
	base        struct{ ID, key int }
	embedding   struct{ base }
	embeddingAt struct{ *base }
	Shadowed    struct{ Name string }
	shadowing   struct {
		Shadowed
		Name string
	}
	Other struct{ Name string }
	twice struct {
		Shadowed
		Other
	}
	Tagged struct {
		A string `json:"Name"`
	}
	winning struct {
		Shadowed
		Tagged
	}
	// ownWay has a marshaler of its own, on the pointer alone.
	ownWay struct{ hidden string }
	// textOnly has MarshalText and no decoder.
	textOnly struct{ N int }
	// oneWay has a decoder and no encoder.
	oneWay struct{ Of io.Reader }
	level  int
)

func (w *ownWay) MarshalJSON() ([]byte, error) { return json.Marshal(w.hidden) }
func (w *ownWay) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &w.hidden) }
func (textOnly) MarshalText() ([]byte, error)  { return []byte("text"), nil }
func (w *oneWay) UnmarshalJSON([]byte) error   { w.Of = strings.NewReader(""); return nil }
func (l level) MarshalText() ([]byte, error)   { return fmt.Append(nil, "level ", int(l)), nil }

// A passage is the result of a value's way through a store without a Codec.
type passage struct {
	told    []string // the losses
	refused string   // why no value comes back
	back    bool     // it can be encoded and decoded
	same    bool     // and is unchanged
}

// pass sends v through JSON, and asks Of about its type.
func pass[V any](v V) func() passage {
	return func() (p passage) {
		b, err := json.Marshal(v)
		var back V
		if err == nil {
			err = json.Unmarshal(b, &back)
		}
		p.back, p.same = err == nil, reflect.DeepEqual(v, back)
		lossy, broken := Of(reflect.TypeFor[V]())
		if lossy != nil {
			p.told = append(p.told, lossy.Error())
		}
		if broken != nil {
			p.refused = broken.Error()
		}
		return p
	}
}

// TestOf holds Of to the effect of JSON. Each case has a value that shows it.
func TestOf(t *testing.T) {
	secret, done := withSecret{"a", "b"}, make(chan int)
	for name, test := range map[string]struct {
		pass func() passage
		tell []string // in the one message about the losses, nil if there are none
	}{
		"an unexported field":            {pass(secret), []string{"withSecret.secret (string) is not exported"}},
		"behind a pointer":               {pass(&secret), []string{"withSecret.secret (string) is not exported"}},
		"in a slice":                     {pass([]withSecret{secret}), []string{"withSecret.secret (string) is"}},
		"in a map":                       {pass(map[string]withSecret{"k": secret}), []string{"withSecret.secret (string) is"}},
		"in an array":                    {pass([2]withSecret{secret}), []string{"withSecret.secret (string) is"}},
		"in a field":                     {pass(struct{ Of []withSecret }{[]withSecret{secret}}), []string{".Of[].secret (string) is"}},
		"several":                        {pass(withTwo{1, 2}), []string{"withTwo.first (int) is", "withTwo.second (int) is"}},
		"another package's":              {pass(url.URL{User: url.User("a")}), []string{"url.URL.User.username (string) is", "url.URL.User.password (string) is", "passwordSet (bool) is"}},
		"a list that leads to itself":    {pass(node{&node{nil, 1}, 2}), []string{"id (int) is"}},
		"in an embedded struct":          {pass(embedding{base{1, 2}}), []string{"embedding.base.key (int) is"}},
		"an interface":                   {pass(withAny{1}), []string{"withAny.Extra (interface {}) comes back as"}},
		"nothing but an interface":       {pass[any](1), []string{": interface {} comes back as"}},
		"a field that another one hides": {pass(shadowing{Shadowed{"a"}, "b"}), []string{"shadowing.Shadowed.Name (string) is not the only field with the name \"Name\""}},
		"two fields of one name":         {pass(twice{Shadowed{"a"}, Other{"b"}}), []string{"twice.Shadowed.Name (string) is not the only", "twice.Other.Name (string) is not the only"}},
		"a field whose name another one's tag takes": {pass(winning{Shadowed{"a"}, Tagged{"b"}}), []string{"winning.Shadowed.Name (string) is not the only"}},
		"a pointer's marshaler, of a value":          {pass(ownWay{"a"}), []string{"ownWay.hidden (string) is"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := test.pass()
			if p.same {
				t.Fatal("nothing is lost: the test tests nothing")
			}
			if len(p.told) != 1 || p.refused != "" {
				t.Fatalf("it says %q, refused for %q; want one word", p.told, p.refused)
			}
			if said := strings.Split(p.told[0], "; "); len(said) != len(test.tell)+1 { // the last part is the advice
				t.Errorf("it says %q, which is more or less than %q", p.told[0], test.tell)
			}
			for _, want := range append(test.tell, "Codec", `json:"-"`) {
				if strings.Count(p.told[0], want) != 1 {
					t.Errorf("it says %q, want %q in it, once", p.told[0], want)
				}
			}
		})
	}
	for name, test := range map[string]struct {
		pass func() passage
		why  string
	}{
		"a channel":                      {pass(withChannel{done}), "withChannel.Done (chan int) cannot"},
		"a function":                     {pass(&withFunc{func() {}}), "withFunc.Call (func()) cannot"},
		"nothing but a function":         {pass(func() {}), ": func() cannot"},
		"a complex number":               {pass([]complex128{1}), ": complex128 cannot"},
		"an interface with methods":      {pass(withError{errors.New("a")}), "withError.Err (error) is"},
		"nothing but such an interface":  {pass[error](errors.New("a")), ": error is"},
		"keys that are no text":          {pass(map[[2]int]string{{1, 2}: "a"}), "map[[2]int]string has keys"},
		"keys that are text and no more": {pass(map[level]string{1: "a"}), "map[jsonloss.level]string has keys"},
		"text and no more":               {pass(struct{ Of textOnly }{textOnly{1}}), "UnmarshalText"},
		"a number that is text":          {pass(level(1)), "UnmarshalText"},
	} {
		t.Run(name, func(t *testing.T) {
			p := test.pass()
			if p.back {
				t.Fatal("it comes back: the test tests nothing")
			}
			if !strings.HasPrefix(p.refused, "bellwether: ") || len(p.told) != 0 {
				t.Fatalf("the panic is %q, it says %q; want a panic alone", p.refused, p.told)
			}
			for _, want := range []string{test.why, "Codec"} {
				if !strings.Contains(p.refused, want) {
					t.Errorf("the panic is %q, want %q in it", p.refused, want)
				}
			}
		})
	}
	// A value that comes back without an optional part is no reason to refuse the type.
	for name, test := range map[string]struct {
		set, unset func() passage
		tell       []string
	}{
		"a channel":           {pass(withOptional{Next: &withChannel{done}}), pass(withOptional{}), []string{"withOptional.Next.Done (chan int) cannot", "withOptional.Call (func()) cannot"}},
		"a function":          {pass(withOptional{Call: func() {}}), pass(withOptional{}), []string{"withOptional.Call (func()) cannot"}},
		"an embedded pointer": {pass(embeddingAt{&base{1, 2}}), pass(embeddingAt{}), []string{"embeddingAt.base (jsonloss.base) is an embedded pointer"}},
	} {
		t.Run(name+" where it is set", func(t *testing.T) {
			if set, unset := test.set(), test.unset(); set.back || !unset.same {
				t.Fatal("the test tests nothing")
			}
			p := test.set()
			if len(p.told) != 1 || p.refused != "" {
				t.Fatalf("it says %q, refused for %q; want one word", p.told, p.refused)
			}
			for _, want := range test.tell {
				if !strings.Contains(p.told[0], want) {
					t.Errorf("it says %q, want %q in it", p.told[0], want)
				}
			}
		})
	}
	for name, p := range map[string]func() passage{
		"a string":         pass("a"),
		"bytes":            pass([]byte("a")),
		"a number":         pass(1.5),
		"a time":           pass(struct{ At time.Time }{time.Unix(1, 2).UTC()}),
		"an address":       pass(netip.MustParseAddr("::1")),
		"a document":       pass(json.RawMessage(`{"a":1}`)),
		"keys of numbers":  pass(map[int]string{1: "a"}),
		"keys of text":     pass(map[netip.Addr]int{netip.MustParseAddr("::1"): 1}),
		"what is meant":    pass(struct{ Of *withMeant }{}),
		"nothing":          pass(struct{}{}),
		"a marshaler":      pass(&ownWay{"a"}),
		"many marshalers":  pass([]ownWay{{"a"}, {"b"}}),
		"a list of values": pass(struct{ Tags []string }{[]string{"a"}}),
		"what has a decoder of its own for what JSON cannot decode": pass(&oneWay{strings.NewReader("")}),
	} {
		t.Run(name, func(t *testing.T) {
			if p := p(); !p.same || len(p.told) != 0 || p.refused != "" {
				t.Errorf("the same: %v, it says %q, refused for %q; want nothing said", p.same, p.told, p.refused)
			}
		})
	}
}

type (
	stamped struct {
		time.Time
		Name string
	}
	addressed struct {
		Name string
		netip.Addr
	}
	withNumber struct {
		big.Int
		Name string
	}
	onlyStamped struct {
		time.Time
		Note string `json:"-"`
	}
	ownStamped struct {
		time.Time
		Name string
	}
)

func (o ownStamped) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"At": o.Time, "Name": o.Name})
}

func (o *ownStamped) UnmarshalJSON(b []byte) error {
	var parts struct {
		At   time.Time
		Name string
	}
	err := json.Unmarshal(b, &parts)
	o.Time, o.Name = parts.At, parts.Name
	return err
}

// TestOf_EmbeddedEncoders holds that Of finds exactly the structs that only an embedded field encodes.
func TestOf_EmbeddedEncoders(t *testing.T) {
	at := time.Unix(0, 0).UTC()
	for name, test := range map[string]struct {
		pass func() passage
		tell string // empty: no losses
	}{
		"MarshalJSON":       {pass(stamped{at, "a"}), "stamped is encoded by MarshalJSON of the embedded Time"},
		"MarshalText":       {pass([]addressed{{"a", netip.IPv6Unspecified()}}), "addressed is encoded by MarshalText of the embedded Addr"},
		"of a pointer":      {pass(&withNumber{*big.NewInt(1), "a"}), "withNumber is encoded by MarshalJSON of the embedded Int"},
		"alone":             {pass(onlyStamped{Time: at}), ""},
		"below another one": {pass(ownStamped{at, "a"}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := test.pass()
			if told := strings.Join(p.told, "\n"); p.same != (test.tell == "") || p.same != (told == "") || !strings.Contains(told, test.tell) || p.refused != "" {
				t.Errorf("the same: %v, it says %q, refused for %q; want %q", p.same, told, p.refused, test.tell)
			}
		})
	}
}
