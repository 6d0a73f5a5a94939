# Every target sets up what it needs in .venv, so a fresh checkout needs only Python 3.11, pip and make.
#
#   make demo           the Burgers adjoint under a memory budget
#   make test           the tests, of the longest a fixed sample
#   make check          lint, types and architecture
#   make bench          the measured claims, beside their peers (a large download)
#   make campaign       all of the long and the randomized tests
#   make clean          remove .venv and everything that was built
#
# Another interpreter: make PYTHON=/path/to/python3.12 test

VENV := .venv
BIN := $(VENV)/bin
# The first candidate that runs and is new enough: a name on the PATH may be a shim with nothing behind it.
PYTHON ?= $(shell for candidate in python3.11 python3 python; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$candidate"; break; }; done)
# Files that live for milliseconds: a disk takes longer to forget them than the tests to make them.
MEMORY := $(firstword $(wildcard /dev/shm) $(TMPDIR) /tmp)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
READY := $(VENV)/.stamp
COMPILED := $(wildcard src/ebbtide/*/*.pyx src/ebbtide/*/*.pxd src/ebbtide/*/*.h)

.DEFAULT_GOAL := help
# Targets share one environment, and two installations at a time would break it.
.NOTPARALLEL:
.DELETE_ON_ERROR:
# Tests start processes that import the library again: from bytecode, which takes half a second less.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo test lint types architecture check bench campaign clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(READY)-plot
	@$(BIN)/ebbtide demo burgers

# Not `--dist=worksteal`: whoever gives tests away makes sets of them in another thread, a megabyte in the midst of a
# test that counts bytes.
test: $(READY)-test
	@EBBTIDE_SAMPLE=1 $(BIN)/python -m pytest --numprocesses=auto

lint: $(READY)-dev
	@$(BIN)/ruff check .

types: $(READY)-dev
	@$(BIN)/basedpyright

architecture: $(READY)-test
	@$(BIN)/python -m pytest --quiet tests/test_architecture.py tests/test_public.py

check: lint types architecture

bench: $(READY)-bench
	@$(BIN)/python -m bench

campaign: $(READY)-test
	@TMPDIR=$(MEMORY) EBBTIDE_CAMPAIGN=1 $(BIN)/python -m pytest --capture=no --override-ini=tmp_path_retention_policy=none \
		tests/campaign tests/loop tests/memory tests/mpi tests/profiling tests/program tests/rules tests/schedules \
		tests/scipy tests/storage tests/tape tests/transforms tests/test_budget.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f src/ebbtide/machine/*.so src/ebbtide/storage/*.so

# One stamp per extra. The library itself is built once for all of them, which takes a minute, and again after a change of
# pyproject.toml or of the compiled parts.
$(READY)-%: $(READY)-built
	@echo "Installing what ebbtide[$*] needs into $(VENV)"
	@$(PIP) install 'ebbtide[$*]'
	@touch $@

$(READY)-built: $(READY) pyproject.toml setup.py $(COMPILED)
	@echo "Building ebbtide"
	@$(PIP) install --editable .
	@touch $@

# An environment that works is kept. Some systems ship `venv` without `ensurepip`: there the system's pip installs pip.
$(READY):
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Ebbtide needs Python 3.11 or newer, and $(or $(PYTHON),no python on the PATH) is none." \
			"Install it, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || { \
		echo "Creating $(VENV) with $(PYTHON)"; \
		"$(PYTHON)" -m venv --clear $(VENV) >/dev/null 2>&1 || { \
			"$(PYTHON)" -m venv --clear --without-pip $(VENV) && \
			"$(PYTHON)" -m pip --disable-pip-version-check --quiet --python $(BIN)/python install pip; }; }
	@touch $@
