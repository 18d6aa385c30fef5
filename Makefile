# Everything runs in a virtual environment of its own, made from requirements.txt with CPython 3.11.

VENV ?= .venv
# The part of the tests that `make test-long` runs.
SHARD ?= 1/1
# An interpreter to use instead of the first CPython 3.11 on PATH.
PYTHON ?=
UV_VERSION := 0.13.8

SHELL := /bin/bash
BIN := $(VENV)/bin
STAMP := $(VENV)/requirements.installed
GPU_STAMP := $(VENV)/requirements-gpu.installed
TRACKING_STAMP := $(VENV)/requirements-tracking.installed
PEERS := fedjax pfl flower
PEER_VENVS := .venv-peers
PEER_STAMPS := $(PEERS:%=$(PEER_VENVS)/%/requirements.installed)
LOCK := .lock
RUN := $(BIN)/python reproduce.py --paper=adafedadam --item=table5 --setup=synthetic --rows=fedavg,fedadam
# Wheels only, so that nothing is compiled; jax 0.4.13 and promise, which are pure Python, have none.
FORMATS := --only-binary :all: --no-binary jax --no-binary promise
# Tests start hundreds of processes, each of which would compile the suite for itself.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
INSTALL := -m pip install --quiet --disable-pip-version-check --no-input --no-deps --require-hashes $(FORMATS)

# The check runs the interpreter: a name on PATH may be a shim with no interpreter behind it.
define FIND_PYTHON
for python in $(or $(PYTHON),python3.11 python3 python); do \
  "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1 </dev/null \
    && { command -v "$$python"; break; }; \
done
endef
define NO_PYTHON
no CPython 3.11 with its venv module found (tried: $(or $(PYTHON),python3.11 python3 python)). \
Get it with "apt install python3.11 python3.11-venv" (Debian 12; on Ubuntu from the deadsnakes archive), \
"pyenv install 3.11" or "uv python install 3.11", then name it: make venv PYTHON=/path/to/python3.11
endef
# make's own error is the one way to end a recipe with a single line.
FOUND_PYTHON = $(or $(shell $(FIND_PYTHON)),$(error $(strip $(NO_PYTHON))))
INSTALLED = $(shell cmp -s requirements.txt $(STAMP) && echo yes)

.DEFAULT_GOAL := help
.PHONY: help venv venv-gpu venv-tracking venv-peers run run-full test test-long reliability lint lock site clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

venv: $(STAMP)  ## set up .venv (PYTHON=... names the CPython 3.11 to use)

venv-gpu: $(GPU_STAMP)  ## set up .venv with the CUDA 11.8 libraries as well

venv-tracking: $(TRACKING_STAMP)  ## set up .venv with Weights & Biases and MLflow as well

venv-peers: $(PEER_STAMPS)  ## set up the speed benchmark's peers, each in .venv-peers/NAME (PEERS=fedjax: only it)

run: venv  ## train FedAvg and FedAdam on synthetic data for 3 minutes beside the paper's numbers
	$(RUN) --budget=minutes=3

run-full: venv  ## the same for all of its rounds
	$(RUN)

test: venv  ## run the quick tests
	$(PYTEST) -n 2 --dist=loadgroup --no-loadscope-reorder -m "not long" tests

test-long: venv  ## run every test that has not passed at this commit (SHARD=2/8: the second of eight parts)
	$(PYTEST) -n 2 --dist worksteal -p tests.shards --shard=$(SHARD) tests

reliability: venv  ## bring docs/reliability.md up to date with what make test-long found
	$(BIN)/python -m tests.reliability.report

lint: venv  ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The stamp is a copy of the list that was installed, written last: an interrupted installation starts over, and a
# checkout that changes only the list's time does not.
$(STAMP): requirements.txt
	@if [ -n '$(INSTALLED)' ]; then touch $@; else \
	  set -e; \
	  python='$(if $(INSTALLED),,$(FOUND_PYTHON))'; \
	  echo "Installing $$(grep -c == requirements.txt) packages into $(VENV); this takes some minutes." >&2; \
	  "$$python" -m venv --clear $(VENV); \
	  $(BIN)/python $(INSTALL) -r requirements.txt; \
	  cp requirements.txt $@.part; \
	  mv $@.part $@; \
	fi

$(GPU_STAMP): requirements-gpu.txt $(STAMP)
	$(BIN)/python $(INSTALL) -r requirements-gpu.txt
	@cp requirements-gpu.txt $@.part && mv $@.part $@

$(TRACKING_STAMP): requirements-tracking.txt $(STAMP)
	$(BIN)/python $(INSTALL) -r requirements-tracking.txt
	@cp requirements-tracking.txt $@.part && mv $@.part $@

$(PEER_STAMPS): $(PEER_VENVS)/%/requirements.installed: benchmarks/peers/requirements-%.txt
	@if cmp -s $< $@; then touch $@; else \
	  set -e; \
	  python='$(if $(shell cmp -s $< $@ && echo yes),,$(FOUND_PYTHON))'; \
	  echo "Installing $$(grep -c == $<) packages into $(@D); this takes some minutes." >&2; \
	  "$$python" -m venv --clear $(@D); \
	  $(@D)/bin/python $(INSTALL) -r $<; \
	  cp $< $@.part; \
	  mv $@.part $@; \
	fi

# TFF's only wheel asks for glibc 2.31 by name, so the platform has to be named too.
COMPILE = $(LOCK)/bin/uv pip compile --quiet --python $(LOCK)/bin/python --python-version 3.11 \
	--python-platform x86_64-manylinux_2_31 $(FORMATS) --generate-hashes \
	--custom-compile-command "make lock" $(LOCK_FLAGS)

lock:  ## resolve requirements*.in again, keeping pins that still fit (LOCK_FLAGS=--upgrade: newest)
	rm -rf $(LOCK)
	'$(FOUND_PYTHON)' -m venv $(LOCK)
	$(LOCK)/bin/python -m pip install --quiet --disable-pip-version-check --no-input uv==$(UV_VERSION)
	sed -n 's/^#override //p' requirements.in > $(LOCK)/overrides.txt
	$(COMPILE) --override $(LOCK)/overrides.txt -o requirements.txt requirements.in
	$(COMPILE) --no-deps -o requirements-gpu.txt requirements-gpu.in
	$(COMPILE) --constraint requirements.txt -o requirements-tracking.txt requirements-tracking.in
	for peer in $(PEERS); do \
	  $(COMPILE) -o benchmarks/peers/requirements-$$peer.txt benchmarks/peers/requirements-$$peer.in || exit; \
	done
	rm -rf $(LOCK)

site: venv  ## build the documentation's pages into site/
	$(BIN)/mkdocs build --strict
	@echo "To read them, search included: $(BIN)/python -m http.server --directory site"

clean:  ## remove the virtual environments and caches; results stay
	rm -rf $(VENV) $(PEER_VENVS) $(LOCK) .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
