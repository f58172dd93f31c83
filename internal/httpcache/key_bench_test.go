package httpcache

import (
	"net/http/httptest"
	"testing"
)

func BenchmarkKey(b *testing.B) {
	for name, target := range map[string]string{
		"path":  "/some/page",
		"query": "/search?q=some+words&page=2&sort=date&lang=en",
		"long":  "/a/rather/long/path/with/many/parts/and%20an%20escape/in/it/index.html",
	} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest("GET", target, nil)
			r.Host = "www.example.com:8080"
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := Key(r); !ok {
					b.Fatal("no key")
				}
			}
		})
	}
}
