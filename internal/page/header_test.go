package page

import (
	"net/http"
	"reflect"
	"testing"
)

func TestHandlerFields(t *testing.T) {
	outer := http.Header{"Same": {"a"}, "More": {"a", "b"}, "Less": {"a", "b"}, "Gone": {"a"}}
	h := http.Header{"Same": {"a"}, "More": {"a", "b", "c"}, "Less": {"a"}, "New": {"n"}}
	want := http.Header{"More": {"c"}, "Less": {"a"}, "New": {"n"}}
	if got := handlerFields(h, outer); !reflect.DeepEqual(got, want) {
		t.Errorf("handlerFields = %v, want %v", got, want)
	}
}
