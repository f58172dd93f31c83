package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/bellwether-go/bellwether/lockers/dynamolock"
)

// This file connects to DynamoDB. It reads the environment itself, because the SDK's config module is nine
// more modules. A program in AWS passes the result of config.LoadDefaultConfig to dynamodb.NewFromConfig.

func (e *engines) connectDynamoDB(c config) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: time.Second}).DialContext,
		TLSHandshakeTimeout: time.Second,
		// The SDK sets none for a foreign client: an attempt on a silent connection would never end.
		ResponseHeaderTimeout: 2 * time.Second,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   connections,
		IdleConnTimeout:       90 * time.Second,
	}
	options := dynamodb.Options{
		Region:      cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1"),
		Credentials: credentials(c.dynamodb, os.Getenv),
		HTTPClient:  &http.Client{Transport: transport},
		// The second attempt finds a lost reply. More would only lengthen outages before the breaker.
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts, o.MaxBackoff = 2, 100*time.Millisecond
			// Without it there is no second attempt after some hundred failures, at an outage's end.
			o.RateLimiter = ratelimit.None
		}),
	}
	endpoint := "AWS in " + options.Region
	if c.dynamodb != nil {
		endpoint = c.dynamodb.String()
		options.BaseEndpoint = &endpoint
	}
	client := dynamodb.New(options)
	e.locker = dynamolock.New(client, c.dynamodbTable)
	e.remote = append(e.remote, engine{"dynamodb", []string{endpoint}, func(ctx context.Context) error {
		// The lookout asks at the start, and after a call of the locker without an answer: the
		// table may be missing. An existing table is only checked.
		return dynamolock.CreateTable(ctx, client, c.dynamodbTable)
	}})
	e.ends = append(e.ends, func() error {
		transport.CloseIdleConnections()
		return nil
	})
}

// credentials returns the environment's credentials. Without any, an endpoint of the user's own
// counts as an emulator, which does not check them.
func credentials(endpoint *url.URL, getenv func(string) string) aws.CredentialsProviderFunc {
	return func(context.Context) (aws.Credentials, error) {
		c := aws.Credentials{
			AccessKeyID:     getenv("AWS_ACCESS_KEY_ID"),
			SecretAccessKey: getenv("AWS_SECRET_ACCESS_KEY"),
			SessionToken:    getenv("AWS_SESSION_TOKEN"),
		}
		switch {
		case c.AccessKeyID != "" && c.SecretAccessKey != "":
			return c, nil
		case endpoint != nil:
			return aws.Credentials{AccessKeyID: "emulator", SecretAccessKey: "emulator"}, nil
		}
		return c, errors.New("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name an emulator by -dynamodb")
	}
}
