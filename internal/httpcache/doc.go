// Package httpcache is RFC 9111 for a shared cache, as functions without I/O
// and without a clock: what a header says, what may be stored, how long it is
// fresh, which request it answers, what a validation changes, what an unsafe
// request invalidates. The middleware asks in this order:
//
//	Key, ParseRequest                    what is asked for
//	ResponseDirectives                   what the origin says of its answer
//	storable, freshnessOf, InitialAge    may others have it, and for how long
//	Judge                                all of that at once
//	VaryNames, VariantKey, Normalise     who else exactly
//	StoredHeader                         what of the header is for everybody
//	Freshness.Reuse, NotModified         does a stored answer serve a request
//	SetConditions, Selects, Freshen      is it still true
//	ChangedBy, KeysOf                    what an unsafe request has changed
//	Status                               what was done, told to the client
//
// All functions leave their arguments as they are unless their comment says
// otherwise, and are safe for concurrent use.
package httpcache
