package dynamolock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// This file is between the tests' clients and dynalite: it counts requests, fails them as DynamoDB
// does, and adds features of DynamoDB.

// A wire is an [http.RoundTripper] to one engine, with a hook for each request.
type wire struct {
	transport *http.Transport
	// real adds the item to refusals, as DynamoDB does and dynalite does not. The item is read
	// after the refusal, so unlike DynamoDB's it may be a later one.
	real bool

	mu     sync.Mutex // guards counts and hook
	counts map[string]int
	hook   hook
}

// A hook gets an operation's name, its body, and a function that carries it out.
type hook func(operation string, body []byte, send func() (*http.Response, error)) (*http.Response, error)

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	w.mu.Lock()
	w.counts[operation]++
	hook := w.hook
	w.mu.Unlock()
	send := func() (*http.Response, error) {
		resp, err := w.send(r, r.Header.Get("X-Amz-Target"), body)
		if err != nil || !w.real {
			return resp, err
		}
		return w.withItem(r, resp, body)
	}
	if hook != nil {
		r = r.WithContext(context.WithoutCancel(r.Context())) // it may be carried out later
		return hook(operation, body, send)
	}
	return send()
}

func (w *wire) send(r *http.Request, target string, body []byte) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Amz-Target", target)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return w.transport.RoundTrip(r)
}

// withItem adds the item to a refusal, if the request wants it.
func (w *wire) withItem(r *http.Request, resp *http.Response, request []byte) (*http.Response, error) {
	var asked struct {
		TableName                           string
		Key                                 json.RawMessage
		ReturnValuesOnConditionCheckFailure string
	}
	if resp.StatusCode != http.StatusBadRequest || json.Unmarshal(request, &asked) != nil || asked.ReturnValuesOnConditionCheckFailure != "ALL_OLD" {
		return resp, nil
	}
	defer resp.Body.Close()
	var refusal map[string]json.RawMessage
	if err := json.NewDecoder(resp.Body).Decode(&refusal); err != nil {
		return nil, err
	}
	if strings.Contains(string(refusal["__type"]), "ConditionalCheckFailedException") {
		get, _ := json.Marshal(map[string]any{"TableName": asked.TableName, "Key": asked.Key, "ConsistentRead": true})
		got, err := w.send(r, "DynamoDB_20120810.GetItem", get)
		if err != nil {
			return nil, err
		}
		defer got.Body.Close()
		var out struct{ Item json.RawMessage }
		if err := json.NewDecoder(got.Body).Decode(&out); err != nil {
			return nil, err
		}
		if out.Item != nil {
			refusal["Item"] = out.Item
		}
	}
	return reply(http.StatusBadRequest, refusal), nil
}

func reply(status int, body any) *http.Response {
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Body:   io.NopCloser(bytes.NewReader(b)), ContentLength: int64(len(b)),
	}
}

// failure is an error in DynamoDB's format: the code in its namespace, and the message.
func failure(code, message string) *http.Response {
	namespace := "com.amazonaws.dynamodb.v20120810#"
	switch code {
	case "ThrottlingException", "ValidationException", "UnknownOperationException", "AccessDeniedException", "UnrecognizedClientException":
		namespace = "com.amazon.coral.service#"
	}
	return reply(http.StatusBadRequest, map[string]string{"__type": namespace + code, "message": message})
}

// fails answers so many requests with a failure, and sends the others.
func fails(code, message string, times int64) hook {
	var n atomic.Int64
	return func(_ string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
		if n.Add(1) > times {
			return send()
		}
		return failure(code, message), nil
	}
}

// do passes the following requests to hook. nil ends that.
func (w *wire) do(h hook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = h
}

func (w *wire) counted() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := maps.Clone(w.counts)
	clear(w.counts)
	return counts
}

func newClient(tb testing.TB, addr string, options ...func(*dynamodb.Options)) (*dynamodb.Client, *wire) {
	tb.Helper()
	w := &wire{transport: &http.Transport{MaxIdleConnsPerHost: 100}, counts: map[string]int{}}
	tb.Cleanup(w.transport.CloseIdleConnections)
	o := dynamodb.Options{
		Region:       "eu-central-1",
		BaseEndpoint: aws.String("http://" + addr),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
		HTTPClient: &http.Client{Transport: w},
		Retryer:    retry.NewStandard(func(o *retry.StandardOptions) { o.MaxBackoff = 50 * time.Millisecond }),
	}
	for _, set := range options {
		set(&o)
	}
	return dynamodb.New(o), w
}

// once keeps the SDK from repeating requests.
func once(o *dynamodb.Options) { o.Retryer = aws.NopRetryer{} }
