# Everything one does with this repository. `make` alone lists it.
# The environment is kept in .venv; nothing outside the repository is changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SPEC ?= configs/lstm.yaml
TESTS ?= tests
WORKERS ?= 2

# Tests run in $(WORKERS) processes: one thread for each keeps them from getting in one another's way.
test test-all: export OMP_NUM_THREADS := 1

.PHONY: help setup demo test test-all test-gpu lint format schema frontends scoreboard train bench clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with the pinned versions (needs Python 3.11 or newer)

$(READY): pyproject.toml constraints.txt
	@python=$$(for name in "$${PYTHON:-}" python3.11 python3 python; do \
	    if [ -n "$$name" ] && "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	    then echo "$$name"; break; fi; done); \
	if [ -z "$$python" ]; then \
	    echo "make: no Python 3.11 or newer found; name one: make setup PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	fi; \
	[ -x $(BIN)/python ] || { echo "creating $(VENV) with $$($$python --version)"; $$python -m venv $(VENV); }
	@echo "installing the pinned packages into $(VENV): a few minutes the first time"
	@$(BIN)/python -m pip install --disable-pip-version-check -qq -c constraints.txt -e '.[dev]'
	@touch $@
	@echo "ready: $(BIN)/pipeline --help"

demo: $(READY) ## run the whole pipeline on the LSTM forecaster
	@$(BIN)/pipeline run $(SPEC)
	@echo "the page to look at: build/$(basename $(notdir $(SPEC)))/report.html"

test: $(READY) ## run every test but the slow ones (TESTS=tests/zoo for some)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -m "not slow" $(TESTS)

test-all: $(READY) ## run every test
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup $(TESTS)

test-gpu: $(READY) ## run what needs a CUDA device, and print a table; skipped where there is none
	@$(BIN)/python -m pytest -q -m gpu $(TESTS)

lint: $(READY) ## check style, types and the layers of imports; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## fix style where that can be done safely
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

frontends: $(READY) ## write docs/frontends.md: which front end takes which module of the corpora
	$(BIN)/python -W ignore benchmarks/frontends.py

scoreboard: $(READY) ## write docs/scoreboard.md: the corpora through this project and other tools (20 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/scoreboard.py

schema: $(READY) ## write the spec's JSON Schema into the package again
	$(BIN)/pipeline schema > stateful_pipeline/spec/schema.json.partial
	mv stateful_pipeline/spec/schema.json.partial stateful_pipeline/spec/schema.json

train: $(READY) ## train the LSTM forecaster again (writes into stateful_pipeline/zoo/data)
	$(BIN)/python -m stateful_pipeline.zoo.train_lstm

bench: $(READY) ## run the benchmarks
	@for file in benchmarks/bench_*.py benchmarks/rewrite_states.py; do echo "== $$file"; $(BIN)/python "$$file"; done

clean: ## remove build/, with the MLflow store in it, and the caches; keeps .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
