package bellwether_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

func BenchmarkEntry(b *testing.B) {
	for _, size := range []int{100, 10_000} {
		e := driver.Entry{
			Kind: driver.KindValue, Value: bytes.Repeat([]byte("v"), size), Epoch: 1 << 50,
			TTL: time.Minute, StaleWhileRevalidate: time.Hour, BuildTime: 310 * time.Millisecond,
		}
		encoded := e.Append(nil, "https://example.com/a/page?of=many")
		b.Run(fmt.Sprintf("%d/encode", size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(encoded)))
			buf := make([]byte, 0, 2*len(encoded))
			for b.Loop() {
				e.Append(buf, "https://example.com/a/page?of=many")
			}
		})
		b.Run(fmt.Sprintf("%d/decode", size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(encoded)))
			for b.Loop() {
				var got driver.Entry
				if err := got.Decode("https://example.com/a/page?of=many", encoded); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
