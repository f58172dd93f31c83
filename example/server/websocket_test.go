package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// echo is a WebSocket handler that repeats each message. Other requests get a cacheable page.
func echo(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "page")
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Errorf("accepting a WebSocket: %v", err)
			return
		}
		defer c.CloseNow()
		for {
			kind, message, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, append([]byte("heard "), message...)); err != nil {
				return
			}
		}
	}
}

// talk holds conversations at the same time, over one URL that is also a cached page.
func talk(t *testing.T, url string) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			c, _, err := websocket.Dial(ctx, strings.Replace(url, "http", "ws", 1), nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.CloseNow()
			for j := range 5 {
				said := fmt.Sprintf("%d.%d", i, j)
				if err := c.Write(ctx, websocket.MessageText, []byte(said)); err != nil {
					t.Error(err)
					return
				}
				if _, heard, err := c.Read(ctx); err != nil || string(heard) != "heard "+said {
					t.Errorf("conversation %d: %q, %v", i, heard, err)
					return
				}
			}
			if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
				t.Errorf("conversation %d: closing: %v", i, err)
			}
		})
		wg.Go(func() {
			if a := do("GET", url); a.status != 200 || a.body != "page" {
				t.Errorf("beside the WebSockets: %v", a)
			}
		})
	}
	wg.Wait()
}

func TestWebSocket_ThroughTheProxy(t *testing.T) {
	origin := httptest.NewServer(echo(t))
	defer origin.Close()
	p := start(t, "-upstream", origin.URL)
	talk(t, "http://"+p.addr+"/talk")
}
