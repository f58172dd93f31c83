package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/bellwether-go/bellwether"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// metricOf is the name that a field of Stats has in /metrics.
func metricOf(f reflect.StructField) string {
	name := "bellwether_" + f.Tag.Get("json")
	if f.Type.Kind() == reflect.Uint64 && f.Name != "NearBytes" {
		name += "_total"
	}
	return name
}

// TestMetrics_EveryField holds that each field of Stats is a metric, that its
// value is the field's and no other's, and that it says what it is.
func TestMetrics_EveryField(t *testing.T) {
	var s bellwether.Stats
	var want strings.Builder
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		f, n := v.Type().Field(i), 100+i
		switch f.Type.Kind() {
		case reflect.Uint64:
			v.Field(i).SetUint(uint64(n))
		case reflect.Int:
			v.Field(i).SetInt(int64(n))
		case reflect.Bool:
			n = i % 2
			v.Field(i).SetBool(n == 1)
		default:
			t.Fatalf("Stats.%s is a %s; metrics.go and this test know numbers and truths", f.Name, f.Type)
		}
		found := false
		for _, m := range metrics {
			if m.name != metricOf(f) {
				continue
			}
			found = true
			kind := "counter"
			if m.kind == prometheus.GaugeValue {
				kind = "gauge"
			}
			fmt.Fprintf(&want, "# HELP %[1]s %[2]s\n# TYPE %[1]s %[3]s\n%[1]s %[4]d\n", m.name, m.help, kind, n)
		}
		if !found {
			t.Errorf("Stats.%s has no metric; add %s to metrics.go, to docs/operations.md and, if it is worth a look, to docs/grafana.json", f.Name, metricOf(f))
		}
	}
	if len(metrics) != v.NumField() {
		t.Errorf("%d metrics of %d fields", len(metrics), v.NumField())
	}
	c := newCollector(func() bellwether.Stats { return s })
	if err := testutil.CollectAndCompare(c, strings.NewReader(want.String())); err != nil {
		t.Error(err)
	}
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestMetrics_OnTheAdminListener(t *testing.T) {
	front, back := newTestServer(t)
	for range 3 {
		do(http.MethodGet, front.URL+"/fast")
	}
	a := do(http.MethodGet, back.URL+"/metrics")
	for _, line := range []string{
		"bellwether_loads_total 1\n", "bellwether_misses_total 1\n", "bellwether_store_up 1\n",
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

// TestMetrics_Documented holds that what people read about the metrics is about
// those that there are: each has its line in docs/operations.md, and neither the
// dashboard nor the alerts ask for one that does not exist.
func TestMetrics_Documented(t *testing.T) {
	known := map[string]bool{"bellwether_info": true}
	for _, m := range metrics {
		known[m.name] = true
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
			if !known[name] {
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
