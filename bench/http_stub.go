package main

const serverEnv, generatorEnv = "BELLWETHER_BENCH_SERVER", "BELLWETHER_BENCH_GENERATOR"

func serve(string) error      { return nil }
func generate(string) error   { return nil }
func runHTTP([]string) error  { return nil }
func runPlots([]string) error { return nil }

type httpMeasurement struct{ Load, Server string }

var httpColumns []struct {
	name string
	of   func(httpMeasurement) float64
}
