# Highway. `make run` and `make test` are all that a fresh clone needs, besides Python 3.11 or newer.
# The virtual environment is built once, and again only when pyproject.toml changed.

# The first Python that is new enough; `make PYTHON=/path/to/python3 ...` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test check bench crash fuzz mutations clean

run: $(VENV)/.installed ## Install and serve on 127.0.0.1:1883, data in ./highway-data; ARGS="--listen HOST:PORT" and the like
	exec $(BIN)/highway serve $(ARGS)

test: $(VENV)/.installed-test ## Install and run all tests in two processes; ARGS="..." goes to pytest, -n0 makes it one
	$(BIN)/python -m pytest -n 2 $(ARGS)

check: $(VENV)/.installed-test ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

CYCLES ?= 100
crash: $(VENV)/.installed-test ## Kill the broker and cut its power under load, CYCLES times each; the latter needs root
	$(BIN)/python -m tests.crash.campaign both $(CYCLES) $(SEED)

DURATION ?= 300
fuzz: $(VENV)/.installed-test ## Hostile packets against a running broker for DURATION seconds; SEED=... makes the same again
	$(BIN)/python -m tests.fuzz.live $(DURATION) $(SEED)

mutations: $(VENV)/.installed-test ## Take one safeguard out of the storage engine at a time: a test must see it
	$(BIN)/python tests/crash/mutations.py

bench: $(VENV)/.installed-test ## Highway beside other brokers, to bench-report/; ARGS="--only resume --rounds 1"
	$(BIN)/python -m tests.benchmarks.compare $(ARGS)

clean: ## Remove the virtual environment and caches; data stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Highway needs Python 3.11 or newer, and none was found" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV), once: this takes a minute or two" >&2
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.installed
