package dynamolock

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/bellwether-go/bellwether/driver"
)

// errForeign is the error for an item not written by a Locker, and errMute for a reply without the
// item, perhaps from a proxy.
var (
	errForeign = fmt.Errorf("%w: the item is not a lease: another program writes to the table, under the same prefix", driver.ErrCorrupt)
	errMute    = errors.New("the reply to UpdateItem has no attributes: another server answered in place of DynamoDB")
)

var hints = map[string]string{
	"ResourceNotFoundException":              "there is no such table, or it is not active yet, in this region and account; dynamolock.CreateTable makes it",
	"ProvisionedThroughputExceededException": "throttled: the table's capacity, or what one item can take (about 1,000 writes a second), is used up; bill it on demand, as dynamolock.CreateTable does, or give it more write capacity",
	"ThrottlingException":                    "throttled: a table on demand grows, but not at once, and has the limits that were set for it; or one item has more than about 1,000 writes a second",
	"RequestLimitExceeded":                   "throttled: the account's limit for the region is used up; ask AWS for a higher one",
	"ValidationException":                    "if this is of the key: a table of leases has the string " + keyName + " as its only key, as dynamolock.CreateTable makes it",
	"AccessDeniedException":                  "the credentials need leave for dynamodb:UpdateItem and dynamodb:GetItem on the table",
	"UnrecognizedClientException":            invalid,
	"InvalidSignatureException":              invalid + ", or this machine's clock is wrong",
	"MissingAuthenticationTokenException":    invalid,
	"ExpiredTokenException":                  invalid,
}

const invalid = "the credentials are not valid here"

// hintOf is the remedy for a refusal of DynamoDB, or "".
func hintOf(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return hints[api.ErrorCode()]
	}
	return ""
}

// isRefusal reports whether DynamoDB has answered that it did not carry a change out. The answer is to
// one attempt: the SDK may have sent the change before. A change of a foreign item counts as refused.
func isRefusal(err error) bool {
	_, condition := errors.AsType[*types.ConditionalCheckFailedException](err)
	_, conflict := errors.AsType[*types.ReplicatedWriteConflictException](err)
	return condition || conflict || hintOf(err) != "" || errors.Is(err, driver.ErrCorrupt)
}

// explain adds the table and a remedy to an error of the SDK. [errors.As] still finds the error,
// unless it is a context's: callers look for the error of their own context, which has not ended.
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
