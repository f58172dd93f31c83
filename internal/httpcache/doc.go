// Package httpcache is RFC 9111 for a shared cache, as functions without I/O and without a clock.
// The middleware calls them in this order:
//
//	Key, ParseRequest                    the request's target and directives
//	ResponseDirectives                   the response's directives
//	storable, freshnessOf, InitialAge    whether to share the response, and for how long
//	Judge                                the three together
//	VaryNames, VariantKey, Normalised    which requests share the response
//	StoredHeader                         which fields are shared
//	Freshness.Reuse, NotModified         whether a stored response answers a request
//	SetConditions, Selects, Freshen      validation
//	ChangedBy, KeysOf                    invalidation by an unsafe request
//	Status                               the report to the client
//
// No function changes its arguments unless its comment says so. All are safe for concurrent use.
package httpcache
