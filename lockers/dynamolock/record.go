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

// This file holds the item of a lease, and the four changes that it can
// undergo, each with its condition.

// The attributes of an item. Their names are words that DynamoDB reserves or
// may come to, so expressions use them by placeholders.
const (
	keyName     = "lease"   // string: the table's partition key
	ownerName   = "owner"   // string: a random token
	versionName = "version" // number: rises with every change
	lengthName  = "length"  // number: milliseconds from the last change
	heldName    = "held"    // boolean
	expiresName = "expires" // number: seconds since 1970, for the table's time to live
)

// keep is for how long after its lease's end an item stays at least. It is also
// how wrong a client's clock may be: DynamoDB compares the date that it wrote
// with its own.
const keep = 24 * time.Hour

// A record is what an item says. Two records are equal only if nothing has
// happened to the item in between, because each change raises the version. The
// zero record is that of an item that is not there.
type record struct {
	owner   string
	version uint64
	length  time.Duration
	held    bool
}

// conflictPause is about how long an update waits at first that another region's
// stands in the way of, maxConflictPause the last time.
const (
	conflictPause    = 20 * time.Millisecond
	maxConflictPause = 4 * conflictPause
)

type attributes = map[string]types.AttributeValue

// decode reports with false that the item is not a lease's.
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

// decodeNumber reports with false that v is not a number, or not one of ours.
func decodeNumber(v types.AttributeValue) (uint64, bool) {
	n, ok := v.(*types.AttributeValueMemberN)
	if !ok {
		return 0, false
	}
	x, err := strconv.ParseUint(n.Value, 10, 64)
	return x, err == nil
}

// A change is an update of an item, if its condition holds.
type change struct {
	set, condition string
	values         attributes
}

// take is the change that acquires a free lease.
//
// A version that is not there begins with the client's date, which is greater
// than any version that was counted up from an earlier one: nobody changes an
// item a million times a second.
func take(owner string, ttl time.Duration) change {
	return change{
		set:       "#owner = :owner, #version = if_not_exists(#version, :seed) + :one, #length = :length, #held = :true, #expires = :expires",
		condition: "attribute_not_exists(#lease) OR #held = :false",
		values: attributes{
			":owner": str(owner), ":seed": number(uint64(time.Now().UnixMicro())), ":one": number(1),
			":length": number(millis(ttl)), ":true": boolean(true), ":false": boolean(false), ":expires": expires(ttl),
		},
	}
}

// takeOver is the change that acquires the lease of a holder that was silent.
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

// prolong is the change that renews the owner's lease, if its version is still
// this.
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

// release is the change that ends the owner's lease. The item is call's then,
// which holds nothing.
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

// names are the placeholders of the attributes. DynamoDB refuses a request with
// one that it does not use.
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

// update carries a change out and returns the item's new version. If it was
// refused, instead is what the item is.
func (l *Locker) update(ctx context.Context, item string, c change) (version uint64, instead *record, err error) {
	out, err := l.send(ctx, &dynamodb.UpdateItemInput{
		TableName:                           &l.table,
		Key:                                 attributes{keyName: str(item)},
		UpdateExpression:                    aws.String("SET " + c.set),
		ConditionExpression:                 &c.condition,
		ExpressionAttributeNames:            c.names(),
		ExpressionAttributeValues:           c.values,
		ReturnValues:                        types.ReturnValueUpdatedNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if refused, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		instead, err := l.instead(ctx, item, refused.Item)
		return 0, instead, err
	}
	if err != nil {
		return 0, nil, err
	}
	version, ok := decodeNumber(out.Attributes[versionName])
	if !ok {
		return 0, nil, errMute
	}
	return version, nil, nil
}

// send sends an update, and sends it again, a few times, while a write of another
// region is under way to the item of a global table: DynamoDB refuses it then,
// and the SDK does not repeat it. Without that, the loser of an election between
// two regions would take the engine for down, and load too.
func (l *Locker) send(ctx context.Context, update *dynamodb.UpdateItemInput) (*dynamodb.UpdateItemOutput, error) {
	for pause := conflictPause; ; pause *= 2 {
		out, err := l.client.UpdateItem(ctx, update)
		if _, conflict := errors.AsType[*types.ReplicatedWriteConflictException](err); !conflict || pause > maxConflictPause {
			return out, err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)): // or both would meet again
		case <-ctx.Done():
			return nil, err
		}
	}
}

// instead returns what the item is on which a change was refused, given what
// came with the refusal. That is nothing if there is no item, but also from
// emulators that do not know this part of the protocol: then it is read.
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

// look returns what the item is.
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

// millis rounds up, so that nobody takes a lease for shorter than its holder
// does.
func millis(d time.Duration) uint64 { return uint64(adapter.Millis(d)) }

// expires is the date from which an item may be cleared that is held for ttl
// from now.
func expires(ttl time.Duration) types.AttributeValue {
	return number(uint64(time.Now().Add(ttl + keep).Unix()))
}
