//go:build !race

package bellwether_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/bellwether-go/bellwether"
)

// BenchmarkHTTPServer compares a hit with the bare handler, over a socket and with a cheap client.
func BenchmarkHTTPServer(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		body := []byte(strings.Repeat("x", size))
		bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Content-Type", "text/plain")
			h.Set("Cache-Control", "max-age=3600")
			h.Set("Content-Length", strconv.Itoa(size))
			w.Write(body)
		})
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
		for _, bb := range []struct {
			name    string
			handler http.Handler
		}{{"bare", bare}, {"hit", mw.Handler(bare)}} {
			b.Run(fmt.Sprintf("size=%d/%s", size, bb.name), func(b *testing.B) {
				server := httptest.NewServer(bb.handler)
				defer server.Close()
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				in, asks := bufio.NewReaderSize(conn, 1<<20), []byte("GET /a/b?c=d HTTP/1.1\r\nHost: example.com\r\n\r\n")
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := conn.Write(asks); err != nil {
						b.Fatal(err)
					}
					for line := "?"; line != "\r\n"; {
						if line, err = in.ReadString('\n'); err != nil {
							b.Fatal(err)
						}
					}
					if _, err := io.CopyN(io.Discard, in, int64(size)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		mw.Close()
	}
}
