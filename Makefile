# One entrance for people and for CI. `make help` lists the targets; each sets up what it needs.

# No built-in rules: nothing here is compiled.
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Test processes at a time, for two cores: some tests wait for programs and browsers. One thread each: torch would
# otherwise start one per core in every process.
JOBS ?= 3
# More arguments for pytest, for example: make test ARGS="--slow tests/losses"
ARGS ?=
# Those that need pictures of their own, or hours, are run by hand.
BY_HAND := bias_cards.py _% real_% controlled% doctor.py embed.py emoji5.py enrol.py method_pages.py report.py search_page.py
BENCHMARKS ?= $(filter-out $(addprefix benchmarks/,$(BY_HAND)),$(wildcard benchmarks/*.py))
CODE := src tests benchmarks examples

# A stamp is younger than pyproject.toml when its set of packages is installed. The set `dev` contains the set `all`.
ALL_STAMP := $(VENV)/.installed-all
DEV_STAMP := $(VENV)/.installed-dev
RUN_STAMP := $(if $(wildcard $(DEV_STAMP)),$(DEV_STAMP),$(ALL_STAMP))

# Sets $found to the first Python that is new enough and can make environments; PYTHON=... is tried alone.
CANDIDATES := $(or $(PYTHON),python3 python3.12 python3.11 python3.13 python3.10 python)
define FIND_PYTHON
found=; \
for candidate in $(CANDIDATES); do \
  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then \
    found="$$candidate"; break; \
  fi; \
done; \
if [ -z "$$found" ]; then \
  echo "Proxemics needs Python 3.10 or newer with its venv module, and found none (tried: $(CANDIDATES))." >&2; \
  echo "Install one (Debian and Ubuntu: apt-get install python3 python3-venv)," >&2; \
  echo "or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
  exit 1; \
fi
endef

# $(call INSTALL,all) makes the environment, unless there is one that works, and installs the package with that extra.
define INSTALL
@if ! $(BIN)/python -c '' >/dev/null 2>&1; then \
  $(FIND_PYTHON); \
  echo "Making $(VENV) with Python $$("$$found" -c 'import platform; print(platform.python_version())')"; \
  "$$found" -m venv --clear $(VENV) || exit 1; \
elif ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
  $(BIN)/python -m ensurepip >/dev/null || exit 1; \
fi
@echo "Installing proxemics[$(1)] into $(VENV); the first time takes a few minutes"
@$(BIN)/python -m pip install -qq --disable-pip-version-check -e ".[$(1)]"
@touch $@
endef

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(ALL_STAMP): pyproject.toml
	$(call INSTALL,all)

$(DEV_STAMP): pyproject.toml
	$(call INSTALL,dev)

.PHONY: demo
demo: $(RUN_STAMP)  ## train, test and report on the built-in data, on a laptop CPU, into runs/demo
	$(BIN)/proxemics demo --out runs/demo

.PHONY: serve-demo
serve-demo: $(RUN_STAMP)  ## the demo run if there is none, an index of its pictures, and the search page
	@[ -f runs/demo/result.json ] || $(BIN)/proxemics demo --out runs/demo
	@[ runs/demo-index -nt runs/demo/result.json ] || { rm -rf runs/demo-index runs/demo-index.part && \
	  $(BIN)/proxemics index build runs/demo-pictures/table.csv --model runs/demo --to runs/demo-index.part --thumbnails && \
	  mv runs/demo-index.part runs/demo-index; }
	$(BIN)/proxemics serve runs/demo --index runs/demo-index

.PHONY: test
test: $(DEV_STAMP)  ## run the tests and the examples in the docstrings (ARGS="--slow" for all of them)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

.PHONY: lint
lint: $(DEV_STAMP)  ## check the style and the formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

.PHONY: format
format: $(DEV_STAMP)  ## mend what can be mended by itself
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

.PHONY: type
type: $(DEV_STAMP)  ## check the types
	$(BIN)/mypy src/proxemics

.PHONY: bench
bench: $(DEV_STAMP)  ## measure speed and memory into benchmarks/results (BENCHMARKS=benchmarks/startup.py for one)
	@set -e; for script in $(BENCHMARKS); do echo "$(BIN)/python $$script"; $(BIN)/python "$$script"; done

.PHONY: docs
docs: $(DEV_STAMP)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.PHONY: clean
clean:  ## remove caches and builds; keeps the environment, and the runs
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
