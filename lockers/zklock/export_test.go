package zklock

import "github.com/bellwether-go/bellwether/driver"

// Holder is the path of the holder's node in a HeldError.
func Holder(held *driver.HeldError) string { return held.Seen.(seen).holder }
