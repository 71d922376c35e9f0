# `make demo` and `make test` need Python 3.11-3.13, git and make, and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

# Two test processes share two cores: one thread each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --cov --cov-report=term

.DEFAULT_GOAL := help
.PHONY: help demo repro test test-all lint format viz clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

demo: $(INSTALLED) ## render scenes, train CLIC on them, print base, control and CLIC side by side
	$(BIN)/kedro run --pipeline=train_eval

repro: $(INSTALLED) ## the same through DVC: only stages whose inputs changed run
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dvc repro

test: lint ## formatting, lint, types, import contracts and the fast tests
	$(PYTEST) -m "not slow"

test-all: lint ## the same with the slow tests
	$(PYTEST)

lint: $(INSTALLED_DEV) ## formatting, lint, types and import contracts alone
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(INSTALLED_DEV) ## rewrite the files as `make test` wants them
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

viz: $(INSTALLED_DEV) ## browse the pipelines and their tables
	$(BIN)/kedro viz run

clean: ## remove what runs made (data/, mlruns/) except raw data of your own
	rm -rf mlruns data/01_raw/scenes data/01_raw/smoke data/0[2-8]_*

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "compo-pipeline needs Python 3.11, 3.12 or 3.13; $(PYTHON) is another." \
	    "Name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --constraint constraints.txt --editable ".[dev]"
	@touch $(INSTALLED) $@
