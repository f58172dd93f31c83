package dynamolock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/dynamolock"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/redis/go-redis/v9"
)

func Example() {
	ctx := context.Background()
	client := dynamodb.New(dynamodb.Options{ // or dynamodb.NewFromConfig
		Region:       "eu-central-1",
		BaseEndpoint: aws.String("http://localhost:8000"),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "emulator", SecretAccessKey: "emulator"}, nil
		}),
	})
	if err := dynamolock.CreateTable(ctx, client, "leases"); err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", DialerRetries: 1, MaxRetries: 1}) // the cache has a breaker
	defer rdb.Close()
	users := bellwether.New(func(ctx context.Context, id string) (string, error) { return "user " + id, nil }, bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Namespace: "users", Store: redisstore.New(rdb), Locker: dynamolock.New(client, "leases")},
	})
	defer users.Close()
	user, err := users.Get(ctx, "42")
	fmt.Println(user, err)
}
