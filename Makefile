# Every target works from a fresh clone: what it needs is put into .venv first, and stamps make the
# second call short. Needed on the system: g++ (12 or newer), python3 (3.10 or newer, with venv).

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
CUDA_TORCH ?= torch==2.14.1
CUDA_VENV ?= .venv-cuda
JOBS ?= $(shell nproc)
# Passed on: make test ARGS='-k windows', make bench ARGS='--ranks 2 --dtype bf16'.
ARGS ?=

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
CPP_FILES = $(shell find csrc tests/cpp tests/ptx bench -name '*.cpp' -o -name '*.h' -o -name '*.cu')
# But for HIP's own sources, which clang compiles for HIP (tests/test_hip.py).
TIDY_FILES = $(shell find csrc -name '*.cpp' ! -name 'hip_*')

.DEFAULT_GOAL := help
.PHONY: help demo test check check-house check-python check-cpp check-device check-cuda format bench gpu core clean
.PHONY: distclean
.SECONDARY:

help:
	@echo 'make demo    one MoE layer of a real model over 4 processes, then a benchmark plot'
	@echo 'make test    all tests: Python, several processes, C++ plain and under sanitizers'
	@echo 'make check   formatting, linters, types, house rules'
	@echo 'make check-cuda  what compilers see of GPU tensors: downloads torch with CUDA, 5 GB'
	@echo 'make bench   the full benchmark, beside oneCCL, Intel MPI and MPICH'
	@echo 'make gpu     on a machine with GPUs: builds, tests and times with what is installed there'
	@echo 'make core    compiles the core in place'
	@echo 'make format  formats Python and C++ in place'
	@echo 'make clean   removes what was built (distclean: the environment $(VENV) as well)'
	@echo "Settings: PYTHON=$(PYTHON) TORCH='$(TORCH)' VENV=$(VENV) JOBS=$(JOBS) ARGS='...' for the tool"

demo: core $(STAMPS)/extra-demo
	@echo '== one MoE layer of a real model, its experts over 4 processes'
	$(BIN)/python examples/qwen3_moe_layer.py
	@echo '== benchmark: build/demo.png'
	@mkdir -p build
	$(BIN)/symmoe bench --quick --plot build/demo.png

test: core $(STAMPS)/extra-test $(STAMPS)/extra-demo $(STAMPS)/cuda-toolchain $(STAMPS)/nccl
	@echo '== tests'
	$(BIN)/python -m pytest $(ARGS)

bench: core $(STAMPS)/extra-plot
	@echo '== peers to compare with'
	bash bench/install_peers.sh $(VENV)
	@echo '== benchmark'
	$(BIN)/symmoe bench $(ARGS)

# With the system's Python, torch, nvcc and NCCL: nothing is downloaded, no environment is made.
gpu:
	@$(PYTHON) tests/gpu/run.py $(ARGS)

check: check-house check-python check-cpp check-device

check-house: $(STAMPS)/venv
	@echo '== house rules'
	$(BIN)/python tools/check_house.py

check-python: core $(STAMPS)/extra-dev $(STAMPS)/extra-test
	@echo '== ruff, mypy'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-cpp: $(STAMPS)/extra-dev $(STAMPS)/cuda-toolchain
	@echo '== clang-format'
	@$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	@PATH="$(abspath $(BIN)):$$PATH" cmake --log-level=NOTICE -S . -B build/check -G Ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python
	@echo '== clang-tidy (about 10 minutes on 2 cores)'
	@printf '%s\n' $(TIDY_FILES) | xargs -P $(JOBS) -n 1 $(BIN)/clang-tidy --quiet -p build/check \
	  2>&1 | { grep -Ev '^[0-9]+ warnings? generated\.$$' || true; }

check-device: $(STAMPS)/cuda-toolchain
	@echo '== device kernels, compiled for every GPU (half a minute on 2 cores, once)'
	@$(BIN)/python tools/check_device.py --brief

# With torch's CUDA build, 5 GB in an environment of its own, but without a GPU.
check-cuda: core $(CUDA_VENV)/.torch
	@echo '== tensors on a GPU, where there is none (a minute on 2 cores)'
	@PYTHONPATH=python $(CUDA_VENV)/bin/python tests/cuda/check_fake_cuda.py

$(CUDA_VENV)/.torch: Makefile
	@echo '== $(CUDA_TORCH) with CUDA, in $(CUDA_VENV)'
	@$(PYTHON) -m venv $(CUDA_VENV)
	@$(CUDA_VENV)/bin/python -m pip --disable-pip-version-check -q install '$(CUDA_TORCH)' numpy
	@touch $@

format: $(STAMPS)/extra-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP_FILES)

# The compiled module, in place; a moment when nothing has changed.
core: $(STAMPS)/package
	@$(BIN)/python setup.py -q build_ext --inplace

$(STAMPS)/venv:
	@echo '== environment $(VENV)'
	@command -v g++ >/dev/null || { echo 'g++ is needed: apt-get install g++'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo 'venv is needed: apt-get install python3-venv'; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

# Installed here, so that the package is built without isolation, which would download them again.
$(STAMPS)/build-tools: $(STAMPS)/venv
	@echo '== build tools'
	@$(PIP) install 'setuptools>=77' 'pybind11>=2.13'
	@command -v ninja >/dev/null || $(PIP) install ninja
	@printf '3.25\n%s\n' "$$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')" \
	  | sort -V -C || $(PIP) install 'cmake>=3.25'
	@touch $@

# nvcc and its disassembler, where the machine has none; needs no GPU.
$(STAMPS)/cuda-toolchain: tools/cuda_toolchain.py $(STAMPS)/venv
	@echo '== CUDA tool chain'
	@$(BIN)/python tools/cuda_toolchain.py --install
	@touch $@

# The real NCCL, which loads without a GPU: for tests. Not beside one that torch has brought, whose
# files another package of NCCL would overwrite.
$(STAMPS)/nccl: $(STAMPS)/torch
	@ls -d $(VENV)/lib/python*/site-packages/nvidia/nccl >/dev/null 2>&1 || \
	  { echo '== NCCL (216 MB)' && $(PIP) install --no-deps nvidia-nccl-cu13==2.30.7; }
	@touch $@

# First and by itself: a plain `torch` would take a build with CUDA, several GB.
$(STAMPS)/torch: $(STAMPS)/venv
	@echo '== $(TORCH)'
	@$(PIP) install $(TORCH)
	@touch $@

$(STAMPS)/package: pyproject.toml setup.py $(STAMPS)/build-tools $(STAMPS)/torch
	@echo '== compiling the core (about 2 minutes on 2 cores, once)'
	@$(BIN)/python setup.py -q build_ext --inplace
	@echo '== symmoe, editable'
	@$(PIP) install --no-build-isolation -e .
	@touch $@

$(STAMPS)/extra-%: $(STAMPS)/package
	@echo '== requirements for: $*'
	@$(PIP) install --no-build-isolation -e '.[$*]'
	@touch $@

clean:
	rm -rf build dist python/*.egg-info python/symmoe/_core*.so python/symmoe/libsymmoe_*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -path ./$(CUDA_VENV) -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(CUDA_VENV)
