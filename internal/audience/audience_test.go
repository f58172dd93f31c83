package audience

import "testing"

func TestAdmits(t *testing.T) {
	for _, test := range []struct {
		a                 Audience
		began, sameClient bool
		want              bool
	}{
		{Everyone, false, false, true},
		{Alike, false, false, false},
		{Alike, false, true, true},
		{Alike, true, false, true},
		{Owner, false, true, false},
		{Owner, true, true, true},
	} {
		if got := test.a.Admits(test.began, test.sameClient); got != test.want {
			t.Errorf("%d admits a call that began it %t, of the same client %t: %t", test.a, test.began, test.sameClient, got)
		}
	}
}
