# make demo     train a small GRPO learner with and without replay (some minutes; saves replay.png)
# make test     all tests, on the compiled path and on the plain one
# make bench    one table: compiled against plain against torchrl, results checked before they are timed
# make gpu-check  on a machine with a GPU, offline: build, tests, table (see .ci/gpu_check.py)
# make lint     formatting, ruff, mypy, the walls between rooms
# make build    the environment and the compiled kernels, nothing else
# make format   put code in shape
# make clean    remove what was built
#
# Each target sets up what it needs on a fresh machine: an environment in $(VENV), torch, this package in editable form
# with its native library compiled. What is already there is kept, so a second run starts at once.
#
#   VENV=/path/to/env     another place for the environment
#   PYTHON=python3.12     the interpreter it is made from (3.10 or newer)
#   TORCH='torch==2.13.0' another torch
#   PYTEST_ARGS='tests/spec -x'
#   WORKERS=1             processes that share the tests; as many as there are cores, if it is not said
#   DEMO_ARGS='--quick'   a demo of some seconds
#   BENCH_ARGS='--only w1/*'
#   WHEELS=folder, OUT=folder   of gpu-check: wheels for what is not installed, and where results go
#   CXX=..., TORCHRB_NATIVE=0|1, TORCHRB_CUDA=auto|0|1   what is compiled, see setup.py

VENV ?= .venv
PYTHON ?= python3
# A plain `torch` is a CUDA build of several GB from the index; this range takes a small CPU wheel where one is offered.
TORCH ?= torch>=2.11,<2.14
PYTEST_ARGS ?=
WORKERS ?= auto
DEMO_ARGS ?=
BENCH_ARGS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# A file's tests stay in one process: what a file compiles or trains is made once.
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadfile
SOURCES := setup.py pyproject.toml $(shell find csrc -type f 2>/dev/null)
CPP := $(shell find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)

# With a compiler at hand a library that does not build is an error; without one the package runs on the plain torch path.
GIVEN_CXX := $(if $(filter default undefined,$(origin CXX)),,$(CXX))
ifneq ($(GIVEN_CXX),)
export CXX := $(GIVEN_CXX)
endif
FIND_COMPILER := for cxx in $(or $(GIVEN_CXX),c++ g++ clang++); do \
	$$cxx -std=c++20 -x c++ -fsyntax-only /dev/null 2>/dev/null && $$cxx --version >/dev/null 2>&1 && echo 1 && break; done
COMPILER := $(shell $(FIND_COMPILER))
TORCHRB_NATIVE ?= $(if $(filter 1,$(COMPILER)),1,0)
export TORCHRB_NATIVE
OPTIONS := native=$(TORCHRB_NATIVE) cuda=$(TORCHRB_CUDA) torch=$(TORCH)

.PHONY: help build test demo bench gpu-check lint format clean FORCE
.DEFAULT_GOAL := help

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

build: $(VENV)/.with-build
	@TORCHRB_BACKEND=$$(ls torchrb/_native*.so >/dev/null 2>&1 && echo native || echo reference) \
		$(PY) -c 'import torchrb; print("torchrb on the CPU:", torchrb.backend_of("cpu"))'

# Tests of the build and of the kernels under sanitizers do not depend on the backend: the first pass runs them.
test: $(VENV)/.with-test
	@set -e; rest=; \
	if ls torchrb/_native*.so >/dev/null 2>&1; then \
		echo "=== tests with the native library ==="; \
		TORCHRB_BACKEND=native $(PYTEST) $(PYTEST_ARGS); \
		rest="--ignore=tests/packaging --ignore=tests/native --ignore=tests/simt --ignore=tests/gpu/test_ops.py"; \
		rest="$$rest --ignore=tests/test_gpu_check.py"; \
	else \
		echo "=== NOT RUN: tests with the native library, there is none (no C++20 compiler, or TORCHRB_NATIVE=0) ==="; \
	fi; \
	echo "=== tests on the plain torch path ==="; \
	TORCHRB_BACKEND=reference $(PYTEST) $$rest $(PYTEST_ARGS)

demo: $(VENV)/.with-demo
	$(PY) examples/grpo_replay.py $(DEMO_ARGS)

bench: $(VENV)/.with-bench
	$(PY) -m benchmarks --out out $(BENCH_ARGS)

# No environment of its own: $(PYTHON) has the torch that fits the GPU, and nothing is fetched.
gpu-check:
	$(PYTHON) .ci/gpu_check.py $(if $(WHEELS),--wheels $(WHEELS)) $(if $(OUT),--out $(OUT)) $(GPU_ARGS)

lint: $(VENV)/.with-lint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(if $(CPP),$(VENV)/bin/clang-format --dry-run -Werror $(CPP))
	$(PY) -m mypy
	TORCHRB_BACKEND=reference $(PY) -m pytest -q tests/test_architecture.py

format: $(VENV)/.with-lint
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(if $(CPP),$(VENV)/bin/clang-format -i $(CPP))

clean:
	rm -rf build dist *.egg-info torchrb/_native*.so $(VENV)/.with-*

# The environment: everything that building the package needs to find installed.
$(VENV)/.ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "torchrb needs Python 3.10 or newer, and $(PYTHON) is not: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q 'setuptools>=77' ninja '$(TORCH)'
	@touch $@

# Changes only when the options do, so that another choice of them builds again.
$(VENV)/.options: FORCE | $(VENV)/.ready
	@echo '$(OPTIONS)' | cmp -s - $@ || echo '$(OPTIONS)' > $@

# The package with one of its extras. Objects are kept in build/native, so only what changed is compiled again.
$(VENV)/.with-%: $(VENV)/.ready $(VENV)/.options $(SOURCES)
	$(if $(filter 0,$(TORCHRB_NATIVE)),@echo "=== torchrb: NO NATIVE LIBRARY is built (no C++20 compiler, or TORCHRB_NATIVE=0) ===")
	$(PIP) install -q --no-build-isolation $(if $(filter build,$*),-e .,-e '.[$*]')
	@touch $@
