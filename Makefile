# OrbitKV. `make` alone lists the targets.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.10; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$p; break; }; done)
PYTHON := $(or $(PYTHON),python3)
GO ?= go
BENCH_FOLDER ?= bin
GOARCH ?= $(shell $(GO) env GOARCH 2>/dev/null)
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' python/src/orbitkv/__init__.py)
COMMIT := $(shell git -c 'safe.directory=*' rev-parse --short=12 HEAD 2>/dev/null)
LDFLAGS = -X main.version=$(VERSION) -X main.commit=$(COMMIT)
STAGES = $(PYTHON) tools/stages.py
GO_FILES = $$(git -c 'safe.directory=*' ls-files -co --exclude-standard '*.go')
PYTHON_FILES = $$(git -c 'safe.directory=*' ls-files -co --exclude-standard '*.py')

.DEFAULT_GOAL := help
.PHONY: help prereqs build wheel demo test test-fast stage bench measure lint fmt doctor clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' Makefile | awk -F@ '{printf "%-18s %s\n", $$1, $$2}'

prereqs: ## check what must be installed, and say what is missing
	@tools/prereqs.sh $(PYTHON)

build: prereqs ## build bin/orbitkv, one static binary
	CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/orbitkv ./cmd/orbitkv

wheel: prereqs ## build the wheel that carries the binary (GOARCH=arm64 for the other machine)
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) $(GO) build -trimpath -ldflags '-s -w $(LDFLAGS)' \
		-o build/wheel/$(GOARCH)/orbitkv ./cmd/orbitkv
	@rm -f dist/orbitkv-*.whl
	dev=$$($(PYTHON) tools/envs.py dev) && cd python && ORBITKV_BINARY=$(CURDIR)/build/wheel/$(GOARCH)/orbitkv \
		$$dev/bin/python -m hatchling build -t wheel -d $(CURDIR)/dist

demo: prereqs ## a real engine loses a prefix to pressure and gets it back from OrbitKV (ENGINE=sglang: the other engine)
	@demo/run $(if $(ENGINE),--engine $(ENGINE))

test: prereqs ## everything: lint, types, tests, races, fuzzing, wheel, real engines, demo
	@$(STAGES) all

test-fast: prereqs ## everything without engines and fuzzing
	@$(STAGES) fast

stage: prereqs ## run single stages: make stage S="go-test mypy" (without S: list them)
	@$(STAGES) $(or $(S),--list)

lint: prereqs ## formatting, vet, static analysis, types and the tree's own rules
	@$(STAGES) lint

fmt: prereqs ## format Go and Python
	$(GO) tool -modfile=tools/go.mod gofumpt -w $(GO_FILES)
	dev=$$($(PYTHON) tools/envs.py dev) && $$dev/bin/ruff check --fix --exit-zero --quiet $(PYTHON_FILES) && \
		$$dev/bin/ruff format $(PYTHON_FILES)

bench: build ## benchmarks: no pass or fail, figures with their units and ceilings (BENCH_FOLDER=bin lies on the disk to measure)
	bin/orbitkv bench channel
	bin/orbitkv bench pool
	-bin/orbitkv bench ssd $(BENCH_FOLDER)
	dev=$$($(PYTHON) tools/envs.py dev) && PYTHONPATH=python/src:tools $$dev/bin/python -m bench.latency
	CGO_ENABLED=0 $(GO) test -run '^$$' -bench . -benchmem -timeout 60m ./...

measure: prereqs ## cache backends with a real engine on the CPU (ENGINE=sglang, OUTPUT=folder, FLAGS="of bench single-node")
	@$(PYTHON) tools/measure.py $(or $(ENGINE),vllm) $(if $(OUTPUT),--output "$(OUTPUT)") $(FLAGS)

doctor: build ## what this machine offers, and what to change
	@$(PYTHON) tools/envs.py --list
	@bin/orbitkv doctor

clean: ## remove what was built here; environments and checkpoints stay in the user's cache
	rm -rf bin build dist
