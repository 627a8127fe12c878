# Every target covers every module of the repository: each folder with a go.mod.

# Workspaces would hide what a module lacks in its own go.mod.
export GOWORK = off

# The most that the tests, or the benchmarks, of one package may take.
TIMEOUT ?= 10m
# What make bench is to measure: see internal/bench/main.go.
ARGS ?=
# Which benchmarks of go test, as for go test -bench, and how often each runs.
BENCH ?= .
COUNT ?= 1

STATICCHECK = go tool -modfile="$(CURDIR)/internal/tools/go.mod" staticcheck

.PHONY: help test lint bench gobench mutants fmt vet

help:
	@echo 'make test   gofmt, go vet, then all tests with the race detector; installs redis-server and PostgreSQL (apt, brew) or prints how'
	@echo 'make lint   gofmt, go vet, staticcheck, go mod tidy: each must have nothing to say'
	@echo 'make mutants  puts faults into the code, one by one, and shows that the tests find each'
	@echo 'make bench  a table of speed beside plain go-redis, ristretto, MGET; ARGS="-rows regexp -times n -seconds s -peers -json file -short", 8 minutes, with peers 13'
	@echo 'make gobench  the benchmarks of go test; BENCH=regexp picks, COUNT=n repeats, TIMEOUT=10m bounds a package'

# Allocations can only be counted without the race detector: those tests run once more.
# -count=1: a cached result says nothing about the servers of today.
test: fmt vet
	@.ci/servers .ci/each go test -race -count=1 -timeout=$(TIMEOUT) ./...
	@.ci/servers .ci/each go test -run=Allocates -count=1 -timeout=$(TIMEOUT) ./...

lint: fmt vet
	@.ci/each $(STATICCHECK) ./...
	@.ci/each go mod tidy -diff

bench:
	@.ci/servers go run -C internal/bench . $(ARGS)

gobench:
	@.ci/servers .ci/each go test -run='^$$' -bench='$(BENCH)' -benchmem -count=$(COUNT) -timeout=$(TIMEOUT) ./...

mutants:
	@.ci/servers go run ./internal/mutants

fmt:
	@files="$$(gofmt -l .)" && { [ -z "$$files" ] || { echo "gofmt -w these:"; echo "$$files"; exit 1; }; }

vet:
	@.ci/each go vet ./...
