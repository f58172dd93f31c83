// Package gin has the few names of gin that docs/recipes.md uses. The repository does not require gin.
package gin

import "net/http"

type HandlerFunc func(*Context)

type Context struct{}

func (*Context) Header(key, value string)                      {}
func (*Context) String(code int, format string, values ...any) {}

type IRoutes any

type Engine struct{ http.Handler }

type OptionFunc func(*Engine)

func New(...OptionFunc) *Engine { return nil }

func (*Engine) GET(path string, handlers ...HandlerFunc) IRoutes { return nil }
