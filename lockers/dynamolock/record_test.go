package dynamolock

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

func FuzzDecode(f *testing.F) {
	f.Add("owner", "1", "1000", true)
	f.Add("", "-1", "0", false)
	f.Add("x", "18446744073709551615", "31536000001", true)
	f.Fuzz(func(t *testing.T, owner, version, length string, held bool) {
		item := attributes{
			ownerName:   str(owner),
			versionName: &types.AttributeValueMemberN{Value: version},
			lengthName:  &types.AttributeValueMemberN{Value: length},
			heldName:    boolean(held),
		}
		r, ok := decode(item)
		if !ok {
			return
		}
		if r.owner != owner || r.owner == "" || r.held != held || r.length <= 0 || r.length > maxTTL {
			t.Fatalf("%v is taken for %+v", item, r)
		}
		item[versionName], item[lengthName] = number(r.version), number(millis(r.length))
		if again, ok := decode(item); !ok || again != r {
			t.Fatalf("%+v became %+v, %v", r, again, ok)
		}
	})
}
