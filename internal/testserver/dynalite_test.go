package testserver

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// TestDynamoDB_OutlivesBrokenRequests leaves in the middle of requests: plain dynalite crashes then.
func TestDynamoDB_OutlivesBrokenRequests(t *testing.T) {
	server := DynamoDB(t)
	for range 5 {
		c, err := net.Dial("tcp", server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\nthe first of them")
		time.Sleep(20 * time.Millisecond) // it is being read
		c.Close()
	}
	time.Sleep(100 * time.Millisecond) // time for dynalite to end
	if err := answersHTTP(server.Addr); err != nil {
		t.Errorf("dynalite is gone: %v", err)
	}
}
