# What one does with a clone. Needs Python 3.10 or later with its headers, a C compiler and make;
# everything else is installed into .venv by the first target that needs it.

PYTHON ?= python3
CC ?= cc
VENV ?= .venv
FUZZ_SECONDS ?= 60
PYTEST_ARGS ?=
# Test processes at once; some of them wait for other processes.
TEST_JOBS ?= 4
BENCH_ARGS ?=
MODELS_ARGS ?=
# --all: every CPython on this machine, not only the oldest and the newest.
WHEEL_ARGS ?=

BIN := $(VENV)/bin
# What pip may install: /dev/null for the newest of everything. A relative path, because pip splits
# the variables at spaces. Newer versions of pip read the second one for build isolation.
CONSTRAINTS ?= constraints.txt
PINNED := PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS)
# Modules are compiled when they are imported: a tenth of what is installed.
PIP := $(PINNED) PIP_COMPILE=0 $(BIN)/python -m pip --disable-pip-version-check --quiet
# setuptools warns each time, in a block of its own, that the tree is what is imported: that is what
# an editable installation is for.
EDITABLE := PYTHONWARNINGS='ignore:Editable installation' $(PIP) install --editable
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' libhamiregion/_version.py)

INSTALLED := $(VENV)/.installed
# The command line and nothing else, where the tests have not been set up yet.
DEMO := $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(VENV)/.demo)
BUILD_INPUTS := pyproject.toml constraints.txt setup.py libhamiregion/_build.py libhamiregion/_version.py \
	$(wildcard csrc/*.[ch] csrc/preload/*)
C_FILES := $(wildcard $(addsuffix /*.[ch],csrc csrc/preload tests/c tests/fake_nvml \
	tests/fake_cuda tests/preload benchmarks))

# The core in .venv lets tests have a /proc of their own; wheels are built without (make wheel).
export HAMIREGION_TEST_BUILD := 1

# The tests start thousands of interpreters, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Targets share one virtual environment, which pip must not fill twice at a time.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint format texts sanitize fuzz models cluster bench docs wheel clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) \
		| awk -F '\t' '{ printf "make %-9s %s\n", $$1, $$2 }'

demo: $(DEMO) ## a region, real processes that use it, and limits edited live (half a minute)
	@echo "hamiregion is $(abspath $(BIN))/hamiregion here"
	@$(BIN)/hamiregion demo

test: $(INSTALLED) ## the test suite without the slow tests (PYTEST_ARGS=...)
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-all: $(INSTALLED) ## the whole test suite (PYTEST_ARGS="-m slow" for the rest)
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal --timeout 1800 $(PYTEST_ARGS)

lint: $(VENV)/.lint ## ruff, clang-format, mypy --strict, the order of files, the C core with -Werror
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_order.py
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	@for file in csrc/*.c csrc/preload/*.c; do \
		echo "$(CC) -Werror $$file"; \
		$(CC) -std=gnu11 -O2 -Wall -Wextra -Werror -DHR_VERSION='"$(VERSION)"' \
			-Icsrc -c $$file -o /dev/null || exit 1; \
	done

format: $(VENV)/.lint ## rewrite Python and C files in the house's format
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

texts: $(INSTALLED) ## the JSON schemas, the list of findings, and the table of the chart's values
	$(BIN)/python docs/json_schema.py
	$(BIN)/python docs/findings_list.py
	$(BIN)/python docs/values_table.py

sanitize: ## the C tests under the address, undefined-behaviour and thread sanitizers
	$(MAKE) -C tests/c asan tsan
	$(MAKE) -C tests/preload asan tsan

fuzz: ## coverage-guided fuzzing of the C core (FUZZ_SECONDS=60)
	$(MAKE) -C tests/c fuzz FUZZ_SECONDS=$(FUZZ_SECONDS)

models: ## the protocol's models, exhaustively, with Spin (MODELS_ARGS=--all: minutes, gigabytes)
	$(PYTHON) docs/models/check.py $(MODELS_ARGS)

cluster: ## the chart, the kubectl plugin and limits by annotation against a real API server
	@$(PYTHON) tests/cluster/build_apiserver.py
	@$(MAKE) --no-print-directory $(INSTALLED)
	HAMIREGION_CLUSTER=1 $(BIN)/python -m pytest tests/cluster --timeout 600 $(PYTEST_ARGS)

bench: $(INSTALLED) ## the time budgets, and a ratio to a plain reader (BENCH_ARGS=--quick)
	$(BIN)/python -m pytest benchmarks $(BENCH_ARGS)

docs: $(VENV)/.docs ## the documentation, as docs/_build/html
	$(BIN)/sphinx-build -E -W -n --keep-going -b html docs docs/_build/html

wheel: ## dist/: the sdist and the wheel built from it, tested in clean environments
	env -u HAMIREGION_TEST_BUILD $(PYTHON) tools/check_wheel.py $(WHEEL_ARGS)

clean: ## remove everything that was built, .venv included
	rm -rf $(VENV) build dist docs/_build *.egg-info libhamiregion/*.so \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@for place in c fake_cuda fake_nvml preload; do \
		if [ -f tests/$$place/Makefile ]; then $(MAKE) -C tests/$$place clean; fi; \
	done

# What pip would answer with pages of output is said here in one line.
$(VENV)/.created:
	@die() { echo "make: $$*" >&2; exit 1; }; \
	command -v $(PYTHON) >/dev/null \
		|| die "no $(PYTHON) here; name a Python 3.10 or later: make PYTHON=/path/to/python3"; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| die "$(PYTHON) is older than 3.10; name a newer one: make PYTHON=/path/to/python3"; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| die "$(PYTHON) cannot make virtual environments (on Debian: apt install python3-venv)"; \
	$(PYTHON) -c 'import os, sysconfig as s; \
		open(os.path.join(s.get_paths()["include"], "Python.h")).close()' 2>/dev/null \
		|| die "the headers of $(PYTHON) are missing (on Debian: apt install python3-dev)"; \
	command -v $(firstword $(CC)) >/dev/null \
		|| die "no C compiler (on Debian: apt install gcc libc6-dev)"
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@# The first pip that knows dependency groups.
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.demo: $(BUILD_INPUTS) | $(VENV)/.created
	@echo "compiling the core, and installing the command line into $(VENV)"
	@$(EDITABLE) '.[cli]'
	@touch $@

$(INSTALLED): $(BUILD_INPUTS) | $(VENV)/.created
	@rm -f $@
	@echo "compiling the core, and installing what the tests need into $(VENV) (1 minute)"
	@$(EDITABLE) '.[all]' --group test
	@# pytest rewrites asserts: here once, else in each of its processes.
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null || true
	@touch $@

$(VENV)/.lint: pyproject.toml constraints.txt | $(INSTALLED)
	$(PIP) install --group lint
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(INSTALLED)
	$(PIP) install --group docs
	@touch $@
