package dynamolock_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/dynamolock"
)

func makeTable(tb testing.TB, client *dynamodb.Client, name, key string) {
	tb.Helper()
	_, err := client.CreateTable(tb.Context(), &dynamodb.CreateTableInput{
		TableName:            &name,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: &key, AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: &key, KeyType: types.KeyTypeHash}},
		BillingMode:          types.BillingModePayPerRequest,
	})
	if err != nil {
		tb.Fatal(err)
	}
	leasetest.Eventually(tb, 10*time.Second, "the table is active", func() bool {
		out, err := client.DescribeTable(tb.Context(), &dynamodb.DescribeTableInput{TableName: &name})
		if err != nil {
			tb.Fatal(err)
		}
		return out.Table.TableStatus == types.TableStatusActive
	})
}

// timeToLive is a hook that adds DynamoDB's time to live to dynalite.
type timeToLive struct {
	mu        sync.Mutex // guards everything below
	attribute string     // empty while it is disabled
	updates   int
	// racer, if not empty, is the attribute with which another client enables it before the next
	// update arrives.
	racer string
}

func (l *timeToLive) hook(operation string, body []byte, send func() (*http.Response, error)) (*http.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch operation {
	case "DescribeTimeToLive":
		description := map[string]string{"TimeToLiveStatus": "DISABLED"}
		if l.attribute != "" {
			description = map[string]string{"TimeToLiveStatus": "ENABLING", "AttributeName": l.attribute}
		}
		return reply(http.StatusOK, map[string]any{"TimeToLiveDescription": description}), nil
	case "UpdateTimeToLive":
		l.updates++
		if l.racer != "" {
			l.attribute, l.racer = l.racer, ""
		}
		if l.attribute != "" {
			return failure("ValidationException", "TimeToLive is already enabled"), nil
		}
		var in struct {
			TimeToLiveSpecification struct {
				AttributeName string
				Enabled       bool
			}
		}
		if err := json.Unmarshal(body, &in); err != nil || !in.TimeToLiveSpecification.Enabled {
			return failure("ValidationException", "not understood"), nil
		}
		l.attribute = in.TimeToLiveSpecification.AttributeName
		return reply(http.StatusOK, in), nil
	}
	return send()
}

func TestCreateTable(t *testing.T) {
	t.Parallel()
	server := testserver.DynamoDB(t)
	client, w := newClient(t, server.Addr)
	life := &timeToLive{}
	w.do(life.hook)
	name := "bellwether-test-" + adapter.Token()

	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := dynamolock.CreateTable(t.Context(), client, name); err != nil {
				t.Errorf("CreateTable beside others: %v", err)
			}
			// It is active, or this would fail.
			_, err := client.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &name, Key: itemKey("x")})
			if err != nil {
				t.Errorf("right after CreateTable: %v", err)
			}
		})
	}
	wg.Wait()
	out, err := client.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &name})
	if err != nil {
		t.Fatal(err)
	}
	if b := out.Table.BillingModeSummary; b == nil || b.BillingMode != types.BillingModePayPerRequest {
		t.Errorf("billed by %v, want on demand", b)
	}
	if life.attribute != "expires" {
		t.Errorf("time to live by %q, want expires", life.attribute)
	}

	w.counted()
	if err := dynamolock.CreateTable(t.Context(), client, name); err != nil {
		t.Fatal(err)
	}
	for operation := range w.counted() {
		if !slices.Contains([]string{"DescribeTable", "DescribeTimeToLive"}, operation) {
			t.Errorf("%s of a table that is as it should be", operation)
		}
	}
	leasetest.Release(t, leasetest.Acquire(t, dynamolock.New(client, name), newKey(), time.Minute))
}

func TestCreateTable_TimeToLive(t *testing.T) {
	t.Parallel()
	server := testserver.DynamoDB(t)
	table := newTable(t, server)
	for _, c := range []struct {
		name    string
		life    *timeToLive
		wantErr string
		updates int
	}{
		{"disabled", &timeToLive{}, "", 1},
		{"enabled", &timeToLive{attribute: "expires"}, "", 0},
		{"enabled meanwhile", &timeToLive{racer: "expires"}, "", 1},
		{"by another attribute", &timeToLive{attribute: "ttl"}, `"ttl"`, 0},
		{"by another attribute meanwhile", &timeToLive{racer: "ttl"}, `"ttl"`, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, w := newClient(t, server.Addr)
			w.do(c.life.hook)
			err := dynamolock.CreateTable(t.Context(), client, table.name)
			if c.wantErr == "" && err != nil || c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)) {
				t.Errorf("err = %v, want %q in it", err, c.wantErr)
			}
			if c.life.updates != c.updates {
				t.Errorf("%d updates, want %d", c.life.updates, c.updates)
			}
		})
	}
	t.Run("unknown", func(t *testing.T) {
		client, w := newClient(t, server.Addr)
		w.do(func(operation string, _ []byte, send func() (*http.Response, error)) (*http.Response, error) {
			if strings.HasSuffix(operation, "TimeToLive") {
				return failure("UnknownOperationException", ""), nil
			}
			return send()
		})
		if err := dynamolock.CreateTable(t.Context(), client, table.name); err != nil {
			t.Errorf("on an emulator without time to live: %v", err)
		}
	})
}

func TestCreateTable_WithAnotherKey(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, testserver.DynamoDB(t).Addr)
	name := "bellwether-test-" + adapter.Token()
	makeTable(t, client, name, "id")
	err := dynamolock.CreateTable(t.Context(), client, name)
	if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "another key") {
		t.Errorf("err = %v, want one that says that the table is for something else", err)
	}
}

// TestCreateTable_Archived has a table that DynamoDB archived because its key was inaccessible.
func TestCreateTable_Archived(t *testing.T) {
	t.Parallel()
	client, w := newClient(t, testserver.DynamoDB(t).Addr)
	w.do(func(string, []byte, func() (*http.Response, error)) (*http.Response, error) {
		return reply(http.StatusOK, map[string]any{"Table": map[string]string{"TableStatus": "ARCHIVED"}}), nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := dynamolock.CreateTable(ctx, client, "leases"); err == nil || !strings.Contains(err.Error(), "ARCHIVED") {
		t.Errorf("err = %v, want one that names the status", err)
	}
}

func TestCreateTable_WhileItIsDeleted(t *testing.T) {
	t.Parallel()
	table := newTable(t, testserver.DynamoDB(t))
	if _, err := table.client.DeleteTable(t.Context(), &dynamodb.DeleteTableInput{TableName: aws.String(table.name)}); err != nil {
		t.Fatal(err)
	}
	if err := dynamolock.CreateTable(t.Context(), table.client, table.name); err != nil {
		t.Fatal(err)
	}
	leasetest.Release(t, leasetest.Acquire(t, table.locker(t), newKey(), time.Minute))
}
