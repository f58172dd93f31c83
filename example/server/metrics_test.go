package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

func TestMetrics_OnTheAdminListener(t *testing.T) {
	front, back := newTestServer(t)
	// The first request is alone: another could still join its flight.
	do(http.MethodGet, front.URL+"/fast")
	a := do(http.MethodGet, back.URL+"/metrics")
	// A herd is reported after its callers are counted, when its last caller or flight has ended.
	for try := 0; try < 1000 && !strings.Contains(a.body, "bellwether_herd_callers_total 1\n"); try++ {
		a = do(http.MethodGet, back.URL+"/metrics")
	}
	for range 2 {
		do(http.MethodGet, front.URL+"/fast")
	}
	a = do(http.MethodGet, back.URL+"/metrics")
	for _, line := range []string{
		"bellwether_loads_total 1\n", `bellwether_rebuild_seconds_count{outcome="value"} 1`, "bellwether_herd_callers_total 1\n", "bellwether_misses_total 1\n", "bellwether_hits_total 2\n", "bellwether_store_up 1\n",
		`bellwether_info{locker="local",store="memory",upstream="demo"} 1`, "go_goroutines ", "process_resident_memory_bytes ",
	} {
		if a.status != http.StatusOK || !strings.Contains(a.body, line) {
			t.Errorf("%d without %q in\n%s", a.status, line, a.body)
		}
	}
	if b := do(http.MethodGet, front.URL+"/metrics"); b.status != http.StatusNotFound {
		t.Errorf("on the site's own listener: %v, want 404", b)
	}
}

// TestMetrics_Documented holds the metrics' documentation, dashboard and alerts to the metrics.
func TestMetrics_Documented(t *testing.T) {
	cache, metrics := newCache(bellwether.HTTPOptions{})
	defer cache.Close()
	families, err := (&server{metrics: metrics}).allMetrics().Gather()
	if err != nil {
		t.Fatal(err)
	}
	known, histograms := map[string]bool{}, map[string]bool{}
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "bellwether_") {
			known[name] = true
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				histograms[name+part] = f.GetType().String() == "HISTOGRAM"
			}
		}
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	guide := read("operations.md")
	for name := range known {
		if !strings.Contains(guide, "`"+name+"`") {
			t.Errorf("docs/operations.md does not say what %s means", name)
		}
	}
	for _, file := range []string{"operations.md", "grafana.json", "alerts.yml"} {
		found := regexp.MustCompile(`\bbellwether_[a-z_]+`).FindAllString(read(file), -1)
		if len(found) == 0 {
			t.Errorf("docs/%s asks for no metric", file)
		}
		for _, name := range found {
			if !known[name] && !histograms[name] {
				t.Errorf("docs/%s asks for %s, which there is not", file, name)
			}
		}
	}
	var dashboard struct {
		Title  string
		Panels []struct {
			Title       string
			Description string
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read("grafana.json")), &dashboard); err != nil || dashboard.Title == "" || len(dashboard.Panels) == 0 {
		t.Fatalf("docs/grafana.json is no dashboard: %+v, %v", dashboard, err)
	}
	for _, p := range dashboard.Panels {
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("a panel without title, description or query: %+v", p)
		}
	}
}

// sumOf returns the sum of the series that an expression names, in the text of /metrics.
func sumOf(t *testing.T, expr, metrics string) (sum int) {
	t.Helper()
	for _, series := range regexp.MustCompile(`bellwether_\w+(?:{.*?})?`).FindAllString(expr, -1) {
		name, labels, _ := strings.Cut(series, "{")
		labels = strings.TrimSuffix(labels, "}")
		found := regexp.MustCompile(`(?m)^`+name+`(?:{.*`+regexp.QuoteMeta(labels)+`.*})? (\d+)$`).FindAllStringSubmatch(metrics, -1)
		if found == nil {
			t.Fatalf("there is no %s", series)
		}
		for _, value := range found {
			n, _ := strconv.Atoi(value[1])
			sum += n
		}
	}
	return sum
}

// alertRule returns the expression of an alert of docs/alerts.yml.
func alertRule(t *testing.T, name string) string {
	t.Helper()
	alerts, err := os.ReadFile(filepath.Join("..", "..", "docs", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	_, rule, _ := strings.Cut(string(alerts), name)
	rule, _, _ = strings.Cut(rule, "for:")
	return rule
}

// TestAlerts_PrivatePage holds that the alert for caches that cache nothing counts a private page's bypasses.
func TestAlerts_PrivatePage(t *testing.T) {
	cache, metrics := newCache(bellwether.HTTPOptions{})
	defer cache.Close()
	site := cache.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "private")
	}))
	const requests = 100
	for range requests {
		site.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	admin := httptest.NewRecorder()
	(&server{metrics: metrics}).metricsHandler().ServeHTTP(admin, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	_, few, _ := strings.Cut(alertRule(t, "BellwetherCachesNothing"), " and ") // the rule's minimum of requests
	if seen := sumOf(t, few, admin.Body.String()); seen != requests {
		t.Errorf("of %d requests the alert sees %d", requests, seen)
	}
}

// The alert for caches that cache nothing compares the origin calls with all requests, each counted once: also the
// stale answers in the pauses of an outage, and the callers of a flight that then bypass the cache.
func TestAlerts_RequestsCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache, metrics := newCache(bellwether.HTTPOptions{StaleIfError: time.Hour})
		defer cache.Close()
		down := false
		site := cache.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Millisecond)
			switch {
			case r.URL.Path == "/private":
				w.Header().Set("Cache-Control", "private")
			case down:
				w.WriteHeader(http.StatusInternalServerError)
			default:
				w.Header().Set("Cache-Control", "max-age=1")
			}
		}))
		requests := 0
		ask := func(path string, clients int) {
			var herd sync.WaitGroup
			for range clients {
				herd.Go(func() { site.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)) })
			}
			herd.Wait()
			requests += clients
		}
		ask("/private", 10)
		ask("/", 10)
		synctest.Wait()
		time.Sleep(2 * time.Second)
		down = true
		for range 10 {
			ask("/", 10)
		}
		synctest.Wait()
		admin := httptest.NewRecorder()
		(&server{metrics: metrics}).metricsHandler().ServeHTTP(admin, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		share, _, _ := strings.Cut(alertRule(t, "BellwetherCachesNothing"), " and ")
		_, all, _ := strings.Cut(share, "0.9 *")
		if seen := sumOf(t, all, admin.Body.String()); seen != requests {
			t.Errorf("of %d requests the alert sees %d", requests, seen)
		}
	})
}
