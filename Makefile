# Yardmaster. `make help` lists the targets; run, test and ci do their own set-up.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
export CGO_ENABLED ?= 0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
GOFLAGS_BUILD := -trimpath -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)'
TOOL := go tool -modfile=cmd/internal/tools/go.mod
# Number crunching: the race detector makes it many times slower and has one
# goroutine a core to look at.
NUMERIC := /gpu/cpu/(kernel|model|kernel/.*|model/.*)$$
# Packages with code that the race detector leaves out.
UNRACED = $(sort $(dir $(shell grep -rlE '^//go:build.*!race' --include='*.go' core gpu examples policies)))
FUZZTIME ?= 10s
THREADS ?= 1

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: build ## build, fetch the model, start everything on this machine and answer one question
	@bin/yardmaster dev --ask 'What does a yardmaster do? Answer in one sentence.' || [ $$? -eq 130 ]

.PHONY: build
build: ## build bin/yardmaster, static
	go build $(GOFLAGS_BUILD) -o bin/ ./cmd/yardmaster

.PHONY: cross
cross: ## build for the other platforms into dist/
	GOOS=linux GOARCH=arm64 go build $(GOFLAGS_BUILD) -o dist/linux-arm64/ ./cmd/yardmaster
	GOOS=darwin GOARCH=arm64 go build $(GOFLAGS_BUILD) -o dist/darwin-arm64/ ./cmd/yardmaster

# Tests that need the model skip, and say so, where it cannot be had.
.PHONY: model
model: build
	@bin/yardmaster model fetch smollm2 || echo 'going on without the model'

.PHONY: test
test: model ## every test
	go test -timeout 8m ./...

.PHONY: race
race: model ## every test but those of the kernels under the race detector, and what it leaves out
	CGO_ENABLED=1 go test -race -timeout 15m $$(go list ./... | grep -vE '$(NUMERIC)')
	go test -timeout 8m $$(go list ./... | grep -E '$(NUMERIC)') $(addprefix ./,$(UNRACED))

.PHONY: e2e
e2e: model ## the system tests alone
	go test -timeout 8m -count 1 ./cmd/internal/e2e/...

.PHONY: soak
soak: model ## the long form of the tests that kill things
	YARDMASTER_SOAK=1 go test -timeout 30m -count 1 -run 'Kill' -v ./cmd/internal/e2e/...

# YARDMASTER_SEED=n runs one again; the runs print theirs. Disks fail by strace,
# which a bare Debian machine gets here, and fill up in a mount of their own, which
# takes root; leaders are cut off in network namespaces, which takes root and ip.
# Without them TestPowerCut, TestSyncFails, TestDiskFull and TestLeaderCutOff skip,
# and say so.
.PHONY: sim
sim: ## the long runs of clusters while everything goes wrong; disks too, where there are strace and root
	@command -v strace >/dev/null || { \
		command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends strace; \
	} || echo 'going on without strace'
	YARDMASTER_SIM=1 go test -timeout 60m -count 5 -run 'TestPowerCut' -v ./raftstore/wal
	YARDMASTER_SIM=1 go test -timeout 60m -count 1 -run 'TestNemesis' -v ./raftstore/nemesis
	YARDMASTER_SIM=1 go test -timeout 60m -count 1 -run 'TestPlannersKilled|TestLeaderStopped|TestLeaderCutOff|TestSyncFails|TestDiskFull' -v ./cmd/internal/e2e

# Go's fuzzing now and then ends with "context deadline exceeded" and nothing found
# (golang/go#75804), so what fails is run again: an input that was found is kept and
# fails once more.
.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME
	@grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's|^\./(.*)/[^/]+:func (.*)$$|\1 \2|' | sort -u | \
	while read -r dir target; do \
		echo "fuzz $$dir $$target"; \
		for again in - ''; do \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "./$$dir" && break; \
			[ "$$again" ] || exit 1; \
		done || exit 1; \
	done

# What is missing here (a toolchain, a registry) is skipped and said so.
# CLIENTS='-short', '-run stream -clients node' and others: -h lists them.
.PHONY: test-clients
test-clients: build ## the official openai clients against the gateway
	go run ./cmd/internal/clients -yardmaster bin/yardmaster $(CLIENTS)

# libzmq comes with pyzmq.
INTEROP := .cache/interop
.PHONY: test-engines
test-engines: ## our ZeroMQ sockets against libzmq, which engines use
	[ -d $(INTEROP)/zmq ] || python3 -m pip install --quiet --disable-pip-version-check --target $(INTEROP) pyzmq==27.1.0
	PYTHONPATH=$(abspath $(INTEROP)) go test -count 1 -v -run Libzmq ./gpu/zmtp

# A toolchain that is missing is skipped and said so; WRITE=-write replaces the
# committed modules.
.PHONY: policies
policies: ## build every policy of the tree from source and compare with the committed modules
	go run ./cmd/internal/policies $(WRITE)

.PHONY: bench
bench: model ## measure the CPU engine and the price of disaggregation
	bin/yardmaster bench engine --model smollm2 --threads $(THREADS) -o json
	bin/yardmaster bench pd --model smollm2 -o json

.PHONY: fmt
fmt: ## format the tree
	$(TOOL) gofumpt -w .

.PHONY: lint
lint: ## gofumpt, go vet, staticcheck and golangci-lint
	@unformatted=$$($(TOOL) gofumpt -l .); [ -z "$$unformatted" ] || { echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; }
	go vet ./...
	GOOS=darwin GOARCH=arm64 go vet ./...
	$(TOOL) staticcheck ./...
	$(TOOL) golangci-lint run --timeout 10m --allow-parallel-runners

.PHONY: generate
generate: ## write the generated files anew
	go generate ./...

.PHONY: tidy
tidy: ## the house rules, and a go.mod that says what is used
	go mod tidy -diff
	go test -count 1 ./cmd/internal/tidy

.PHONY: ci
ci: build cross lint tidy race ## what a change must pass
