package dynamolock

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the item of a lease, and its four changes, each with its condition.

// The attributes of an item. DynamoDB may reserve their names, so expressions use placeholders.
const (
	keyName     = "lease"   // string: the table's partition key
	ownerName   = "owner"   // string: a random token
	versionName = "version" // number: rises with every change
	lengthName  = "length"  // number: milliseconds from the last change
	heldName    = "held"    // boolean
	expiresName = "expires" // number: seconds since 1970, for the table's time to live
)

// keep is the least time for which an item stays after its lease, and the tolerance for a slow client clock.
const keep = 24 * time.Hour

// A record is the content of an item, the zero record a missing item. Equal records mean an unchanged item,
// because each change raises the version.
type record struct {
	owner   string
	version uint64
	length  time.Duration
	held    bool
}

// About the first and the last wait of an update in conflict with another region's.
const (
	conflictPause    = 20 * time.Millisecond
	maxConflictPause = 4 * conflictPause
)

type attributes = map[string]types.AttributeValue

// decode decodes an item, and returns false if the item is not a lease.
func decode(item attributes) (record, bool) {
	held, ok1 := item[heldName].(*types.AttributeValueMemberBOOL)
	owner, ok2 := item[ownerName].(*types.AttributeValueMemberS)
	version, ok3 := decodeNumber(item[versionName])
	ms, ok4 := decodeNumber(item[lengthName])
	if !ok1 || !ok2 || !ok3 || !ok4 || owner.Value == "" || ms == 0 || ms > millis(maxTTL) {
		return record{}, false
	}
	return record{owner: owner.Value, version: version, length: time.Duration(ms) * time.Millisecond, held: held.Value}, true
}

func decodeNumber(v types.AttributeValue) (uint64, bool) {
	n, ok := v.(*types.AttributeValueMemberN)
	if !ok {
		return 0, false
	}
	x, err := strconv.ParseUint(n.Value, 10, 64)
	return x, err == nil
}

type change struct {
	set, condition string
	values         attributes
}

// take is the change that acquires a free lease. A missing item's version begins with the client's date:
// greater than all versions counted up from an earlier date, at less than a million changes a second. The condition
// keeps the sum from a foreign item's version, which is perhaps a text: DynamoDB's error would not name the item.
func take(owner string, ttl time.Duration) change {
	return change{
		set:       "#owner = :owner, #version = if_not_exists(#version, :seed) + :one, #length = :length, #held = :true, #expires = :expires",
		condition: "attribute_not_exists(#lease) OR #held = :false AND attribute_type(#version, :number)",
		values: attributes{
			":owner": str(owner), ":seed": number(uint64(time.Now().UnixMicro())), ":one": number(1),
			":length": number(millis(ttl)), ":true": boolean(true), ":false": boolean(false), ":expires": expires(ttl),
			":number": str("N"),
		},
	}
}

func takeOver(silent record, owner string, ttl time.Duration) change {
	return change{
		set:       "#owner = :owner, #version = :next, #length = :length, #expires = :expires",
		condition: "#owner = :silent AND #version = :version AND #held = :true",
		values: attributes{
			":owner": str(owner), ":silent": str(silent.owner), ":true": boolean(true),
			":version": number(silent.version), ":next": number(silent.version + 1),
			":length": number(millis(ttl)), ":expires": expires(ttl),
		},
	}
}

// prolong is the change that renews the owner's lease, if it still has the version.
func prolong(owner string, version uint64, ttl time.Duration) change {
	return change{
		set:       "#version = :next, #length = :length, #expires = :expires",
		condition: "#owner = :owner AND #version = :version AND #held = :true",
		values: attributes{
			":owner": str(owner), ":version": number(version), ":next": number(version + 1), ":true": boolean(true),
			":length": number(millis(ttl)), ":expires": expires(ttl),
		},
	}
}

// release is the change that ends the owner's lease. The item then has the owner call, and is free.
func release(owner, call string) change {
	return change{
		set:       "#owner = :call, #version = #version + :one, #held = :false, #expires = :expires",
		condition: "#owner = :owner AND #held = :true",
		values: attributes{
			":owner": str(owner), ":call": str(call), ":one": number(1),
			":true": boolean(true), ":false": boolean(false), ":expires": expires(0),
		},
	}
}

// names are the placeholders of the attributes. DynamoDB refuses requests with an unused placeholder.
func (c change) names() map[string]string {
	names := map[string]string{"#owner": ownerName, "#version": versionName, "#held": heldName, "#expires": expiresName}
	if _, ok := c.values[":length"]; ok {
		names["#length"] = lengthName
	}
	if _, ok := c.values[":seed"]; ok {
		names["#lease"] = keyName
	}
	return names
}

// update carries a change out and returns the item's new version. If the change was refused,
// instead is the present item.
func (l *Locker) update(ctx context.Context, item string, c change, options ...func(*dynamodb.Options)) (version uint64, instead *record, err error) {
	out, err := l.send(ctx, &dynamodb.UpdateItemInput{
		TableName:                           &l.table,
		Key:                                 attributes{keyName: str(item)},
		UpdateExpression:                    aws.String("SET " + c.set),
		ConditionExpression:                 &c.condition,
		ExpressionAttributeNames:            c.names(),
		ExpressionAttributeValues:           c.values,
		ReturnValues:                        types.ReturnValueUpdatedNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}, options...)
	if refused, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		instead, err := l.instead(ctx, item, refused.Item)
		return 0, instead, err
	}
	if err != nil {
		return 0, nil, err
	}
	version, ok := decodeNumber(out.Attributes[versionName])
	switch {
	case ok:
		return version, nil, nil
	case len(out.Attributes) > 0: // a foreign item that was free: its version plus one is no version either
		return 0, nil, errForeign
	}
	return 0, nil, errMute
}

// send sends an update, a few times while another region writes the same item of a global table: DynamoDB
// then refuses it, and the SDK does not repeat it. Otherwise the loser of an election between two regions
// would take the engine for down, and load too.
func (l *Locker) send(ctx context.Context, update *dynamodb.UpdateItemInput, options ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	for pause := conflictPause; ; pause *= 2 {
		out, err := l.client.UpdateItem(ctx, update, options...)
		if _, conflict := errors.AsType[*types.ReplicatedWriteConflictException](err); !conflict || pause > maxConflictPause {
			return out, err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)): // random, or both regions would meet again
		case <-ctx.Done():
			return nil, err
		}
	}
}

// instead returns the present item after a refused change. A refusal without the item means a missing item or
// an emulator, so the item is read.
func (l *Locker) instead(ctx context.Context, item string, sent attributes) (*record, error) {
	if len(sent) == 0 {
		now, err := l.look(ctx, item)
		return &now, err
	}
	now, ok := decode(sent)
	if !ok {
		return nil, errForeign
	}
	return &now, nil
}

func (l *Locker) look(ctx context.Context, item string) (record, error) {
	out, err := l.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName:      &l.table,
		Key:            attributes{keyName: str(item)},
		ConsistentRead: aws.Bool(true),
	})
	if err != nil || len(out.Item) == 0 {
		return record{}, err
	}
	now, ok := decode(out.Item)
	if !ok {
		return record{}, errForeign
	}
	return now, nil
}

func str(s string) types.AttributeValue   { return &types.AttributeValueMemberS{Value: s} }
func boolean(b bool) types.AttributeValue { return &types.AttributeValueMemberBOOL{Value: b} }
func number(n uint64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatUint(n, 10)}
}

// millis rounds up, so no observer takes a lease for shorter than its holder does.
func millis(d time.Duration) uint64 { return uint64(adapter.Millis(d)) }

// expires is the date from which an item held for ttl from now may be cleared.
func expires(ttl time.Duration) types.AttributeValue {
	return number(uint64(time.Now().Add(ttl + keep).Unix()))
}
