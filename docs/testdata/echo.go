// Package echo has the few names of echo that docs/recipes.md uses. The repository does not require echo.
package echo

import "net/http"

type HandlerFunc func(c Context) error

type MiddlewareFunc func(next HandlerFunc) HandlerFunc

type Context interface {
	Response() *Response
	String(code int, s string) error
}

type Response struct{ http.ResponseWriter }

type Route struct{}

type Echo struct{ http.Handler }

func New() *Echo { return nil }

func (*Echo) GET(path string, h HandlerFunc, m ...MiddlewareFunc) *Route { return nil }
