# Everything a fresh machine needs comes from here: Python 3.11 or newer and a C++17 compiler, nothing else.
#   make demo    learn weights on generated patients, try them on others, write pages
#   make test    the fast tests
# Choose the interpreter with `make PYTHON=python3.12 …`; it is used once, to create .venv.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
JOBS ?= 2
# Warnings of the C++ compiler are errors with `make WERROR=ON …`.
WERROR ?= OFF
FUZZ_SECONDS ?= 120

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
DEMO_OUTPUT ?= demo-output

CORE := $(wildcard core/*.cpp core/*.hpp core/shared/*.hpp core/gpu/*.cpp core/gpu/*.hpp core/gpu/*.cu)
# A folder is newer than the stamp when a module was added: the editable install must be told of it.
FOLDERS := $(shell find src -type d -not -name __pycache__)
TEXT := $(wildcard *.md docs src tests core benchmark examples NOTICE CITATION.cff)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint format type docs gallery pictures bench golden sanitize sanitize-thread portable stub fuzz wheel wheel-test sdist all clean

help:
	@echo "targets: demo test test-all lint format type docs gallery pictures bench golden sanitize sanitize-thread portable stub fuzz wheel wheel-test sdist all setup clean"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	  f"regweave needs Python 3.11 or newer, found {v[0]}.{v[1]}; run make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

# pip reads dependency groups since 25.1.
$(VENV)/.pip: | $(BIN)/python
	$(PIP) install --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.package: pyproject.toml CMakeLists.txt $(CORE) $(FOLDERS) | $(VENV)/.pip
	$(PIP) install --quiet --group build
	$(call install,[train$(,)cluster],--quiet,WERROR=$(WERROR) TESTING=ON ONE_SET=OFF CUDA=AUTO)
	@touch $@

# Editable, with extras and options of pip. CMake keeps definitions between builds, so that both installs give all.
, := ,
install = PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation --editable ".$1" $2 \
  $(addprefix --config-settings=cmake.define.REGWEAVE_,$3)

# The package without what only developers need: one instruction set, no test module, no GPU. The libraries are
# installed while the compiler works. Where the whole package is installed, the demo uses that.
LISTED = $(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print(*$1, sep="\n")'
DEMO_INSTALL := $(if $(wildcard $(VENV)/.package),$(VENV)/.package,$(VENV)/.demo)
DEMO_LOG := $(VENV)/demo.log

$(VENV)/.demo: pyproject.toml CMakeLists.txt $(CORE) $(FOLDERS) | $(BIN)/python
	@echo "set-up 1/3: tools to build the kernels"
	@$(PIP) install --quiet -r <($(call LISTED,p["dependency-groups"]["build"]))
	@echo "set-up 2/3: kernels of this processor; libraries beside them"
	@$(PIP) install --quiet -r <($(call LISTED,p["project"]["dependencies"] + p["project"]["optional-dependencies"]["train"])) & \
	  libraries=$$!; \
	  $(call install,,--verbose --no-deps,WERROR=$(WERROR) TESTING=OFF ONE_SET=ON CUDA=OFF) 2>&1 | tee $(DEMO_LOG) | \
	  sed -un 's/^ *\(\[[0-9]*\/[0-9]*\] [A-Z]\).*\/\([^ /]*\)$$/  \1 \2/p' || { tail -n 40 $(DEMO_LOG); exit 1; }; \
	  echo "set-up 3/3: waiting for the libraries"; wait $$libraries
	@touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.wheel: $(VENV)/.%: pyproject.toml | $(VENV)/.pip
	$(PIP) install --quiet --group $*
	@touch $@

setup: $(VENV)/.package $(VENV)/.test $(VENV)/.lint

demo: $(DEMO_INSTALL)
	$(BIN)/regweave demo --output $(DEMO_OUTPUT) --overwrite

# Tests run side by side; a BLAS that takes all cores for each of them is several times slower, with the same bits.
ONE_BLAS := OPENBLAS_NUM_THREADS=1

test: $(VENV)/.package $(VENV)/.test
	$(ONE_BLAS) $(BIN)/python -m pytest -q -m "not slow" -n $(JOBS)

test-all: $(VENV)/.package $(VENV)/.test
	$(ONE_BLAS) $(BIN)/python -m pytest -q -n $(JOBS)

lint: $(VENV)/.lint
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	PYTHONPATH=src $(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/clang-format -n -Werror $(CORE)
	$(BIN)/codespell $(TEXT)

format: $(VENV)/.lint
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/clang-format -i $(CORE)

# The package is there so that mypy sees the types of its dependencies.
type: $(VENV)/.package $(VENV)/.lint
	$(BIN)/mypy

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the documentation is in site/index.html"

# Run the pages of the gallery again and write their notebooks.
gallery: $(VENV)/.package $(VENV)/.test $(VENV)/.docs
	$(ONE_BLAS) $(BIN)/python docs/_make_gallery.py

# The pictures of the documentation; that of the page needs Chromium.
pictures: $(VENV)/.package $(VENV)/.docs
	$(ONE_BLAS) $(BIN)/python docs/_make_pictures.py

bench: $(VENV)/.package $(VENV)/.test
	$(BIN)/python benchmark/peers.py --set phantom --pairs 1 --train-pairs 1 --peers= --output smoke-peers

# Write the frozen numbers, records and pages of tests/golden again and say what changed.
golden: $(VENV)/.package
	$(ONE_BLAS) $(BIN)/python tests/golden/make.py

# The kernels under the address and undefined-behaviour sanitizers, or under the thread sanitizer; needs GCC.
# SANITIZE_TESTS chooses some of the tests.
sanitize: $(VENV)/.package $(VENV)/.test
	$(ONE_BLAS) $(BIN)/python tests/sanitize/run.py address $(SANITIZE_TESTS)

sanitize-thread: $(VENV)/.package $(VENV)/.test
	$(BIN)/python tests/sanitize/run.py thread

# The kernels as compilers without vector types build them.
portable: $(VENV)/.package $(VENV)/.test
	$(BIN)/python tests/sanitize/run.py portable $(PORTABLE_TESTS)

# Write the types of the kernels again; a test compares them.
stub: $(VENV)/.package $(VENV)/.lint
	$(BIN)/python tests/make_stub.py
	$(BIN)/ruff format --quiet src/regweave/_core

# Damaged files through the commands that read them; FUZZ_SEED repeats a run.
fuzz: $(VENV)/.package $(VENV)/.test
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python tests/fuzz/run.py

# A wheel for this interpreter in dist/; on Linux with the tag of the oldest system that it runs on.
wheel: $(VENV)/.wheel
	rm -rf dist/raw && $(BIN)/python -m build --wheel --outdir dist/raw
	@if [ "$$(uname)" = Linux ]; then \
	  PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/raw/*.whl; \
	else cp dist/raw/*.whl dist/; fi
	rm -rf dist/raw && ls -l dist

sdist: $(VENV)/.wheel
	$(BIN)/python -m build --sdist --outdir dist

# The newest wheel in a bare environment outside of the checkout: without extras, then with learning and the whole demo.
wheel-test:
	bash tests/wheel/run.sh $(PYTHON) $(WHEEL)

all: lint type test

clean:
	rm -rf $(VENV) build dist site $(DEMO_OUTPUT) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmark examples -name __pycache__ -type d -prune -exec rm -rf {} +
