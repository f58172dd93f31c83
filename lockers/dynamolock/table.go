package dynamolock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
)

// This file creates the table of the leases.

// CreateTable creates a table for the leases, billed on demand and with time to live. CreateTable returns
// when the table is active, or when ctx ends. It may be called at every start and concurrently. It changes
// existing tables only to enable time to live. A table with another key is an error, and so is a table with a
// status other than active, updating, creating or deleting.
//
// It needs permission for dynamodb:DescribeTable and dynamodb:DescribeTimeToLive, and for changes
// dynamodb:CreateTable and dynamodb:UpdateTimeToLive. On AWS a new table takes some ten seconds. On an
// emulator without time to live, items stay.
func CreateTable(ctx context.Context, client *dynamodb.Client, table string) error {
	err := createTable(ctx, client, table)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("dynamolock: create table %q: %w", table, ctx.Err())
	}
	return fmt.Errorf("dynamolock: create table %q: %w", table, err)
}

func createTable(ctx context.Context, client *dynamodb.Client, table string) error {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &table})
		switch {
		case err == nil && (out.Table.TableStatus == types.TableStatusActive || out.Table.TableStatus == types.TableStatusUpdating):
			if err := checkKey(out.Table); err != nil {
				return err
			}
			return enableTTL(ctx, client, table)
		case err == nil && out.Table.TableStatus != types.TableStatusCreating && out.Table.TableStatus != types.TableStatusDeleting:
			return fmt.Errorf("the table is %s: restore it, or delete it", out.Table.TableStatus) // for example, ARCHIVED
		case err == nil:
		case code(err) == "ResourceNotFoundException":
			if err := create(ctx, client, table); err != nil {
				return err
			}
		default:
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// create begins to create the table, unless another caller has begun.
func create(ctx context.Context, client *dynamodb.Client, table string) error {
	_, err := client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            &table,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String(keyName), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String(keyName), KeyType: types.KeyTypeHash}},
		BillingMode:          types.BillingModePayPerRequest,
	})
	if code(err) == "ResourceInUseException" {
		return nil // another was quicker
	}
	return err
}

func checkKey(t *types.TableDescription) error {
	if len(t.KeySchema) == 1 && aws.ToString(t.KeySchema[0].AttributeName) == keyName {
		for _, a := range t.AttributeDefinitions {
			if aws.ToString(a.AttributeName) == keyName && a.AttributeType == types.ScalarAttributeTypeS {
				return nil
			}
		}
	}
	return errors.New("the table exists with another key than the string " + keyName + "; use another name, or delete the table")
}

func enableTTL(ctx context.Context, client *dynamodb.Client, table string) error {
	enabled, err := hasTTL(ctx, client, table)
	if enabled || err != nil {
		return err
	}
	_, err = client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName:               &table,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(expiresName), Enabled: aws.Bool(true)},
	})
	switch code(err) {
	case "UnknownOperationException":
		return nil
	case "ValidationException":
		// One of its reasons is that another caller was quicker.
		if enabled, again := hasTTL(ctx, client, table); enabled || again != nil {
			return again
		}
	}
	return err
}

func hasTTL(ctx context.Context, client *dynamodb.Client, table string) (bool, error) {
	out, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &table})
	if code(err) == "UnknownOperationException" {
		return true, nil // nothing to enable
	}
	if err != nil || out.TimeToLiveDescription == nil {
		return false, err
	}
	switch out.TimeToLiveDescription.TimeToLiveStatus {
	case types.TimeToLiveStatusEnabled, types.TimeToLiveStatusEnabling:
		if name := aws.ToString(out.TimeToLiveDescription.AttributeName); name != expiresName {
			return false, fmt.Errorf("time to live uses the attribute %q in place of %q; disable it", name, expiresName)
		}
		return true, nil
	}
	return false, nil
}

// code is DynamoDB's name of an error, or "" for another's error.
func code(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorCode()
	}
	return ""
}
