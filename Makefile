# Every target sets up what it needs: a virtual environment in .venv with the pinned packages.

VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= book,test
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
endif
comma := ,
# Another Python or other extras are another installation, so they are part of the stamp's name.
READY := $(VENV)/.ready-$(subst /,_,$(PYTHON))-$(subst $(comma),_,$(EXTRAS))
PYTEST_ARGS ?=
CHAPTERS ?= notebooks
LAB_ARGS ?=
BOOK_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test lab book bench peers test-gpu lint clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Only install, into .venv (PYTHON=python3.12 chooses the Python)

demo: $(READY) ## Set up, then serve conversations with and without prefix sharing
	$(BIN)/mooncake-edu demo

# Tests are many and small: two processes of one thread each finish sooner than one of two threads. Files with long tests
# come first (tests/conftest.py), where pytest-xdist would put those with few tests last.
test: $(READY) ## Set up, then run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# A browser and other work share the machine with the kernel: threads that wait then must not hold up those that work.
# Its settings there keep JupyterLab from asking at its first start whether it should fetch news.
lab: $(READY) ## Set up, then open JupyterLab on the notebooks (CHAPTERS=my-course: on those)
	OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-PASSIVE} $(BIN)/jupyter lab --LabApp.app_settings_dir='$(CURDIR)/notebooks/.jupyterlab' $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_ARGS) $(CHAPTERS)

book: $(READY) ## Set up, then run the chapters and build the book from them
	$(BIN)/python book/build.py $(BOOK_ARGS)

bench: $(READY) ## Set up, then measure engine and hashing
	$(BIN)/mooncake-edu bench engine
	$(BIN)/mooncake-edu bench hash

peers: $(READY) ## Install what the benches compare with, each in its own environment
	$(BIN)/python -m mooncake_edu.bench.peers

test-gpu: $(READY) ## Set up, then run the tests that need a GPU (skipped where there is none)
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

lint: $(READY) ## Set up, then run ruff and mypy
	$(BIN)/ruff check
	$(BIN)/mypy

clean: ## Remove the environment and all caches of tools, but no fetched model
	rm -rf $(VENV) .peers .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --no-compile: Python compiles the modules that are used when they are first used.
# Without a stamp, the last installation failed, or was another one: start from nothing. With an old one, update.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11, 3.12 or 3.13 found: install one, or name it with PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || \
		{ echo "make: $(PYTHON) is no Python 3.11, 3.12 or 3.13: name one with PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "make: $(PYTHON) cannot make virtual environments: install its venv module (Debian: python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv $(if $(wildcard $@),,--clear) $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
