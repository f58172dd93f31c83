package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

func TestDynamoDB_TableLost(t *testing.T) {
	dynamo := testserver.DynamoDB(t)
	dynamo.OwnOrSkip(t)
	o := newOrigin(t, "max-age=60", 0)
	flags := []string{"-upstream", o.URL, "-store", "redis", "-redis", testserver.Redis(t).Addr, "-locker", "dynamodb", "-dynamodb", "http://" + dynamo.Addr}
	fleet := []*process{start(t, flags...), start(t, flags...)}
	together(t, o, fleet...)
	dynamo.Restart() // dynalite keeps no data; the next rebuild misses the table
	together(t, o, fleet...)
}

func TestCredentials(t *testing.T) {
	emulator, _ := url.Parse("http://127.0.0.1:8000")
	for _, c := range []struct {
		endpoint *url.URL
		env      map[string]string
		want     string // the key, or a part of the error
	}{
		{emulator, nil, "emulator"},
		{emulator, map[string]string{"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "s"}, "mine"},
		{nil, map[string]string{"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "s"}, "mine"},
		{nil, nil, "AWS_ACCESS_KEY_ID"},
		{nil, map[string]string{"AWS_ACCESS_KEY_ID": "mine"}, "AWS_SECRET_ACCESS_KEY"},
	} {
		got, err := credentials(c.endpoint, func(name string) string { return c.env[name] })(t.Context())
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got.AccessKeyID != c.want {
			t.Errorf("%v with %v: %q, %v; want %q", c.endpoint, c.env, got.AccessKeyID, err, c.want)
		}
	}
}
