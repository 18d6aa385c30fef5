# Everything runs in a virtual environment of its own, made from requirements.txt.

# Which packages: current (TensorFlow 2.21) or published (TensorFlow 2.14, with which the results in papers/ were recorded).
STACK ?= current
ifeq ($(STACK),current)
VENV ?= .venv
LOCKED :=
PYTHONS := 3.11 3.12 3.13
else ifeq ($(STACK),published)
VENV ?= .venv-published
LOCKED := stacks/published/
PYTHONS := 3.11
else
$(error STACK=$(STACK) must be current or published)
endif
# The part of the tests that `make test-long` runs.
SHARD ?= 1/1
# An interpreter to use instead of the first CPython that fits.
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
# Where a process crashes, pytest-xdist may wait forever for the one that replaces it.
PARALLEL := -n 2 --dist=loadgroup --no-loadscope-reorder --max-worker-restart=0
# A test that waits in C never gets the signal of its own timeout, of 600 seconds at most.
IN_CI := $(PARALLEL) -m "not long" -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
# What TensorFlow's version can change: methods, runtimes, records and every task.
TOUCHING_TENSORFLOW := tests/tff_algos tests/simulation/engine tests/simulation/tff tests/simulation/device tests/simulation/records tests/tff_suite/test_compat.py \
	tests/test_every_task.py
# Tests start hundreds of processes, each of which would compile the suite for itself.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# TFF and TensorFlow Privacy name no CPython after 3.11, but are pure Python and run there.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-input --no-deps --require-hashes \
	--ignore-requires-python $(FORMATS)

# pyenv and uv keep interpreters in folders that are not on PATH.
PYENV_ROOT ?= $(HOME)/.pyenv
INSTALLED_PYTHONS = $(foreach version,$(1),$(wildcard $(PYENV_ROOT)/versions/$(version).*/bin/python \
	$(HOME)/.local/share/uv/python/cpython-$(version).*/bin/python))
# These are called with the versions that fit, such as "3.11 3.12".
NAMES = $(or $(PYTHON),$(1:%=python%) python3 python $(INSTALLED_PYTHONS))
# The check runs the interpreter: a name on PATH may be a shim with no interpreter behind it.
define FIND_PYTHON
for python in $(NAMES); do \
  "$$python" -c 'import ensurepip, sys, venv; sys.exit("%d.%d" % sys.version_info[:2] not in "$(1)".split())' \
    >/dev/null 2>&1 </dev/null && { command -v "$$python"; break; }; \
done
endef
define NO_PYTHON
no CPython $(subst $() , or ,$(1)) with its venv module found (tried: $(NAMES)). \
Get it with "apt install python3.11 python3.11-venv" (Debian 12; on Ubuntu from the deadsnakes archive), \
"pyenv install $(lastword $(1))" or "uv python install $(lastword $(1))", \
then name it: make venv PYTHON=/path/to/python$(lastword $(1))
endef
# make's own error is the one way to end a recipe with a single line.
FOUND_PYTHON = $(or $(shell $(FIND_PYTHON)),$(error $(strip $(NO_PYTHON))))
INSTALLED = $(shell cmp -s $(LOCKED)requirements.txt $(STAMP) && echo yes)

.DEFAULT_GOAL := help
.PHONY: help venv venv-gpu venv-tracking venv-peers run run-full test test-ci test-stacks test-long reliability lint lock site release clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

venv: $(STAMP)  ## set up .venv (STACK=published: .venv-published; PYTHON=... names the CPython to use)

venv-gpu: $(GPU_STAMP)  ## set up the same with the CUDA libraries as well

venv-tracking: $(TRACKING_STAMP)  ## set up the same with Weights & Biases and MLflow as well

venv-peers: $(PEER_STAMPS)  ## set up the speed benchmark's peers, each in .venv-peers/NAME (PEERS=fedjax: only it)

run: venv  ## train FedAvg and FedAdam on synthetic data for 3 minutes beside the paper's numbers
	$(RUN) --budget=minutes=3

run-full: venv  ## the same for all of its rounds
	$(RUN)

test: venv  ## run the quick tests
	$(PYTEST) $(PARALLEL) -m "not long and not slow" --ignore=tests/test_both_stacks.py tests

test-ci: venv  ## run the quick tests and the slow ones
	$(PYTEST) $(IN_CI) --ignore=tests/test_both_stacks.py tests

test-stacks: venv  ## run the tests that touch TensorFlow on the published stack, compare both, try CPython 3.13
	$(MAKE) venv STACK=published VENV=.venv-published PYTHON=
	PYTHONDONTWRITEBYTECODE= .venv-published/bin/python -m pytest $(IN_CI) $(TOUCHING_TENSORFLOW)
	$(PYTEST) tests/test_both_stacks.py
	@python="$$($(call FIND_PYTHON,3.13))"; if [ -z "$$python" ]; then \
	  echo "No CPython 3.13 found; its tests are left out." >&2; \
	else \
	  $(MAKE) venv VENV=.venv-313 PYTHON="$$python" \
	    && PYTHONDONTWRITEBYTECODE= .venv-313/bin/python -m pytest tests/test_install.py tests/test_both_stacks.py; \
	fi

test-long: venv  ## run every test that has not passed at this commit (SHARD=2/8: the second of eight parts)
	$(PYTEST) -n 2 --dist worksteal -p tests.shards --shard=$(SHARD) tests

reliability: venv  ## bring docs/reliability.md up to date with what make test-long found
	$(BIN)/python -m tests.reliability.report

lint: venv  ## check style, format, types and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/prose.py

# The stamp is a copy of the list that was installed, written last: an interrupted installation starts over, and a
# checkout that changes only the list's time does not.
$(STAMP): $(LOCKED)requirements.txt
	@if [ -n '$(INSTALLED)' ]; then touch $@; else \
	  set -e; \
	  python='$(if $(INSTALLED),,$(call FOUND_PYTHON,$(PYTHONS)))'; \
	  echo "Installing $$(grep -c == $(LOCKED)requirements.txt) packages into $(VENV); this takes some minutes." >&2; \
	  "$$python" -m venv --clear $(VENV); \
	  $(BIN)/python $(INSTALL) -r $(LOCKED)requirements.txt; \
	  $(if $(filter current,$(STACK)),$(BIN)/python tools/bare_import.py;) \
	  cp $(LOCKED)requirements.txt $@.part; \
	  mv $@.part $@; \
	fi

$(GPU_STAMP): $(LOCKED)requirements-gpu.txt $(STAMP)
	$(BIN)/python $(INSTALL) -r $<
	@cp $< $@.part && mv $@.part $@

$(TRACKING_STAMP): $(LOCKED)requirements-tracking.txt $(STAMP)
	$(BIN)/python $(INSTALL) -r $<
	@cp $< $@.part && mv $@.part $@

$(PEER_STAMPS): $(PEER_VENVS)/%/requirements.installed: benchmarks/peers/requirements-%.txt
	@if cmp -s $< $@; then touch $@; else \
	  set -e; \
	  python='$(if $(shell cmp -s $< $@ && echo yes),,$(call FOUND_PYTHON,3.11))'; \
	  echo "Installing $$(grep -c == $<) packages into $(@D); this takes some minutes." >&2; \
	  "$$python" -m venv --clear $(@D); \
	  $(@D)/bin/python $(INSTALL) -r $<; \
	  cp $< $@.part; \
	  mv $@.part $@; \
	fi

# TFF's only wheel asks for glibc 2.31 by name, so the platform has to be named too.
COMPILE = $(LOCK)/bin/uv pip compile --quiet --python $(LOCK)/bin/python \
	--python-platform x86_64-manylinux_2_31 $(FORMATS) --generate-hashes --custom-compile-command "make lock"

# Resolved for CPython 3.11. Each list of the current stack must be what 3.12 and 3.13 resolve to as well.
lock:  ## resolve requirements*.in of both stacks again, keeping pins that fit (LOCK_FLAGS=--upgrade: newest)
	rm -rf $(LOCK)
	'$(call FOUND_PYTHON,3.11 3.12 3.13)' -m venv $(LOCK)
	$(LOCK)/bin/python -m pip install --quiet --disable-pip-version-check --no-input uv==$(UV_VERSION)
	set -e; for folder in "" stacks/published/; do \
	  sed -n 's/^#override //p' $${folder}requirements.in > $(LOCK)/overrides.txt; \
	  for list in "requirements --override $(LOCK)/overrides.txt" "requirements-gpu --no-deps" \
	      "requirements-tracking --constraint $${folder}requirements.txt"; do \
	    path=$$folder$${list%% *}; \
	    $(COMPILE) --python-version 3.11 $(LOCK_FLAGS) $${list#* } -o $$path.txt $$path.in; \
	    for version in $$([ "$$folder" ] || echo 3.12 3.13); do \
	      cp $$path.txt $(LOCK)/$$version.txt; \
	      $(COMPILE) --python-version $$version $${list#* } -o $(LOCK)/$$version.txt $$path.in; \
	      diff $$path.txt $(LOCK)/$$version.txt; \
	    done; \
	  done; \
	done
	for peer in $(PEERS); do \
	  $(COMPILE) --python-version 3.11 $(LOCK_FLAGS) \
	    -o benchmarks/peers/requirements-$$peer.txt benchmarks/peers/requirements-$$peer.in || exit; \
	done
	rm -rf $(LOCK)

site: venv  ## build the documentation's pages into site/
	$(BIN)/mkdocs build --strict
	@echo "To read them, search included: $(BIN)/python -m http.server --directory site"

# Checked before anything is installed: $(error) is one line and exit code 2.
QUOTED_VERSION = '$(subst ','\'',$(VERSION))'
IS_VERSION = $(shell printf %s $(QUOTED_VERSION) | grep -qxE '(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}' && echo yes)
define NO_VERSION
VERSION=$(VERSION) is not a version; write one like make release VERSION=0.2.0
endef
release: $(if $(filter release,$(MAKECMDGOALS)),$(if $(IS_VERSION),,$(error $(NO_VERSION)))) venv  ## check, tag and build a release (VERSION=0.2.0)
	$(BIN)/python tools/release.py $(QUOTED_VERSION)

clean:  ## remove the virtual environments and caches; results stay
	rm -rf $(VENV) .venv .venv-published .venv-313 $(PEER_VENVS) $(LOCK) .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
