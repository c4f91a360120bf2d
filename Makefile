# "make help" lists the targets. Everything they need they install or build themselves: Debian packages by
# apt-get when root, all else from Go modules, cached in ${TOPODRA_CACHE:-${XDG_CACHE_HOME:-/var/tmp}/topodra}.

SHELL := /bin/bash
# NVML's header marks many functions as deprecated, and its Go binding has them all.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations
export GOFLAGS := -buildvcs=false

# The tests on the real cluster need root; a part that cannot run says so.
ROOT := $(shell [ $$(id -u) = 0 ] && echo yes)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## a two-node cluster with simulated GPUs and NICs: install, claim, look (KEEP=1 keeps it up)
	hack/demo

.PHONY: test
test: setup test-unit test-kubelet test-e2e test-topology ## everything

.PHONY: setup
setup: ## build Kubernetes and the tools that tests need (minutes the first time)
	@hack/setup

.PHONY: test-unit
test-unit: ## unit and integration tests, with a real kube-apiserver
	go test -race -timeout 20m $$(go list ./... | grep -v /e2e)

.PHONY: test-kubelet
test-kubelet: ## the kubelet's own DRA manager as the client of our socket
	cd test/kubelet && go test -race -timeout 10m ./...

.PHONY: test-e2e
test-e2e: ## pods on a real two-node cluster
ifeq ($(ROOT),yes)
	TOPODRA_REQUIRE_CLUSTER=1 go test -race -v -count=1 -timeout 20m ./e2e
else
	@echo "SKIPPED test-e2e: starting nodes needs root"
endif

.PHONY: test-topology
test-topology: ## discovery in a QEMU guest: what topo says equals what was wired
ifeq ($(ROOT),yes)
	hack/vm/test topology
else
	@echo "SKIPPED test-topology: building the guest needs root"
endif

.PHONY: test-vm
test-vm: ## a QEMU guest with real PCIe switches, SR-IOV and RDMA: topology and kernel facts (root, 3 minutes)
	hack/vm/test

.PHONY: test-rdma
test-rdma: ## pods on two such guests as Kubernetes nodes, the driver installed by its chart (root, 3 minutes)
	hack/vm/test-rdma

.PHONY: bench-prepare
bench-prepare: setup ## Prepare and Unprepare against a real kube-apiserver, beside the floor
	go test ./test/bench -run '^$$' -bench '^BenchmarkPrepare$$' -benchtime 1x -timeout 20m

.PHONY: bench-allocation
bench-allocation: ## the scheduler's allocator, then the real scheduler: pairs beside claims with constraints
	go run ./test/bench/allocation
ifeq ($(ROOT),yes)
	test/bench/allocation/cluster/run
else
	@echo "SKIPPED the real scheduler: starting a cluster needs root"
endif

.PHONY: bench-pods
bench-pods: ## NICs into pods: the sandbox hooks, and pods on a cluster beside pods without a claim (root)
	go test -run '^$$' -bench Sandbox -benchtime 100x ./internal/podnet
	test/bench/pods/run

.PHONY: bench-topology
bench-topology: ## discovery and topology of the largest machine
	go test -run '^$$' -bench . -benchmem ./internal/machine ./internal/topology

.PHONY: fuzz
fuzz: ## every fuzz target for 60 s
	hack/fuzz 60s

.PHONY: lint
lint: ## golangci-lint, built from Go modules
	go tool -modfile=hack/build/lint/go.mod golangci-lint run

.PHONY: build
build: ## bin/topodra, bin/topodra-hook and bin/kubectl-topodra
	CGO_ENABLED=1 go build -o bin/topodra ./cmd/topodra
	CGO_ENABLED=0 go build -o bin/topodra-hook ./cmd/topodra-hook
	CGO_ENABLED=0 go build -o bin/kubectl-topodra ./cmd/kubectl-topodra

.PHONY: image
image: ## the agent's image as an OCI archive, without a container engine
	hack/images/build-topodra

.PHONY: cross
cross: ## compile for arm64 (needs gcc-aarch64-linux-gnu)
	GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc go build -o /dev/null ./cmd/topodra
	GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/topodra-hook
	GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/kubectl-topodra
