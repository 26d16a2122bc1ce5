# What one does with a clone. Needs Python 3.10 or later with its headers, a C compiler and make;
# everything else is installed into .venv by the first target that needs it.

PYTHON ?= python3
CC ?= cc
VENV ?= .venv
FUZZ_SECONDS ?= 60
PYTEST_ARGS ?=
# Test processes at once. Some of them wait for other processes; each reads all tests first. What
# stands together runs together, so that the tests of a file have what they share made once.
TEST_JOBS ?= 4
SPREAD := --dist worksteal
# How much of the long runs: 0.02 of them take minutes instead of an hour.
STRESS ?= 1
BENCH_ARGS ?=
# For `make clients`; 'cuda-bindings<13' is the other generation.
CUDA_BINDINGS ?= cuda-bindings
MODELS_ARGS ?=
# Of `make tenant`, which plays each seed for so long.
TENANT_SEEDS ?= 1 2 3
TENANT_MINUTES ?= 30
# --free-threaded: also a Python without a GIL, compiled from Debian's source.
NEWEST_ARGS ?=
SEED ?= 1
MUTANTS ?= 50
MUTANTS_ARGS ?=

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

# A build with test points and one without are different extensions: one stamp for each.
INSTALLED := $(VENV)/.installed$(HAMIREGION_TESTPOINTS)
# The command line and nothing else, where the tests have not been set up yet.
DEMO := $(if $(wildcard $(VENV)/.installed*),$(INSTALLED),$(VENV)/.demo)
BUILD_INPUTS := pyproject.toml constraints.txt setup.py libhamiregion/_build.py libhamiregion/_version.py \
	$(wildcard csrc/*.[ch] csrc/preload/*)
C_FILES := $(wildcard $(addsuffix /*.[ch],csrc csrc/preload tests/c tests/fake_nvml \
	tests/fake_cuda tests/preload benchmarks))

# There once the tests were read.
READ := tests/unit/__pycache__

# The tests start thousands of interpreters, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Targets share one virtual environment, which pip must not fill twice at a time.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test thorough clients cluster tenant stress lint format types texts sanitize aarch64 fuzz models litmus \
	mutants hiccups bench docs pictures wheel wheels aarch64-wheel packaging newest-python clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) \
		| awk -F '\t' '{ printf "make %-13s %s\n", $$1, $$2 }'

demo: $(DEMO) ## a region, real processes that use it, and limits edited live (half a minute)
	@$(BIN)/hamiregion demo

# 5 is for no tests: PYTEST_ARGS may choose none of these, or none of those.
test: $(INSTALLED) $(READ) ## the test suite, without `make thorough` and the long runs (PYTEST_ARGS=...)
	$(BIN)/python -m pytest -n $(TEST_JOBS) $(SPREAD) -m "not apart and not thorough and not stress" $(PYTEST_ARGS) || [ $$? = 5 ]
	$(BIN)/python -m pytest -n 2 $(SPREAD) -m "apart and not thorough and not stress" $(PYTEST_ARGS) || [ $$? = 5 ]

thorough: $(INSTALLED) $(READ) ## the rest of it: the same for more layouts, calls and faults (PYTEST_ARGS=...)
	$(BIN)/python -m pytest -n $(TEST_JOBS) $(SPREAD) -m "not apart and thorough and not stress" $(PYTEST_ARGS) || [ $$? = 5 ]
	$(BIN)/python -m pytest -n 2 $(SPREAD) -m "apart and thorough and not stress" $(PYTEST_ARGS) || [ $$? = 5 ]

clients: $(INSTALLED) ## programs that nobody here wrote on the fake driver (400 MB)
	$(PIP) install '$(CUDA_BINDINGS)' numba-cuda nvitop gpustat
	$(BIN)/python -m pytest tests/preload/test_clients.py -n $(TEST_JOBS) $(PYTEST_ARGS)

cluster: ## the manifests, the watch and names against a real API server (on Debian 12)
	@$(PYTHON) tests/cluster/build_apiserver.py
	@$(MAKE) --no-print-directory $(INSTALLED)
	HAMIREGION_CLUSTER=1 $(BIN)/python -m pytest tests/cluster --timeout 600 $(PYTEST_ARGS)

tenant: $(INSTALLED) ## a hostile container beside an honest one, with three seeds (TENANT_MINUTES=30 for each)
	for seed in $(TENANT_SEEDS); do \
		TENANT_SEED=$$seed TENANT_MINUTES=$(TENANT_MINUTES) $(BIN)/python -m pytest -s \
			-m stress --timeout 7200 tests/integration/test_tenant.py $(PYTEST_ARGS) || exit 1; \
	done

stress: $(INSTALLED) ## the long runs that `make test` leaves out (STRESS=0.02: a part of each)
	HAMIREGION_STRESS=$(STRESS) $(BIN)/python -m pytest -m stress --timeout 1800 -n $(TEST_JOBS) $(PYTEST_ARGS)

lint: $(VENV)/.lint ## ruff, clang-format, and the C core with -Werror
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
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

types: $(VENV)/.lint ## mypy --strict
	$(BIN)/mypy

texts: $(INSTALLED) ## the JSON schemas and the list of findings, from the code
	$(BIN)/python docs/json_schema.py
	$(BIN)/python docs/findings_list.py

sanitize: ## the C tests under the address, undefined-behaviour and thread sanitizers
	$(MAKE) -C tests/c asan tsan
	$(MAKE) -C tests/preload asan tsan

# qemu-user gives a blocked SIGBUS to nobody who waits for it; where one thread installs a handler
# while another faults, it may call the new one with the old one's flags; and a fork beside busy
# threads may hang in it.
aarch64: ## the C tests as programs for aarch64, under qemu-user
	$(MAKE) -C tests/c check CC=aarch64-linux-gnu-gcc BUILD=build/aarch64 \
		RUN='qemu-aarch64 -L /usr/aarch64-linux-gnu' LEAVE_OUT='test_sigbus_threads test_lifetime'

fuzz: ## coverage-guided fuzzing of the C core (FUZZ_SECONDS=60)
	$(MAKE) -C tests/c fuzz FUZZ_SECONDS=$(FUZZ_SECONDS)

models: ## the protocol's models, exhaustively, with Spin (MODELS_ARGS=--all: minutes, gigabytes)
	$(PYTHON) docs/models/check.py $(MODELS_ARGS)

mutants: $(INSTALLED) ## random faults that no test sees (SEED=1 MUTANTS=50: hours)
	$(BIN)/python tests/mutants.py --seed $(SEED) --mutants $(MUTANTS) $(MUTANTS_ARGS)

hiccups: $(INSTALLED) ## `make test`, all of which stands still again and again (SEED=1, as root)
	$(BIN)/python tests/hiccups.py --seed $(SEED) $(MAKE) test

litmus: ## the core's memory orders on AArch64, by Arm's model, with herd7
	$(PYTHON) docs/models/litmus.py

bench: $(INSTALLED) ## the time budgets, and ratios to plain readers (BENCH_ARGS=...)
	$(BIN)/python -m pytest benchmarks --benchmark-only $(BENCH_ARGS)

docs: $(VENV)/.docs ## the documentation, as docs/_build/html
	$(BIN)/sphinx-build -E -W -n --keep-going -b html docs docs/_build/html

pictures: $(INSTALLED) ## the moving picture of the README, and that of a report (needs Chromium)
	$(BIN)/python docs/capture.py
	PYTHONPATH=tests $(BIN)/python docs/capture_report.py

wheel: $(VENV)/.created ## dist/: the sdist, and the wheel built from it
	$(PIP) install build
	$(PINNED) env -u HAMIREGION_TESTPOINTS $(BIN)/python -m build

wheels: ## dist/: the sdist, and a wheel for each machine and libc, with Zig as the compiler
	$(PYTHON) tests/packaging/build_wheels.py

aarch64-wheel: ## test the wheel for aarch64 that `make wheels` has made, under qemu-user (5 minutes)
	$(PYTHON) tests/packaging/check_aarch64_wheel.py

packaging: ## build the wheel once, test it on every CPython from 3.10 to 3.15 found here
	$(PYTHON) tests/packaging/check_wheel.py

newest-python: ## test the wheel on Python 3.14 and 3.15 of Debian's newest suite (as root)
	$(PYTHON) tests/packaging/check_newest.py $(NEWEST_ARGS)

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
	@rm -f $(VENV)/.installed*
	@echo "compiling the core, and installing what the tests need into $(VENV) (1 minute)"
	@$(EDITABLE) '.[all]' --group test
	@touch $@

# Each process that runs tests reads all of them first. In a new clone each would compile them as
# well: two compile a half each before the others start.
$(READ): | $(INSTALLED)
	@$(BIN)/python -m pytest -q --collect-only tests/integration >/dev/null & \
	$(BIN)/python -m pytest -q --collect-only --ignore=tests/integration >/dev/null; wait

$(VENV)/.lint: pyproject.toml constraints.txt | $(INSTALLED)
	$(PIP) install --group lint
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(INSTALLED)
	$(PIP) install --group docs
	@touch $@
