package dynamolock_test

import (
	"context"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fleettest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/dynamolock"
)

var fleets = []fleettest.Kind{
	fleettest.Memcached.ElectedBy("dynamodb", withTable, open),
	fleettest.Redis.ElectedBy("dynamodb", withTable, open),
}

const fleetTable = "bellwether-fleet"

// withTable starts dynalite with the fleet's table. Unlike DynamoDB, dynalite loses the table when
// it is killed, so each start creates it again.
func withTable(tb testing.TB, args ...string) *testserver.Server {
	tb.Helper()
	server := testserver.DynamoDB(tb)
	client, _ := newClient(tb, server.Addr)
	server.ReadyWhen(func(string) error { return dynamolock.CreateTable(context.Background(), client, fleetTable) })
	return server
}

func open(addr string) (driver.Locker, error) {
	return dynamolock.New(dynamodb.New(dynamodb.Options{
		Region:       "eu-central-1",
		BaseEndpoint: aws.String("http://" + addr),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts, o.MaxBackoff = 2, 50*time.Millisecond }),
	}), fleetTable), nil
}

func TestMain(m *testing.M) { fleettest.Main(m, fleets...) }

func TestFleet(t *testing.T) { fleettest.Elected(t, fleets) }
