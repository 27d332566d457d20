# `make demo` and `make test` do all of their own set-up. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(abspath $(VENV))/bin
BASE := $(VENV)/.base
CROSS := $(VENV)/.cross
STAMP := $(VENV)/.installed
# For pytest, as in `make test ARGS='-k exit_code'`.
ARGS ?=
FUZZ_SECONDS ?= 60
# Else each process that runs tests, and each command that they start, compiles its Python anew.
unexport PYTHONDONTWRITEBYTECODE

C_SOURCES = $(shell git ls-files '*.c' '*.h' 2>/dev/null || find lib tests -name '*.[ch]' -not -path '*/build/*')

# Made from the code.
GENERATED := docs/config.md docs/reference.md docs/memory-functions.md docs/monitoring.md docs/vgpurun.1

.PHONY: help venv lib demo check test test-all test-versions coverage dist test-unit fuzz test-gpu compile_commands.json lint format docs site proto bench release clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z_.%-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## the Python environment in .venv, with vgpurun and all tools for its tests

# pip's own output is only of interest when it fails.
INSTALL := @$(BIN)/pip install -qq --disable-pip-version-check --editable

# Runs and builds vgpurun.
$(BASE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is older than Python 3.10. Name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up the Python environment in $(VENV)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
	  { echo "No virtual environment could be made. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(INSTALL) '.[build]'
	@touch $@

# Builds it for other machines and older C libraries.
$(CROSS): $(BASE)
	@echo "Installing the cross compiler in $(VENV)"
	$(INSTALL) '.[dist]'
	@touch $@

# Tests it.
$(STAMP): $(BASE)
	@echo "Installing the tools for the tests in $(VENV)"
	$(INSTALL) '.[dev]'
	@touch $@

lib: $(BASE) ## libvgpu.so and the simulated driver in lib/build
	@test -e lib/build/libvgpu.so || echo '#include <stdio.h>' | $(CC) -fsyntax-only -x c - 2>/dev/null || \
	  { echo "$(CC) compiles no C. On Debian and Ubuntu: apt-get install gcc libc6-dev" >&2; exit 1; }
	@test -e lib/build/libvgpu.so || echo "Building the library and the simulated driver in lib/build"
	@$(MAKE) --silent --no-print-directory --jobs=$(shell nproc) -C lib PYTHON=$(BIN)/python

demo: lib ## the limits at work: on this machine's GPU, or else on a simulated one
	@$(BIN)/python examples/demo.py

RUN := PYTEST=$(BIN)/pytest tests/run

# Lint beside the tests: mypy keeps one processor busy, and they wait for much.
check: $(STAMP) lib ## lint, types, and the fast tests
	@$(MAKE) --silent --no-print-directory lint & lint=$$!; failed=0; \
	$(BIN)/pytest -n $$(($(shell nproc) + 1)) --durations 5 --durations-min 1 -m 'not (real_time or slow or exhaustive)' \
	  tests/unit tests/c tests/sim tests/preload $(ARGS) || failed=$$?; \
	wait $$lint || { echo "lint failed: see above" >&2; exit 1; }; exit $$failed

test: lint lib ## lint, and all tests but the exhaustive ones; as root also those whose programs are not installed
	@$(RUN) -m 'not exhaustive' $(ARGS)

test-all: lint lib ## lint, and every test: other targets, other engines, fuzzing and all that takes long
	@$(RUN) $(ARGS)

test-unit: $(STAMP) ## the tests without an engine, a GPU or the library
	@$(RUN) tests/unit $(ARGS)

test-%: $(STAMP) lib ## those of one more folder: c, sim, preload, engine, kubernetes, ray, slurm or page
	@$(RUN) tests/$* $(ARGS)

coverage: $(STAMP) lib ## which lines tests/unit and tests/kubernetes reach of the Python code, and tests/c of the policy
	@$(BIN)/pytest -q -n $(shell nproc) --cov --cov-report=term:skip-covered tests/unit tests/kubernetes $(ARGS)
	@rm -rf lib/build/c/coverage
	@VGPURUN_C_KIND=coverage $(BIN)/pytest -q -n $(shell nproc) -m 'not exhaustive' tests/c/test_policy.py $(ARGS)
	@$(BIN)/python tests/c/coverage.py

fuzz: $(STAMP) lib ## the limit parser and the usage file under mutated inputs, a minute each
	@VGPURUN_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest tests/c/test_fuzz.py --timeout 0 -s $(ARGS)

test-gpu: $(STAMP) lib ## on this machine's GPU
	@$(BIN)/pytest tests/gpu $(ARGS)

# Python's minor versions, as far as this machine has them; and clang, which root gets from Debian where it is not installed.
VERSIONS := 3.10 3.11 3.12 3.13
test-versions: $(STAMP) ## unit tests on each Python from 3.10 to 3.13 and the library by gcc and clang, as far as they are here
	@for version in $(VERSIONS); do \
	  for python in python$$version ~/.pyenv/versions/$$version.*/bin/python ""; do \
	    [ -z "$$python" ] || $$python -c 'import venv' 2>/dev/null && break; \
	  done; \
	  [ -n "$$python" ] || { echo "no Python $$version here"; continue; }; \
	  echo "Python $$version"; \
	  $(MAKE) --silent --no-print-directory PYTHON=$$python VENV=$(VENV)-$$version test-unit; \
	done
	@for compiler in gcc clang; do \
	  program=$$($(BIN)/python tests/support/debian_packages.py tool $$compiler $$compiler) || \
	    { echo "no $$compiler here"; continue; }; \
	  echo "The library by $$($$program --version | head -n1)"; \
	  $(MAKE) --silent --no-print-directory -C lib PYTHON=$(BIN)/python CC=$$program BUILD=build-$$compiler library; \
	done

compile_commands.json: $(BASE) ## for clangd
	@$(MAKE) --no-print-directory --always-make --dry-run -C lib PYTHON=$(BIN)/python all | \
	  $(BIN)/python lib/compile_commands.py > $@

lint: $(STAMP) ## ruff, mypy, clang-format, and whether docs/ has the code's tables
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/python -m vgpurun.docs.tables --check $(GENERATED)
	@$(BIN)/clang-format --dry-run -Werror $(C_SOURCES)

format: $(STAMP) ## lay out the sources as lint wants them
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/clang-format -i $(C_SOURCES)

docs: $(STAMP) ## bring the tables in docs/ and the man page up to date
	@$(BIN)/python -m vgpurun.docs.tables $(GENERATED)

SITE ?= $(abspath dist/site)
site: $(STAMP) ## the documentation as a site with a search, in dist/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict --config-file docs/site.yml --site-dir $(SITE)

# An old release, so that the code that it generates needs no newer protobuf than pyproject.toml says.
proto: ## vgpurun/kubernetes/proto/*_pb2.py from the .proto files
	@$(PYTHON) -m venv $(VENV)/proto && $(VENV)/proto/bin/pip install -qq grpcio-tools==1.62.3 setuptools
	@$(VENV)/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. vgpurun/kubernetes/proto/*.proto

bench: $(STAMP) lib ## what the library costs and how exact it is, measured on this machine's GPU
	@$(BIN)/python tests/bench/costs.py
	@$(BIN)/python tests/bench/compute

# Each for glibc 2.17. The .deb needs dpkg-deb.
DIST ?= dist
dist: $(CROSS) ## wheels that carry the library, for x86-64 and arm64, and Debian packages of them, in dist/
	@rm -rf $(DIST)
	@for machine in x86_64 aarch64; do \
	  echo "Building for $$machine"; \
	  $(MAKE) --silent --no-print-directory --jobs=$(shell nproc) -C lib PYTHON=$(BIN)/python \
	    CC="$(BIN)/python -m ziglang cc -target $$machine-linux-gnu.2.17" BUILD=build-dist/$$machine LIBDL=-ldl all; \
	  VGPURUN_WHEEL_FOR=$$machine $(BIN)/pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir $(DIST) .; \
	done
	@if command -v dpkg-deb >/dev/null; then $(BIN)/python lib/packaging/deb.py $(DIST)/*.whl; \
	else echo "No dpkg-deb here: no .deb is made"; fi
	@ls -l $(DIST)

release: $(STAMP) ## `make dist` of a tagged version, with its checksums and notes
	@$(BIN)/python lib/packaging/release.py --check $(DIST)
	@$(MAKE) --no-print-directory dist
	@$(BIN)/python lib/packaging/release.py $(DIST)
	@cat $(DIST)/SHA256SUMS

clean: ## remove all that was built, the Python environment included
	rm -rf $(VENV) $(VENV)-* lib/build lib/build-* compile_commands.json dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
