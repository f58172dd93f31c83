package httpcache

import "testing"

// BenchmarkNormalised: the header of a browser's navigation, as HTTPOptions.Key gets it for each request, and a plain header.
func BenchmarkNormalised(b *testing.B) {
	browser := header(
		"Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
		"Accept-Encoding", "gzip, deflate, br, zstd",
		"Accept-Language", "de-DE,de;q=0.9,en-US;q=0.8,en;q=0.7",
		"Cache-Control", "max-age=0",
		"Cookie", "session=0123456789abcdef; theme=dark",
		"Priority", "u=0, i",
		"Referer", "https://www.example.com/",
		"Sec-Ch-Ua", `"Chromium";v="136", "Google Chrome";v="136", "Not.A/Brand";v="99"`,
		"Sec-Ch-Ua-Mobile", "?0",
		"Sec-Ch-Ua-Platform", `"Linux"`,
		"Sec-Fetch-Dest", "document",
		"Sec-Fetch-Mode", "navigate",
		"Sec-Fetch-Site", "same-origin",
		"Sec-Fetch-User", "?1",
		"Upgrade-Insecure-Requests", "1",
		"User-Agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/136.0.0.0 Safari/537.36",
	)
	plain := header("Accept", "*/*", "Accept-Encoding", "gzip", "User-Agent", "Go-http-client/2.0", "X-Tenant", "shop")
	for _, bm := range []struct {
		name string
		req  map[string][]string
	}{{"browser", browser}, {"plain", plain}} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Normalised(bm.req, Options{})
			}
		})
	}
}
