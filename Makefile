# `make demo` and `make test` need nothing but Python 3.11 to 3.13; they make .venv themselves.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
# The versions that were tested, without torch. Users' own installations keep the ranges of pyproject.toml.
LOCK ?= locks/py$(shell $(PYTHON) -c "import sys; print('%d%d' % sys.version_info[:2])").txt

.PHONY: demo test test-latest test-fast test-long lock lint types bench clean

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

# A busy machine can break a deadline: a few failures are tried once more, and shown all the same.
RERUNS := --reruns 1 --max-suite-reruns 5 --rerun-show-tracebacks

# One more than cores, of which 2 are enough: a test that waits for a process leaves its core to others.
WORKERS ?= 3

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(RERUNS) --durations 30 -m "not long"

# What takes minutes and seldom breaks, before a release.
test-long: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n 2 $(RERUNS) -m long

# The newest versions that pyproject.toml allows, in an environment made anew.
test-latest:
	rm -rf .venv-latest
	$(MAKE) test VENV=.venv-latest LOCK=locks/none.txt

# Once the tests have passed with what is installed.
lock: $(VENV)/installed-dev
	$(BIN)/python locks/lock.py

test-fast: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -m "not slow and not long" -n 2

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.cpu_generate
	$(BIN)/python -m benchmarks.host_work
	$(BIN)/python -m benchmarks.imports

# torch goes first and by itself, and only where it is missing: a machine's own build is kept.
$(VENV)/torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q $(TORCH)
	touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml $(LOCK)
	$(BIN)/pip install -q -c $(LOCK) -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install -q -c $(LOCK) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .venv-latest
