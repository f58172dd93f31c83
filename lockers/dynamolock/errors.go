package dynamolock

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/smithy-go"

	"github.com/bellwether-go/bellwether/driver"
)

// This file says what is wrong when DynamoDB fails, and how to mend it.

// errForeign is what an item is that no Locker has written, and errMute a reply that
// says nothing of the item: a proxy's, perhaps.
var (
	errForeign = fmt.Errorf("%w: the item is not a lease: another program writes to the table, under the same prefix", driver.ErrCorrupt)
	errMute    = errors.New("the reply to UpdateItem has no attributes: another server answered in place of DynamoDB")
)

// hints say how to mend what DynamoDB refuses.
var hints = map[string]string{
	"ResourceNotFoundException":              "there is no such table, or it is not active yet, in this region and account; dynamolock.CreateTable makes it",
	"ProvisionedThroughputExceededException": "throttled: the table's capacity, or what one item can take (about 1,000 writes a second), is used up; bill it on demand, as dynamolock.CreateTable does, or give it more write capacity",
	"ThrottlingException":                    "throttled: a table on demand grows, but not at once, and has the limits that were set for it; or one item has more than about 1,000 writes a second",
	"RequestLimitExceeded":                   "throttled: the account's limit for the region is used up; ask AWS for a higher one",
	"ValidationException":                    "if this is of the key: a table of leases has the string " + keyName + " as its only key, as dynamolock.CreateTable makes it",
	"AccessDeniedException":                  "the credentials need leave for dynamodb:UpdateItem and dynamodb:GetItem on the table",
	"UnrecognizedClientException":            invalid,
	"InvalidSignatureException":              invalid,
	"MissingAuthenticationTokenException":    invalid,
	"ExpiredTokenException":                  invalid,
}

const invalid = "the credentials are not valid here"

// hintOf is how to mend what DynamoDB has refused with err, "" if it has not.
func hintOf(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return hints[api.ErrorCode()]
	}
	return ""
}

// refused reports whether DynamoDB has said that it did not carry a change out. (Of a
// change that the SDK has sent twice, it says so of the second.)
func refused(err error) bool {
	return hintOf(err) != "" || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrCorrupt)
}

// explain adds to an error of the SDK what it means here. The error stays to be
// found by [errors.As], unless it is one of a context: those who ask for that
// mean their own, which has not ended.
func explain(table string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("table %q: no answer in time: %v", table, err)
	}
	hint := hintOf(err)
	if hint == "" {
		return fmt.Errorf("table %q: %w", table, err)
	}
	return fmt.Errorf("table %q: %s: %w", table, hint, err)
}
