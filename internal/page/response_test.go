package page

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"testing"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
)

func sampleResponses() []*Response {
	return []*Response{
		{status: 200},
		{
			status: 404, body: spool.BodyOf([]byte("gone\x00\xff")),
			fields:    fieldsOf(http.Header{"Etag": {`"e"`}, "Link": {"<a>", "<b>"}, "X-Bytes": {"\xff\xfe"}, "Empty": {}}),
			freshness: httpcache.Freshness{NoStale: true},
		},
		{status: 503, failures: 300},
		{
			kind: checked, status: 200, body: spool.BodyOf([]byte("page")), fields: fieldsOf(http.Header{"Etag": {`"e"`}}),
			freshness: httpcache.Freshness{NoStale: true},
		},
		{kind: varying, vary: &variance{names: []string{"accept", "cookie"}, mark: "m", built: new(variants)}},
		{kind: uncacheable, reason: "private"},
	}
}

func TestResponse_RoundTrip(t *testing.T) {
	for _, r := range sampleResponses() {
		data, err := Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Unmarshal(data)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("got %+v, %v; want %+v", got, err, r)
		}
		// A cut before the body must not decode.
		for n := range len(data) - int(r.body.Len()) {
			if got, err := Unmarshal(data[:n]); !errors.Is(err, errResponse) {
				t.Errorf("%d of %d bytes decode as %+v, %v", n, len(data), got, err)
			}
		}
	}
}

// FuzzResponse: no input panics or allocates more than its length, and a response survives a round.
func FuzzResponse(f *testing.F) {
	for _, r := range sampleResponses() {
		data, _ := Marshal(r)
		f.Add(data)
	}
	f.Add(bytes.Repeat([]byte{0xff}, 32))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Unmarshal(data)
		if err != nil {
			if !errors.Is(err, errResponse) {
				t.Fatalf("err = %v, want errResponse", err)
			}
			return
		}
		again, _ := Marshal(r)
		got, err := Unmarshal(again)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("decoded %+v, which decodes again as %+v, %v", r, got, err)
		}
	})
}

// A response of another version, of an unknown kind or without a status is a miss, and so is a record with a header.
func TestUnmarshal_Unknown(t *testing.T) {
	good := []byte{responseVersion, byte(plain), 0, 200, 1, 0, 0, 0, 0, 0}
	for _, change := range []struct {
		at    int
		value byte
	}{{0, responseVersion + 1}, {1, byte(checked) + 1}, {3, 0}} {
		if _, err := Unmarshal(good); err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		if change.at == 3 {
			bad = slices.Delete(bad, 4, 5) // 200 has two bytes
		}
		bad[change.at] = change.value
		if r, err := Unmarshal(bad); !errors.Is(err, errResponse) {
			t.Errorf("%v decodes as %+v, %v", bad, r, err)
		}
	}
	for kind, known := range map[responseKind]bool{plain: true, varying: false, uncacheable: false, checked: true} {
		data, _ := Marshal(&Response{kind: kind, status: 200, fields: fieldsOf(http.Header{"Etag": {`"e"`}})})
		if r, err := Unmarshal(data); (err == nil) != known || err != nil && !errors.Is(err, errResponse) {
			t.Errorf("kind %d with a header decodes as %+v, %v", kind, r, err)
		}
	}
}

// A number beyond any header costs nothing.
func TestUnmarshal_ManyNames(t *testing.T) {
	data := append([]byte{responseVersion, byte(varying), 0, 0, 0, 0, 0}, binary.AppendUvarint(nil, 1<<20)...)
	data = append(data, make([]byte, 2<<20)...)
	var r any
	var err error
	if n := testing.AllocsPerRun(1, func() { r, err = Unmarshal(data) }); !errors.Is(err, errResponse) || n > 10 {
		t.Errorf("%+v, %v, %v allocations", r, err, n)
	}
}

// The header of a hit has 16 bytes for each value beside the bytes: a field with many short values is not small.
func TestResponse_SizeOfManyValues(t *testing.T) {
	const values = 10_000
	one := &Response{fields: fieldsOf(http.Header{"Link": {"<a>"}})}
	many := &Response{fields: fieldsOf(http.Header{"Link": slices.Repeat([]string{"<a>"}, values)})}
	if got, want := Size("", many)-Size("", one), (values-1)*(16+len("<a>")); got < want {
		t.Errorf("%d more values count as %d bytes, want at least %d", values-1, got, want)
	}
}

// A store has the error's text of another process, maybe of another version.
func TestToldStatus(t *testing.T) {
	for text, want := range map[string]int{"503": 503, "200": 0, "7": 0, "x": 0} {
		if status, ok := toldStatus(&fault.RemoteError{Message: serverErrorText + text}); ok != (want != 0) || ok && status != want {
			t.Errorf("%q: %d, %v, want %d", text, status, ok, want)
		}
	}
}
