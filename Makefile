# The commands of this repository. "make" lists them.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0

# Which fuzz targets run, and how many inputs each tries: what takes half a minute. (A
# time, such as 10m, is understood as well; but up to Go 1.26 a target whose time is up
# may fail with "context deadline exceeded", although nothing is wrong:
# go.dev/issue/75804.) "test" runs those of the entry codec and the key function, for a
# tenth of that; what is kept of the others' inputs runs as tests.
FUZZ ?= .
FUZZTIME ?= 300000x
export FUZZ FUZZTIME

# All targets look through the workspace, go.work. internal/release holds that each
# module builds on its own go.mod.
export GOWORK :=
MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path './.*')))
EACH := for m in $(MODULES); do cd $(CURDIR)/$$m; 

# Where the race detector is used: not in sim, whose tests run the library as WebAssembly.
RACED := $(filter-out ./sim,$(MODULES))
RACED_IN := $(RACED:%=%/...)

# How many packages "race" tests at one time: with engines and processes the
# tests wait more than they work.
JOBS ?= 3

# How many tests of a package that may overlap do, for the same reason. Chaos is
# left at one for each core: its runs would starve each other, and then there is
# nothing that they can judge.
PARALLEL ?= 4

# "make long" runs without it.
SHORT := -short

# How long one package may take. The root package's tests have only the time that the
# others leave: on a slow machine they have taken ten minutes.
LIMIT := 20m

OUT := $(CURDIR)/dist/test
REPORT := $(CURDIR)/bin/report

# Tests of claims about time and allocations: the files that the race detector,
# which would be what they measure, leaves out.
CLAIMS = grep -rl --include='*_test.go' '^//go:build !race' .
CLAIMS_IN = $$($(CLAIMS) | xargs -n1 dirname | sort -u)

# How all is compiled that is not compiled for the race detector: as internal/release
# does, so that packages are compiled once for both.
PLAIN := CGO_ENABLED=0 GOFLAGS=-trimpath

# The tree of this commit, and nothing else where the working tree is clean.
TREE := git status --porcelain; git rev-parse 'HEAD^{tree}'

# How long "make chaos" goes on.
DURATION ?= 10m

# How many scenarios "make sim" plays, and the seed of the first.
SEEDS ?= 1000
FIRST ?= 1

# Which bugs "make sim-bugs" plants: the name of one in sim/planted_test.go, or all of them.
BUGS ?= all

# The revisions beside which "make walks" sets the working tree: the last of the first edition.
REVISIONS ?= d17bd95

.PHONY: help test deps build lint race claims latency long sim sim-bugs outage chaos fuzz vuln bench screenshots pictures cover walks tidy version notices release clean

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

# Nothing in the last step has a time to keep, so its two may run side by side.
test: ## Run everything that has to pass.
	@rm -rf $(OUT)
	@began=$$SECONDS; status=0; tree=$$($(TREE)); \
	for step in deps build race claims "lint fuzz"; do \
		echo "== $$step"; step_began=$$SECONDS; \
		$(MAKE) --no-print-directory -j2 -Otarget $$step FUZZ='^Fuzz(Entry|Key)$$$$' FUZZTIME=30000x || { status=1; echo "== $$step failed"; [ "$$step" != deps ] || exit 1; }; \
		echo "== $$step took $$((SECONDS - step_began)) s"; \
	done; \
	echo "== all took $$((SECONDS - began)) s"; \
	.ci/versions; \
	$(REPORT) total $(OUT)/*.json || status=1; \
	[ $$status -ne 0 ] || [ "$$tree" != "$$($(TREE))" ] || echo "$$tree" >dist/passed; \
	exit $$status

deps: ## Install the servers that the tests need, as root; else say which.
	@.ci/deps

# With the race detector, but for what cannot have it: the later steps do as much.
# The tests link what is compiled here.
build: ## Compile everything, tests too, so that none waits for a compiler.
	@$(PLAIN) go list -export -test $(CLAIMS_IN) >/dev/null & plain=$$!; \
		go list -export -test -race $(RACED_IN) >/dev/null; wait $$plain

$(REPORT): .ci/report.go
	@$(PLAIN) go build -o $@ $<

$(OUT):
	@mkdir -p $@

lint: ## Check formatting, go vet and staticcheck in every module, and that modules agree on versions.
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; }
	@versions=$$(cat $(MODULES:%=%/go.mod) | awk '$$2 ~ /^v[0-9]/ { print $$1, $$2 }' | sort -u); \
		twice=$$(awk '{ print $$1 }' <<<"$$versions" | uniq -d); \
		[ -z "$$twice" ] || { echo "modules require different versions, so each would compile its own:"; grep -wF "$$twice" <<<"$$versions"; exit 1; }
	@$(PLAIN) go vet .ci/report.go
	@go vet -race $(RACED_IN)
	@$(PLAIN) go vet $(CLAIMS_IN)
	@$(PLAIN) go run -exec 'env CGO_ENABLED=1 GOFLAGS=-race' $(STATICCHECK) $(RACED_IN)
	@$(PLAIN) go run $(STATICCHECK) $(CLAIMS_IN)

race: $(REPORT) | $(OUT) ## Run all tests with the race detector ("lint" vets them).
	@OUT=$(OUT) REPORT=$(REPORT) MODULES='$(RACED)' JOBS=$(JOBS) PARALLEL=$(PARALLEL) LIMIT=$(LIMIT) SHORT=$(SHORT) .ci/race

claims: $(REPORT) | $(OUT) ## Run the tests of claims about time and allocations, without the race detector.
	@OUT=$(OUT) REPORT=$(REPORT) FILES="$$($(CLAIMS))" LIMIT=$(LIMIT) SHORT=$(SHORT) $(PLAIN) .ci/claims

latency: ## Hold the herd's p99, on a machine that does nothing else.
	@go test -count=1 -v -tags latency -run '^TestLatency' ./internal/fleettest

long: ## Run race and claims in their long form: more seeds, leases, clients and nodes.
	@$(MAKE) --no-print-directory -k race claims SHORT= LIMIT=30m

sim: ## Play SEEDS scenarios of the model, from FIRST on, each of which can be repeated.
	@go test -C sim -count=1 -timeout 0 -v -run '^TestScenarios$$' . -args -seeds=$(SEEDS) -first=$(FIRST)

sim-bugs: ## Plant BUGS in the code, and count the scenarios that find each.
	@go test -C sim -count=1 -timeout 0 -v -run '^TestBugs_AreFound$$' . -args -bugs='$(BUGS)'

outage: ## Kill the store for 30 s under 2,000 requests a second, and draw it: nobody may fail.
	@go -C bench run . outage -full -o $(CURDIR)/docs

chaos: ## Break things at random for DURATION, with seeds of its own.
	@cd chaos && go test -race -count=1 -timeout 0 -v -run '^Test(Fleet|Lockers)$$' . -args -duration=$(DURATION)

fuzz: $(REPORT) | $(OUT) ## Run the fuzz targets that FUZZ matches, with FUZZTIME inputs each.
	@.ci/fuzz 2>&1 | tee $(OUT)/fuzz.json | $(REPORT)

vuln: ## Look for known vulnerabilities in what is called, where vuln.go.dev can be reached.
	@status=0; $(EACH) echo "$$m"; go run $(GOVULNCHECK) ./... || status=1; done; exit $$status

bench: ## Run the benchmarks.
	@$(EACH) go test -run '^$$' -bench . -benchmem ./...; done

screenshots: ## Take docs/live-*.png anew, and pictures of all widths in dist/screenshots to look at.
	@rm -rf dist/screenshots; mkdir -p dist/screenshots
	@cd example/server && BELLWETHER_SCREENSHOTS=$(CURDIR)/dist/screenshots go test -count=1 -run '^TestBrowser_' .
	@cp dist/screenshots/live-after.png dist/screenshots/live-phone.png docs

pictures: ## Draw the SVG drawings of docs, and the charts of docs/ten-minutes.md, anew.
	@go run ./docs/pictures

cover: ## Say how much of each package its module's tests reach.
	@mkdir -p dist
	@$(EACH) go test -count=1 -coverpkg=./... -coverprofile=$(CURDIR)/dist/cover.out ./... >/dev/null; \
		echo "$$m: $$(go tool cover -func=$(CURDIR)/dist/cover.out | tail -1 | awk '{ print $$NF }')"; done

walks: ## Count the functions and files that a call goes through, here and in REVISIONS.
	@go run ./internal/walks $(REVISIONS)

tidy: ## Format the code and tidy every go.mod.
	@gofmt -w .
	@go run ./internal/release tidy

version: ## Write VERSION into the requirements between the modules.
	@go run ./internal/release version $(VERSION)

notices: ## Write the licence notices of the image of example/server.
	@go run ./internal/release notices

release: ## Check that all is ready, tag all modules as VERSION, and print what to push.
	@go run ./internal/release tag $(VERSION)

clean: ## Remove what the other targets have made.
	@rm -rf bin dist
