# Two commands for a fresh machine: `make compare` and `make test`. Everything lives in .venv; nothing is installed elsewhere.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEVELOP := $(VENV)/.develop

.PHONY: compare gpu-check notebook test lint typecheck pytest clean

compare: $(INSTALLED)
	$(BIN)/llmbench compare --model smollm2-135m --max-new-tokens 200 --engines eager,torch-compile --time-budget 4m

# On a GPU machine, which may have no network: runs under the environment here, else under the machine's own python3, and installs nothing.
# `make gpu-check ARGS='--minutes 8'`; ARGS=--tiny tests the script itself on a CPU.
gpu-check:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/gpu_check.py $(ARGS)

# Runs notebooks/compare.ipynb on the runs stored beside it and keeps the charts in it.
notebook: $(DEVELOP)
	$(BIN)/python notebooks/run.py

test: lint typecheck pytest

lint: $(DEVELOP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(DEVELOP)
	$(BIN)/mypy

# The tests of `llmbench dashboard` drive Debian's chromium: without it they are skipped, and with CI set they fail (.ci/run installs it).
# Files, not single tests, are shared between two processes; torch's tests stay in one, so that they don't fight over the cores.
pytest: $(DEVELOP)
	$(BIN)/pytest -n 2 --dist loadgroup

# torch first and by the constraints: a dependency would otherwise bring whatever release and build is newest.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(DEVELOP): $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
