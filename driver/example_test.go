package driver_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// The store refuses the commit of a rebuild that claimed before a later write.
func ExampleStore() {
	ctx := context.Background()
	var store driver.Store = memstore.New()
	_, epoch, err := store.Claim(ctx, "user 42")
	if err != nil {
		panic(err)
	}
	newer := driver.Entry{Kind: driver.KindValue, Value: []byte("newer"), TTL: time.Minute}
	if _, err := driver.Set(ctx, store, "user 42", newer); err != nil {
		panic(err)
	}
	late := driver.Entry{Kind: driver.KindValue, Value: []byte("late"), TTL: time.Minute, Epoch: epoch}
	err = store.Commit(ctx, "user 42", late)
	kept, _ := store.Get(ctx, "user 42")
	fmt.Println(errors.Is(err, driver.ErrFenced), string(kept.Value))
	// Output: true newer
}
