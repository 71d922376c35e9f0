# `make demo` and `make test` need Python 3.11-3.13, git and make, and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# uv does not read pip's configuration: a package index that is set there is passed on.
PIP_INDEX = $(shell $(PIP) config list | sed -n "s/^[^=]*[.]index-url='\(.*\)'/\1/p" | tail -n 1)
UV = UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$(PIP_INDEX)}" $(BIN)/uv
# The versions of constraints.txt with the sha256 of every file, which uv checks; of another torch
# backend, whose index has its own builds, without those of torch and CUDA. An index with builds of
# its own of further packages needs LOCKED=constraints.txt.
LOCKED ?= $(if $(UV_TORCH_BACKEND),$(VENV)/constraints-backend.txt,constraints-hashed.txt)
UV_INSTALL = $(UV) pip install --python $(BIN)/python --constraint $(LOCKED) --build-constraint $(LOCKED)
UV_COMPILE = $(UV) pip compile --quiet --no-annotate --all-extras --group install --custom-compile-command "make lock" pyproject.toml
# What `make install` installs; the Dockerfile first installs the dependencies alone.
PACKAGE = --editable .
# uv refuses an empty one.
ifeq ($(UV_TORCH_BACKEND),)
unexport UV_TORCH_BACKEND
endif
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

# Files stay in their order: the longest are in the middle, so that no process is idle at the end.
# SlipCover adds a tenth to the time of the tests, coverage.py doubles it. Its --fail-under needs a
# command of its own: with xdist, the report would leave out the worker processes.
COVERAGE := $(VENV)/coverage.json
PYTEST := $(BIN)/python -m slipcover --json --out $(COVERAGE) -m pytest --numprocesses=2 \
  --dist=loadfile --no-loadscope-reorder
COVERED := $(BIN)/python -m slipcover --merge $(COVERAGE) --out $(COVERAGE) --fail-under 95
# Types are checked meanwhile; without a cache that takes a minute of one core.
WITH_TYPES = @$(BIN)/mypy >$(VENV)/mypy.log 2>&1 & types=$$!; \
  $(1) && $(COVERED); tests=$$?; wait $$types; types=$$?; cat $(VENV)/mypy.log; \
  exit $$((tests + types))

.DEFAULT_GOAL := help
.PHONY: help install demo repro test test-all lint style format docs viz lock lock-check licences dist wheel-check release-check gpu-check clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

install: $(INSTALLED) ## install into .venv/, as the other targets do by themselves

demo: $(INSTALLED) ## render scenes, teach a model relations, print base, control and model side by side
	$(BIN)/kedro run --pipeline=train_eval --env=relations_scenes

repro: $(INSTALLED) ## train CLIC on the scenes through DVC: only stages whose inputs changed run
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dvc repro

# Many container images set PYTHONDONTWRITEBYTECODE: every process of the tests would compile the
# libraries again, for ten seconds and more.
test test-all: export PYTHONDONTWRITEBYTECODE =
test test-all: export PYTHONPYCACHEPREFIX = $(abspath $(VENV))/pycache

test: style ## formatting, lint, types, import contracts and the fast tests
	$(call WITH_TYPES,$(PYTEST) -m "not slow")
	@$(BIN)/python benchmarks/structure.py --budgets || true

test-all: style ## the same with the slow tests
	$(call WITH_TYPES,$(PYTEST))

lint: style ## formatting, lint, types and import contracts alone
	$(BIN)/mypy

style: $(INSTALLED_DEV)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-cache

format: $(INSTALLED_DEV) ## rewrite the files as `make test` wants them
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Material for MkDocs announces its successor at each build, Zensical, which reads mkdocs.yml too.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(INSTALLED_DEV) ## write the documentation site: open build/site/index.html
	$(BIN)/python benchmarks/project/pages.py
	$(BIN)/mkdocs build --quiet

viz: $(INSTALLED_DEV) ## browse the pipelines and their tables
	@for second in $$(seq 120); do sleep 1; \
	$(BIN)/python -c "from urllib.request import urlopen; urlopen('http://127.0.0.1:4141')" 2>/dev/null \
	&& exec $(BIN)/python -m webbrowser "http://127.0.0.1:4141/?pid=train_eval&types=nodes"; done & \
	$(BIN)/kedro viz run --no-browser

gpu-check: $(INSTALLED_DEV) ## losses, speed and memory on this machine's GPU, in 12 minutes; without one in 3
	$(BIN)/python benchmarks/speed/gpu_check.py

dist: $(INSTALLED_DEV) ## build the wheel and the sdist into dist/
	@rm -rf dist
	$(BIN)/python -m hatchling build

wheel-check: dist ## install the wheel alone in a new environment, and run the demo in a new project
	@rm -rf build/wheel && mkdir -p build/wheel
	@$(UV) venv --quiet --python $(BIN)/python build/wheel/venv
	$(UV) pip install --quiet --python build/wheel/venv/bin/python --constraint $(LOCKED) dist/*.whl
	build/wheel/venv/bin/compo-pipeline new build/wheel/photos
	cd build/wheel/photos && ../venv/bin/kedro run --pipeline=train_eval

release-check: ## does TAG=v<version> fit the package's version and CHANGELOG.md?
	@version=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/compo_pipeline/__init__.py); \
	test "$(TAG)" = "v$$version" \
	  || { echo "TAG is '$(TAG)', __version__ of src/compo_pipeline/__init__.py is $$version"; exit 1; }; \
	grep -q "^## \[$$version\]" CHANGELOG.md \
	  || { echo "CHANGELOG.md has no section [$$version]"; exit 1; }; \
	if sed -n '/^## \[Unreleased\]/,/^## \[[0-9]/p' CHANGELOG.md | grep -q '^- '; \
	then echo "CHANGELOG.md has lines under [Unreleased]: move them to [$$version]"; exit 1; fi

lock: $(BIN)/uv ## write both files of constraints anew from pyproject.toml; versions stay unless UPGRADE=1
	@$(UV_COMPILE) --universal --python-version 3.11 $(if $(UPGRADE),--upgrade) --output-file constraints.txt
	@$(UV_COMPILE) --universal --python-version 3.11 --upgrade --constraint constraints.txt --generate-hashes \
	  --output-file constraints-hashed.txt

licences: $(INSTALLED_DEV) ## list the licences of all installed packages
	@$(BIN)/python benchmarks/project/licences.py

lock-check: $(BIN)/uv ## is constraints.txt up to date, and does it resolve on every Python and system?
	@cp constraints.txt $(VENV)/constraints.txt
	@$(UV_COMPILE) --universal --python-version 3.11 --output-file $(VENV)/constraints.txt
	@diff constraints.txt $(VENV)/constraints.txt \
	  || { echo "constraints.txt does not fit pyproject.toml: run make lock"; exit 1; }
	@for version in 3.11 3.12 3.13; do for platform in linux macos windows; do \
	  MACOSX_DEPLOYMENT_TARGET=14.0 $(UV_COMPILE) --python-version $$version \
	    --python-platform $$platform --constraint constraints.txt >/dev/null || exit 1; \
	  echo "constraints.txt resolves for Python $$version on $$platform"; \
	done; done

# Your own raw data stay, and the two README.md. mlruns/ stays too unless REGISTRY=1: the registered
# models are there.
CLEANED := data/01_raw/scenes data/01_raw/smoke $(wildcard data/0[2-8]_* data/remote)
ifdef REGISTRY
CLEANED += $(filter-out mlruns/README.md,$(wildcard mlruns/*))
endif

clean: ## remove what runs made from data/; REGISTRY=1: from mlruns/ too; YES=1: without asking
	@existing="$(wildcard $(CLEANED))"; \
	if [ -z "$$existing" ]; then echo "Nothing to remove."; exit 0; fi; \
	du -sh $$existing; \
	if [ -z "$(YES)" ]; then \
	  if ! [ -t 0 ]; then echo "Nothing removed: no terminal to ask. To remove these: make clean YES=1"; exit 1; fi; \
	  printf "Remove these? [y/N] "; read -r answer; \
	  case $$answer in [yY]|[yY]es) ;; *) echo "Nothing removed."; exit 1;; esac; \
	fi; \
	rm -rf $$existing

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "compo-pipeline needs Python 3.11, 3.12 or 3.13; $(PYTHON) is another." \
	    "Name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(BIN)/uv: | $(BIN)/python
	@sed -n '/^uv==/,/[^\\]$$/p' constraints-hashed.txt >$(VENV)/uv.txt
	$(PIP) install --quiet --require-hashes --requirement $(VENV)/uv.txt

$(VENV)/constraints-backend.txt: constraints-hashed.txt | $(BIN)/python
	@sed -E '/^(torch|torchvision|triton|nvidia-.*|cuda-.*)==/,/[^\\]$$/{/--hash/d;s/ \\$$//;}' $< >$@

$(INSTALLED): pyproject.toml $(LOCKED) | $(BIN)/uv
	@$(UV_INSTALL) $(PACKAGE)
	@touch $@

$(INSTALLED_DEV): pyproject.toml $(LOCKED) | $(BIN)/uv
	@$(UV_INSTALL) --editable ".[dev]"
	@touch $(INSTALLED) $@
