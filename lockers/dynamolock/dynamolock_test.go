package dynamolock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/dynamolock"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
)

// A table is a table on a running engine, with a client for the test's own reads.
type table struct {
	addr, name string
	client     *dynamodb.Client
}

func newTable(tb testing.TB, server *testserver.Server) table {
	tb.Helper()
	client, _ := newClient(tb, server.Addr)
	t := table{server.Addr, "bellwether-test-" + adapter.Token(), client}
	if err := dynamolock.CreateTable(tb.Context(), client, t.name); err != nil {
		tb.Fatal(err)
	}
	if !server.Own() {
		tb.Cleanup(func() { client.DeleteTable(context.Background(), &dynamodb.DeleteTableInput{TableName: &t.name}) })
	}
	return t
}

func (t table) locker(tb testing.TB) *dynamolock.Locker {
	tb.Helper()
	l, _ := t.wired(tb)
	return l
}

// wired returns such a Locker with the wire to its engine.
func (t table) wired(tb testing.TB, options ...func(*dynamodb.Options)) (*dynamolock.Locker, *wire) {
	tb.Helper()
	client, w := newClient(tb, t.addr, options...)
	return dynamolock.New(client, t.name), w
}

func (t table) item(tb testing.TB, key string) map[string]types.AttributeValue {
	tb.Helper()
	out, err := t.client.GetItem(tb.Context(), &dynamodb.GetItemInput{TableName: &t.name, Key: itemKey(key), ConsistentRead: aws.Bool(true)})
	if err != nil {
		tb.Fatal(err)
	}
	return out.Item
}

func (t table) put(tb testing.TB, item map[string]types.AttributeValue) {
	tb.Helper()
	if _, err := t.client.PutItem(tb.Context(), &dynamodb.PutItemInput{TableName: &t.name, Item: item}); err != nil {
		tb.Fatal(err)
	}
}

// drop deletes the item of a key, as time to live does.
func (t table) drop(tb testing.TB, key string) {
	tb.Helper()
	if _, err := t.client.DeleteItem(tb.Context(), &dynamodb.DeleteItemInput{TableName: &t.name, Key: itemKey(key)}); err != nil {
		tb.Fatal(err)
	}
}

func itemKey(key string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"lease": str("bellwether:" + key)}
}

func str(s string) types.AttributeValue   { return &types.AttributeValueMemberS{Value: s} }
func num(n int64) types.AttributeValue    { return &types.AttributeValueMemberN{Value: fmt.Sprint(n)} }
func boolean(b bool) types.AttributeValue { return &types.AttributeValueMemberBOOL{Value: b} }

func number(tb testing.TB, item map[string]types.AttributeValue, name string) int64 {
	tb.Helper()
	v, ok := item[name].(*types.AttributeValueMemberN)
	if !ok {
		tb.Fatalf("the item has no number %q: %v", name, item)
	}
	n, err := strconv.ParseInt(v.Value, 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func newKey() string { return "dynamolock:" + adapter.Token() }

// mustBeTheEngines fails unless err is a failure of the engine with every wanted text.
func mustBeTheEngines(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	leasetest.MustBeNoAnswer(t, what, err)
	for _, text := range want {
		if err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: err = %v, which says nothing of %q", what, err, text)
		}
	}
}

// eachEngine runs a test with dynalite as it is, and with DynamoDB's refusals, which have the item.
func eachEngine(t *testing.T, test func(t *testing.T, table table, locker func(testing.TB) (*dynamolock.Locker, *wire))) {
	server := testserver.DynamoDB(t)
	for name, real := range map[string]bool{"refusals with the item": true, "refusals without": false} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t, server)
			test(t, table, func(tb testing.TB) (*dynamolock.Locker, *wire) {
				l, w := table.wired(tb)
				w.real = real
				return l, w
			})
		})
	}
}

func TestConformance(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ table, locker func(testing.TB) (*dynamolock.Locker, *wire)) {
		lockertest.Run(t, func(tb testing.TB) driver.Locker {
			l, _ := locker(tb)
			return l
		})
	})
}

// TestToken_AfterLoss has the item cleaned up, and the table lost.
func TestToken_AfterLoss(t *testing.T) {
	t.Parallel()
	server := testserver.DynamoDB(t).OwnOrSkip(t)
	table := newTable(t, server)
	l, key := table.locker(t), newKey()
	first := leasetest.Token(t, leasetest.Acquire(t, l, key, time.Minute))
	table.drop(t, key)
	before := leasetest.Token(t, leasetest.Acquire(t, l, key, time.Minute))
	if before <= first {
		t.Errorf("token %d after %d", before, first)
	}
	server.Restart()
	if err := dynamolock.CreateTable(t.Context(), table.client, table.name); err != nil {
		t.Fatal(err)
	}
	if after := leasetest.Token(t, leasetest.Acquire(t, l, key, time.Minute)); after <= before {
		t.Errorf("token %d after %d", after, before)
	}
}

// TestExpires_DecidesNothing writes dates that contradict the items.
func TestExpires_DecidesNothing(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	a, b, key := table.locker(t), table.locker(t), newKey()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	item := table.item(t, key)
	item["expires"] = num(time.Now().Add(-48 * time.Hour).Unix())
	table.put(t, item)
	if until := leasetest.MustBeHeld(t, b, key).Until; time.Until(until) < 50*time.Second {
		t.Errorf("Until is in %v, want a minute", time.Until(until))
	}
	leasetest.Release(t, lease)
	item = table.item(t, key)
	item["expires"] = num(time.Now().Add(1000 * time.Hour).Unix())
	table.put(t, item)
	leasetest.Release(t, leasetest.Acquire(t, b, key, time.Minute))
}

// TestRenew_LateRequest delivers an abandoned renewal after a longer one has succeeded.
func TestRenew_LateRequest(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	l, w := table.wired(t, once)
	key := newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)

	var deliver func() (*http.Response, error)
	underway := make(chan struct{})
	w.do(func(_ string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
		w.do(nil)
		deliver = send
		close(underway)
		return nil, errors.New("the reply is lost")
	})
	err := lease.Renew(t.Context(), 5*time.Second)
	<-underway
	mustBeTheEngines(t, "Renew without a reply", err)
	leasetest.Renew(t, lease, time.Hour)
	resp, err := deliver()
	if err == nil {
		resp.Body.Close()
	}
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("the late renewal: %v, %v, want it refused", resp, err)
	}
	if got := number(t, table.item(t, key), "length"); got != time.Hour.Milliseconds() {
		t.Errorf("observers count %d ms, while the holder believes in an hour", got)
	}
	leasetest.Release(t, lease)
}

// TestRenew_ShorterWithoutAnAnswer: other processes may count the shorter length, so the holder counts no longer.
func TestRenew_ShorterWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	l, w := newTable(t, testserver.DynamoDB(t)).wired(t, once)
	lease := leasetest.Acquire(t, l, newKey(), time.Minute)
	w.do(func(_ string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
		w.do(nil)
		if resp, err := send(); err == nil {
			resp.Body.Close()
		}
		return nil, errors.New("the reply is lost")
	})
	mustBeTheEngines(t, "Renew without a reply", lease.Renew(t.Context(), 100*time.Millisecond))
	time.Sleep(200 * time.Millisecond)
	leasetest.MustBeLost(t, "Renew after the shorter length", lease.Renew(t.Context(), time.Minute))
}

// TestRenew_ShorterWithoutAnAnswerAgain: the renewal follows another one without an answer, so its first request is
// refused, and its second has a version without a reply before it.
func TestRenew_ShorterWithoutAnAnswerAgain(t *testing.T) {
	t.Parallel()
	l, w := newTable(t, testserver.DynamoDB(t)).wired(t, once)
	lease := leasetest.Acquire(t, l, newKey(), time.Minute)
	w.do(func(operation string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
		resp, err := send()
		if operation == "UpdateItem" && err == nil && resp.StatusCode == http.StatusOK {
			resp.Body.Close()
			return nil, errors.New("the reply is lost")
		}
		return resp, err
	})
	mustBeTheEngines(t, "Renew without a reply", lease.Renew(t.Context(), time.Minute))
	mustBeTheEngines(t, "a shorter Renew without a reply", lease.Renew(t.Context(), 100*time.Millisecond))
	w.do(nil)
	time.Sleep(200 * time.Millisecond)
	leasetest.MustBeLost(t, "Renew after the shorter length", lease.Renew(t.Context(), time.Minute))
}

// TestTakeOver_MeetsALateRenewal has a renewal, sent in time, arrive after an observer has counted
// the lease's end and before its takeover.
func TestTakeOver_MeetsALateRenewal(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	a, wa := table.wired(t)
	b, wb := table.wired(t)
	key := newKey()
	lease := leasetest.Acquire(t, a, key, time.Second)
	until := leasetest.MustBeHeld(t, b, key).Until

	arrive, arrived := make(chan struct{}), make(chan struct{})
	wa.do(func(_ string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
		<-arrive
		defer close(arrived)
		return send()
	})
	renewed := make(chan error)
	go func() { renewed <- lease.Renew(t.Context(), time.Hour) }()
	wb.do(func(operation string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
		if operation == "UpdateItem" {
			wb.do(nil)
			close(arrive)
			<-arrived
		}
		return send()
	})
	time.Sleep(time.Until(until))
	if until := leasetest.MustBeHeld(t, b, key).Until; time.Until(until) < 50*time.Minute {
		t.Errorf("the renewed lease ends in %v, want an hour", time.Until(until))
	}
	if err := <-renewed; err != nil {
		t.Errorf("Renew: %v", err)
	}
	wa.do(nil)
	leasetest.Release(t, lease)
}

// TestTakeOver_MeetsARelease has the holder release just before the takeover, which is refused.
func TestTakeOver_MeetsARelease(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, table table, locker func(testing.TB) (*dynamolock.Locker, *wire)) {
		a, _ := locker(t)
		b, wb := locker(t)
		key := newKey()
		lease := leasetest.Acquire(t, a, key, 50*time.Millisecond)
		time.Sleep(time.Until(leasetest.MustBeHeld(t, b, key).Until))
		wb.do(func(operation string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
			if operation == "UpdateItem" {
				wb.do(nil)
				leasetest.MustBeLost(t, "Release of a lease that has ended", lease.Release(t.Context()))
			}
			return send()
		})
		leasetest.Release(t, leasetest.Acquire(t, b, key, time.Minute))
	})
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	l, other, key := table.locker(t), table.locker(t), newKey()
	l.Prefix, other.Prefix = "shop:", ""
	leasetest.Acquire(t, l, key, time.Minute)
	leasetest.Acquire(t, other, key, time.Minute)
	leasetest.Acquire(t, table.locker(t), key, time.Minute) // another prefix is another key
	if item := table.item(t, key); item == nil {
		t.Error("no lease under the default prefix")
	}
}

func TestTTL_OverAYear(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	a, b, key := table.locker(t), table.locker(t), newKey()
	const century = 100 * 365 * 24 * time.Hour
	lease := leasetest.Acquire(t, a, key, century)
	limit := time.Now().Add(365*24*time.Hour + time.Minute)
	if until := leasetest.MustBeHeld(t, b, key).Until; until.After(limit) {
		t.Errorf("Until = %v, want a year at most", until)
	}
	leasetest.Renew(t, lease, 1<<63-1)
	if until := leasetest.MustBeHeld(t, b, key).Until; until.After(limit) {
		t.Errorf("Until = %v, want a year at most", until)
	}
	leasetest.Release(t, lease)
}

func TestForeignItem(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	l := table.locker(t)
	type item = map[string]types.AttributeValue
	for name, change := range map[string]item{
		"nothing of ours":      {"owner": nil, "version": nil, "length": nil, "held": nil},
		"no owner":             {"owner": nil},
		"an empty owner":       {"owner": str("")},
		"a number for owner":   {"owner": num(1)},
		"no version":           {"version": nil},
		"a negative version":   {"version": num(-1)},
		"a huge version":       {"version": &types.AttributeValueMemberN{Value: "99999999999999999999"}},
		"a broken version":     {"version": &types.AttributeValueMemberN{Value: "1.5"}},
		"no length":            {"length": nil},
		"a length of nothing":  {"length": num(0)},
		"a length of a decade": {"length": num(10 * 365 * 24 * time.Hour.Milliseconds())},
		"no word on holding":   {"held": nil},
		"held by a string":     {"held": str("true")},
		"free, huge version":   {"held": boolean(false), "version": &types.AttributeValueMemberN{Value: "99999999999999999999"}},
		"free, broken version": {"held": boolean(false), "version": &types.AttributeValueMemberN{Value: "1.5"}},
		"free, version a text": {"held": boolean(false), "version": str("7")},
		"free, no version":     {"held": boolean(false), "version": nil},
	} {
		key := newKey()
		foreign := item{"lease": str("bellwether:" + key), "owner": str("x"), "version": num(7), "length": num(1000), "held": boolean(true)}
		for attribute, v := range change {
			foreign[attribute] = v
			if v == nil {
				delete(foreign, attribute)
			}
		}
		table.put(t, foreign)
		_, err := l.TryAcquire(t.Context(), key, time.Minute)
		mustBeTheEngines(t, name, err, "bellwether:"+key, "not a lease", table.name)
		if !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("%s: err = %v, want ErrCorrupt", name, err)
		}
	}
}

func TestSilentServer(t *testing.T) {
	server := testserver.DynamoDB(t).OwnOrSkip(t)
	table := newTable(t, server)
	a, b := table.locker(t), table.locker(t)
	held, free := newKey(), newKey()
	lease := leasetest.Acquire(t, a, held, time.Minute)

	server.Signal(syscall.SIGSTOP)
	lockertest.Hang(t, a, lease)
	leasetest.MustGiveUp(t, "TryAcquire", func(ctx context.Context) error {
		_, err := a.TryAcquire(ctx, free, time.Minute)
		return err
	})
	leasetest.MustGiveUp(t, "CreateTable", func(ctx context.Context) error { return dynamolock.CreateTable(ctx, table.client, table.name) })
	server.Signal(syscall.SIGCONT)

	// Neither the abandoned acquire nor the released lease blocks its key.
	for _, key := range []string{free, held} {
		leasetest.MustBecomeFree(t, b, key)
	}
}

func TestTryAcquire_ContextEndsBeforeTheReply(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	l, w := table.wired(t)
	key := newKey()
	for name, lost := range map[string]bool{"the reply comes": false, "the reply is lost": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			carriedOut := make(chan struct{})
			w.do(func(_ string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
				w.do(nil)
				resp, err := send()
				cancel()
				<-carriedOut
				if lost && err == nil {
					resp.Body.Close()
					return nil, errors.New("the reply is lost")
				}
				return resp, err
			})
			_, err := l.TryAcquire(ctx, key, time.Hour)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v, want the context's", err)
			}
			if item := table.item(t, key); item["held"].(*types.AttributeValueMemberBOOL).Value != true {
				t.Fatal("the lease was not taken: the test tests nothing")
			}
			close(carriedOut)
			leasetest.Eventually(t, 5*time.Second, "no lease without a holder", func() bool {
				return !table.item(t, key)["held"].(*types.AttributeValueMemberBOOL).Value
			})
		})
	}
}

func TestDeadServer(t *testing.T) {
	t.Parallel()
	server := testserver.DynamoDB(t).OwnOrSkip(t)
	table := newTable(t, server)
	l, _ := table.wired(t, once)
	key := newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	all := func(what string, want ...string) {
		t.Helper()
		_, err := l.TryAcquire(t.Context(), key, time.Minute)
		mustBeTheEngines(t, "TryAcquire "+what, err, append(want, table.name)...)
		mustBeTheEngines(t, "Renew "+what, lease.Renew(t.Context(), time.Minute), append(want, table.name)...)
		mustBeTheEngines(t, "Release "+what, lease.Release(t.Context()), append(want, table.name)...)
	}
	server.Kill()
	all("without a server")
	lockertest.Down(t, l, lease)
	server.Start()
	all("without a table", "no such table", "dynamolock.CreateTable")

	if err := dynamolock.CreateTable(t.Context(), table.client, table.name); err != nil {
		t.Fatal(err)
	}
	leasetest.Acquire(t, l, key, time.Minute) // the restart took the lease away
	leasetest.MustBeLost(t, "Renew of a lease that the restart took away", lease.Renew(t.Context(), time.Minute))
	leasetest.MustBeLost(t, "Release of a lease that the restart took away", lease.Release(t.Context()))
	leasetest.MustBeHeld(t, l, key)
}

// TestClientTimeout has an HTTP client with a time limit, whose error looks like the end of a context.
func TestClientTimeout(t *testing.T) {
	server := testserver.DynamoDB(t).OwnOrSkip(t)
	table := newTable(t, server)
	l, _ := table.wired(t, once, func(o *dynamodb.Options) {
		o.HTTPClient = &http.Client{Transport: o.HTTPClient.(*http.Client).Transport, Timeout: 50 * time.Millisecond}
	})
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	_, err := l.TryAcquire(t.Context(), newKey(), time.Minute)
	mustBeTheEngines(t, "TryAcquire", err, "no answer in time")
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	server := testserver.DynamoDB(t)
	direct := newTable(t, server)
	proxy := testserver.NewProxy(t, server.Addr)
	through := direct
	through.addr = proxy.Addr
	leasetest.LostReplies{
		A: through.locker(t), B: direct.locker(t), NewKey: newKey, Armed: proxy.Armed,
		Lose: func(call, key string, _ *driver.HeldError) {
			if call == "takeover" {
				key = ":silent" // only in the takeover's condition, not in the look before it
			}
			proxy.SwallowReplyTo(key)
		},
	}.Run(t, "acquire", "refused acquire", "takeover", "renewal", "release")
}

func TestThrottled(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	for _, c := range []struct{ code, message, want string }{
		{"ProvisionedThroughputExceededException", "The level of configured provisioned throughput for the table was exceeded. Consider increasing your provisioning level with the UpdateTable API.", "capacity"},
		{"ThrottlingException", "Throughput exceeds the current throughput limit for your account. Please contact AWS Support.", "on demand"},
		{"RequestLimitExceeded", "Throughput exceeds the current throughput limit for your account.", "account"},
	} {
		t.Run(c.code, func(t *testing.T) {
			l, w := table.wired(t, once)
			held, free := newKey(), newKey()
			lease := leasetest.Acquire(t, l, held, time.Minute)
			w.do(fails(c.code, c.message, 1000))
			_, err := l.TryAcquire(t.Context(), free, time.Minute)
			mustBeTheEngines(t, "TryAcquire", err, "throttled", c.want, c.code, table.name)
			mustBeTheEngines(t, "Renew", lease.Renew(t.Context(), time.Minute), "throttled", c.want)
			w.do(nil)
			leasetest.Renew(t, lease, time.Minute) // afterwards
			leasetest.Release(t, leasetest.Acquire(t, l, free, time.Minute))
			w.do(fails(c.code, c.message, 2))
			mustBeTheEngines(t, "Release", lease.Release(t.Context()), "throttled", c.want)
			leasetest.MustBecomeFree(t, l, held)
		})
	}
	t.Run("for a moment", func(t *testing.T) {
		l, w := table.wired(t)
		w.do(fails("ProvisionedThroughputExceededException", "", 1))
		leasetest.Release(t, leasetest.Acquire(t, l, newKey(), time.Minute)) // the SDK tries again
	})
}

// TestTryAcquire_UnansweredIsUndone has DynamoDB carry out an acquire with an unreadable reply: the
// lease has no holder, and DynamoDB never ends it.
func TestTryAcquire_UnansweredIsUndone(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	other := table.locker(t)
	for name, reply := range map[string]string{"cut short": `{"Attr`, "of a proxy": "<html>", "empty": "", "none": "{}"} {
		l, w := table.wired(t)
		key := newKey()
		var n atomic.Int64
		w.do(func(_ string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
			res, err := send()
			if err != nil || n.Add(1) > 1 {
				return res, err
			}
			res.Body.Close()
			res.Body, res.ContentLength = io.NopCloser(strings.NewReader(reply)), int64(len(reply))
			res.Header.Del("X-Amz-Crc32")
			return res, nil
		})
		_, err := l.TryAcquire(t.Context(), key, time.Minute)
		mustBeTheEngines(t, name, err)
		leasetest.MustBecomeFree(t, other, key)
	}
}

// TestTryAcquire_LostReplyThenThrottled has the first attempt take the lease and lose its reply, and
// the SDK's further attempts throttled.
func TestTryAcquire_LostReplyThenThrottled(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	l, w := table.wired(t)
	key := newKey()
	var n atomic.Int64
	w.do(func(_ string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
		switch n.Add(1) {
		case 1:
			if res, err := send(); err == nil {
				res.Body.Close()
			}
			return nil, errors.New("the reply is lost")
		case 2, 3:
			return failure("ThrottlingException", ""), nil
		}
		return send()
	})
	_, err := l.TryAcquire(t.Context(), key, time.Hour)
	mustBeTheEngines(t, "TryAcquire", err, "throttled")
	leasetest.MustBecomeFree(t, table.locker(t), key)
}

// TestTryAcquire_LateAttempt has an attempt carried out after the SDK's next attempt was answered and
// the key became free: the lease it takes has no holder.
func TestTryAcquire_LateAttempt(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	other := table.locker(t)
	for name, held := range map[string]bool{"after ErrHeld": true, "after the release": false} {
		t.Run(name, func(t *testing.T) {
			l, w := table.wired(t)
			key := newKey()
			var late func() (*http.Response, error)
			var updates atomic.Int64
			arrived := make(chan struct{})
			background := int64(3) // the first update after the calls
			if !held {
				background++
			}
			w.do(func(operation string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
				if operation == "UpdateItem" {
					switch updates.Add(1) {
					case 1:
						late = send
						return nil, errors.New("no reply")
					case background:
						<-arrived
					}
				}
				return send()
			})
			if held {
				lease := leasetest.Acquire(t, other, key, time.Minute)
				leasetest.MustBeHeld(t, l, key)
				leasetest.Release(t, lease)
			} else {
				leasetest.Release(t, leasetest.Acquire(t, l, key, time.Minute))
			}
			res, err := late()
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("the late attempt: %v, %v: the test tests nothing", res, err)
			}
			res.Body.Close()
			close(arrived)
			leasetest.MustBecomeFree(t, other, key)
		})
	}
}

// TestConflictOfRegions has DynamoDB refuse an update in conflict with another region's.
func TestConflictOfRegions(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	conflict := func(times int64) hook {
		return fails("ReplicatedWriteConflictException", "One or more items in this request are being modified by a request in another Region.", times)
	}
	l, w := table.wired(t, once)
	w.do(conflict(2))
	lease := leasetest.Acquire(t, l, newKey(), time.Minute)
	w.do(conflict(1))
	leasetest.Renew(t, lease, time.Minute)
	w.do(conflict(1))
	leasetest.Release(t, lease)

	w.do(conflict(1000))
	w.counted()
	_, err := l.TryAcquire(t.Context(), newKey(), time.Minute)
	mustBeTheEngines(t, "TryAcquire", err, "ReplicatedWriteConflictException")
	if n := w.counted()["UpdateItem"]; n != 4 {
		t.Errorf("%d updates, want 4 until it is given up", n)
	}
}

// TestTryAcquire_GivenUpBeforeItAsked undoes nothing: an undo would be load on an engine in trouble.
func TestTryAcquire_GivenUpBeforeItAsked(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	l, w := table.wired(t, once)
	key := newKey()
	leasetest.Acquire(t, table.locker(t), key, time.Minute)
	leasetest.MustBeHeld(t, l, key) // it reads first from now on
	w.counted()
	goOn := make(chan struct{})
	w.do(func(operation string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
		<-goOn
		return failure("ThrottlingException", ""), nil
	})
	leasetest.MustGiveUp(t, "TryAcquire", func(ctx context.Context) error {
		_, err := l.TryAcquire(ctx, key, time.Minute)
		return err
	})
	close(goOn)
	time.Sleep(500 * time.Millisecond) // an undo would come after 250 ms
	if counted := w.counted(); counted["GetItem"] != 1 || counted["UpdateItem"] != 0 {
		t.Errorf("requests: %v, want the look alone", counted)
	}
}

func TestErrors_SayHowToMend(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	l, w := table.wired(t, once)
	for _, c := range []struct{ code, message, want string }{
		{"AccessDeniedException", "User: x is not authorized to perform: dynamodb:UpdateItem", "dynamodb:GetItem"},
		{"UnrecognizedClientException", "The security token included in the request is invalid.", "credentials are not valid"},
		{"InvalidSignatureException", "Signature expired: 20260101T000000Z is now earlier than 20260101T010000Z", "this machine's clock"},
		{"InternalServerError", "Internal server error", "Internal server error"},
	} {
		w.do(fails(c.code, c.message, 1000))
		_, err := l.TryAcquire(t.Context(), newKey(), time.Minute)
		mustBeTheEngines(t, c.code, err, c.want, table.name)
	}
	w.do(nil)

	other := "bellwether-test-" + adapter.Token() // a table for another purpose
	makeTable(t, table.client, other, "id")
	_, err := dynamolock.New(table.client, other).TryAcquire(t.Context(), newKey(), time.Minute)
	mustBeTheEngines(t, "a table with another key", err, "the string lease as its only key")
}

// TestCycles_LeaveOnlyReleasedItems: a lease leaves one free item, with a date for its clean-up.
func TestCycles_LeaveOnlyReleasedItems(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	began := time.Now()
	items := 0
	newLocker := func(tb testing.TB) driver.Locker { return table.locker(tb) }
	lockertest.LeavesNothing(t, newLocker, func() map[string]int {
		items = 0
		left := map[string]int{"held items": 0, "items that are not cleared tomorrow": 0}
		pages := dynamodb.NewScanPaginator(table.client, &dynamodb.ScanInput{TableName: &table.name, ConsistentRead: aws.Bool(true)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			items += len(page.Items)
			for _, item := range page.Items {
				if item["held"].(*types.AttributeValueMemberBOOL).Value {
					left["held items"]++
				}
				clears := time.Unix(number(t, item, "expires"), 0)
				if clears.Before(began.Add(23*time.Hour)) || clears.After(time.Now().Add(25*time.Hour)) {
					left["items that are not cleared tomorrow"]++
				}
			}
		}
		return left
	})
	want := 10_000
	if testing.Short() {
		want = 1_000
	}
	if items != want {
		t.Errorf("%d items after the leases of %d keys, want one for each", items, want)
	}
}

func TestNew_NoClient(t *testing.T) {
	leasetest.MustPanic(t, "dynamolock: New needs a client", func() { dynamolock.New(nil, "leases") })
}
