package docs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// The tests in this file run the recipes of docs/recipes.md and docs/loaders.md.

type User struct{ Name string }

func loadUser(_ context.Context, id string) (User, error) { return User{"user " + id}, nil }

func TestUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		users := bellwether.New(loadUser, bellwether.Options{
			TTL: time.Hour, Fleet: bellwether.Fleet{Namespace: "users", Engine: memstore.New()},
		})
		defer users.Close()
		users.Get(t.Context(), "42")
		time.Sleep(2 * time.Hour)
		users.Get(t.Context(), "42")
		if n := users.Stats().Loads; n != 2 {
			t.Errorf("%d loads, want 2", n)
		}
	})
}

func report(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "expensive") }

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Hour})
		defer mw.Close()
		h := mw.Handler(http.HandlerFunc(report))
		for _, want := range []string{"fwd=uri-miss", "hit"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "http://shop.test/report", nil))
			synctest.Wait() // until the page is stored
			if got := w.Header().Get("Cache-Status"); !strings.Contains(got, want) {
				t.Errorf("Cache-Status: %s, want %s", got, want)
			}
		}
	})
}

// ask returns a handler's response to a request with these fields.
func ask(h http.Handler, method, url string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func accounts() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /account", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=60")
		w.Header().Set("Vary", "Authorization")
		fmt.Fprintln(w, "the account of", r.Header.Get("Authorization"))
	})
	return mux
}

// TestRecipe_PerUser holds that each user has a cached response, and never another user's.
func TestRecipe_PerUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
		defer mw.Close()
		api := accounts()
		h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			api.ServeHTTP(w, r)
		}))
		for range 10 {
			for _, user := range []string{"Bearer ann", "Bearer bob"} {
				if got, want := ask(h, "GET", "http://api.test/account", "Authorization", user).Body.String(), "the account of "+user+"\n"; got != want {
					t.Errorf("%s got %q", user, got)
				}
				synctest.Wait()
			}
		}
		if n := runs.Load(); n > 2*2 {
			t.Errorf("the handler ran %d times for two users, want at most twice for each", n)
		}
		if got := ask(h, "GET", "http://api.test/account").Body.String(); got != "the account of \n" {
			t.Errorf("a client without Authorization got %q", got)
		}
	})
}

func saveUser(context.Context, string, User) error { return nil }

func rename(ctx context.Context, users *bellwether.Cache[User], id, name string) error {
	if err := saveUser(ctx, id, User{Name: name}); err != nil {
		return err
	}
	return users.Invalidate(ctx, id) // after the commit of the transaction
}

func renamed(mw *bellwether.Middleware) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		if err := saveUser(r.Context(), id, User{Name: r.FormValue("name")}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		// The URL of this request is invalidated by itself, the list is not.
		if err := mw.Invalidate(r.Context(), "http://shop.test/users"); err != nil {
			http.Error(w, "saved, but caches may be old", http.StatusAccepted)
		}
	}
}

func consume(ctx context.Context, changed <-chan string, users *bellwether.Cache[User]) error {
	for id := range changed {
		if err := users.Invalidate(ctx, id); err != nil {
			return err // unreachable store: do not acknowledge the event
		}
		if _, err := users.Get(ctx, id); err != nil && !errors.Is(err, bellwether.ErrNotFound) {
			return err
		}
	}
	return nil
}

// TestRecipe_Worker holds that a service finds a worker's value.
func TestRecipe_Worker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, locker := memstore.New(), locallock.New()
		var loads, version atomic.Int32
		process := func() *bellwether.Cache[User] {
			return bellwether.New(func(context.Context, string) (User, error) {
				loads.Add(1)
				time.Sleep(time.Second)
				return User{fmt.Sprint("version ", version.Load())}, nil
			}, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Namespace: "users", Store: store, Locker: locker}})
		}
		service, worker := process(), process()
		defer service.Close()
		defer worker.Close()
		service.Get(t.Context(), "42")
		version.Add(1)
		changed := make(chan string, 1)
		changed <- "42"
		close(changed)
		if err := consume(t.Context(), changed, worker); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // NearTTL
		began := time.Now()
		user, err := service.Get(t.Context(), "42")
		if err != nil || user.Name != "version 1" || time.Since(began) > 0 || loads.Load() != 2 {
			t.Errorf("%v, %v after %v and %d loads", user, err, time.Since(began), loads.Load())
		}
	})
}

func saveHotKeys(ctx context.Context, users *bellwether.Cache[User], hot *bellwether.Cache[[]string]) error {
	return hot.Set(ctx, "users", users.HotKeys(1000))
}

func warm(ctx context.Context, users *bellwether.Cache[User], hot *bellwether.Cache[[]string]) error {
	keys, err := hot.Get(ctx, "users")
	if err != nil {
		return err // ErrNotFound at the very first start
	}
	_, err = users.GetMany(ctx, keys)
	return err
}

// TestRecipe_WarmStart holds that a new process gets the hot keys' values from the store.
func TestRecipe_WarmStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memstore.New()
		fleet := func(namespace string) bellwether.Fleet {
			return bellwether.Fleet{Namespace: namespace, Engine: engine}
		}
		var loads atomic.Int32
		process := func() (*bellwether.Cache[User], *bellwether.Cache[[]string]) {
			users := bellwether.New(func(ctx context.Context, id string) (User, error) {
				loads.Add(1)
				return loadUser(ctx, id)
			}, bellwether.Options{TTL: time.Hour, Fleet: fleet("users")})
			hot := bellwether.New(func(context.Context, string) ([]string, error) {
				return nil, bellwether.ErrNotFound
			}, bellwether.Options{TTL: time.Hour, Fleet: fleet("hot keys")})
			return users, hot
		}
		users, hot := process()
		if err := warm(t.Context(), users, hot); !errors.Is(err, bellwether.ErrNotFound) {
			t.Errorf("at the first start: %v", err)
		}
		for i := range 1200 {
			users.Get(t.Context(), fmt.Sprint(i))
		}
		if err := saveHotKeys(t.Context(), users, hot); err != nil {
			t.Fatal(err)
		}
		users.Close()
		hot.Close()
		if keys := users.HotKeys(1000); len(keys) != 0 {
			t.Errorf("%d keys after Close", len(keys))
		}

		users, hot = process()
		defer users.Close()
		defer hot.Close()
		if err := warm(t.Context(), users, hot); err != nil {
			t.Fatal(err)
		}
		if n := len(users.HotKeys(2000)); n != 1000 || loads.Load() != 1200 {
			t.Errorf("%d keys in the new process after %d loads, want 1,000 after the first 1,200", n, loads.Load())
		}
	})
}

// TestRecipe_AfterAWrite holds that the next call sees a write, for a cache and for a middleware.
func TestRecipe_AfterAWrite(t *testing.T) {
	name := "old"
	users := bellwether.New(func(context.Context, string) (User, error) { return User{name}, nil }, bellwether.Options{TTL: time.Hour})
	defer users.Close()
	users.Get(t.Context(), "42")
	name = "new"
	if err := rename(t.Context(), users, "42", "new"); err != nil {
		t.Fatal(err)
	}
	if user, err := users.Get(t.Context(), "42"); err != nil || user.Name != "new" {
		t.Errorf("after the write %v, %v", user, err)
	}

	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Hour})
	defer mw.Close()
	runs := map[string]int{}
	mux := http.NewServeMux()
	page := func(w http.ResponseWriter, r *http.Request) { runs[r.URL.Path]++ }
	mux.HandleFunc("GET /users", page)
	mux.HandleFunc("GET /users/{id}", page)
	mux.HandleFunc("PUT /users/{id}", renamed(mw))
	h := mw.Handler(mux)
	both := func() {
		for _, path := range []string{"/users", "/users/42"} {
			ask(h, "GET", "http://shop.test"+path)
		}
	}
	both()
	both()
	if w := ask(h, "PUT", "http://shop.test/users/42"); w.Code != http.StatusOK {
		t.Fatalf("the PUT answered %d %s", w.Code, w.Body)
	}
	both()
	if runs["/users"] != 2 || runs["/users/42"] != 2 {
		t.Errorf("each page was made %v times, want twice", runs)
	}
}

func ownPages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := r.Cookie("session"); err == nil {
			w.Header().Set("Cache-Control", "private")
		}
		next.ServeHTTP(w, r)
	})
}

// TestRecipe_LoggedIn holds that users get their own pages by private around the cache, and by Vary in the handler,
// but not by Vary around the cache, of which the recipe warns.
func TestRecipe_LoggedIn(t *testing.T) {
	vary := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Cookie")
			next.ServeHTTP(w, r)
		})
	}
	as := func(next http.Handler) http.Handler { return next }
	for name, tt := range map[string]struct {
		around, within func(http.Handler) http.Handler
		bob            string
	}{
		"private around": {ownPages, as, "session=bob"},
		"Vary within":    {as, vary, "session=bob"},
		"Vary around":    {vary, as, "session=ann"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Hour})
				defer mw.Close()
				h := tt.around(mw.Handler(tt.within(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					fmt.Fprint(w, r.Header.Get("Cookie"))
				}))))
				for _, user := range []struct{ cookie, page string }{{"session=ann", "session=ann"}, {"session=bob", tt.bob}} {
					if got := ask(h, "GET", "http://shop.test/", "Cookie", user.cookie).Body.String(); got != user.page {
						t.Errorf("%s got the page %q, want %q", user.cookie, got, user.page)
					}
					synctest.Wait()
				}
			})
		})
	}
}

func collapsing(loadUser func(context.Context, string) (User, error)) *bellwether.Cache[User] {
	users := bellwether.NewLoader(func(ctx context.Context, r bellwether.Request[User]) (bellwether.Result[User], error) {
		user, err := loadUser(ctx, r.Key)
		return bellwether.Result[User]{Value: user, Freshness: &bellwether.Freshness{}}, err
	}, bellwether.Options{TTL: time.Minute, ErrorTTL: -1})
	return users
}

// TestRecipe_Singleflight holds that calls at one time share a load and its result, and later calls share nothing.
func TestRecipe_Singleflight(t *testing.T) {
	for name, result := range map[string]error{"a value": nil, "no value": bellwether.ErrNotFound, "a failure": errors.New("down")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var loads atomic.Int32
				users := collapsing(func(context.Context, string) (User, error) {
					loads.Add(1)
					time.Sleep(time.Second)
					return User{"ann"}, result
				})
				defer users.Close()
				for round := range int32(3) {
					var calls sync.WaitGroup
					for range 10 {
						calls.Go(func() {
							if _, err := users.Get(t.Context(), "42"); !errors.Is(err, result) {
								t.Errorf("the error is %v, want %v", err, result)
							}
						})
					}
					calls.Wait()
					if n := loads.Load(); n != round+1 {
						t.Errorf("%d loads after %d herds", n, round+1)
					}
				}
			})
		})
	}
}
