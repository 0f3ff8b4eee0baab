# Each command is enough by itself on a fresh clone: it makes .venv, installs what constraints.txt pins, and
# runs. What is installed already is not looked at again until pyproject.toml or constraints.txt change.

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-rest test-all test-newest check format bench docs pictures clean

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO_READY := .venv/.demo
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

setup: $(READY)  ## Make the environment in .venv

$(DEMO_READY): pyproject.toml constraints.txt .ci/mend_torchvision.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "trainkit needs Python 3.11 or later, but '$(PYTHON)' is" \
		"$$($(PYTHON) --version 2>&1); name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "making .venv (once; a minute or two)"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) hatchling editables
	@$(INSTALL) --no-build-isolation --editable '.[demo]'
	@$(BIN)/python .ci/mend_torchvision.py
	@touch $@

$(READY): $(DEMO_READY)
	@echo "installing what tests and checks need (once)"
	@$(INSTALL) --no-build-isolation --editable '.[dev]'
	@git config core.hooksPath .githooks || true  # a package of sources is no repository
	@touch $@

demo: $(DEMO_READY)  ## Tune and train a network on handwritten digits
	$(BIN)/python -m recipes.mnist $(ARGS)

# Compiled files of tests are what makes a second run quick.
unexport PYTHONDONTWRITEBYTECODE

PYTEST = $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --hypothesis-profile=$(EXAMPLES)

test: EXAMPLES ?= quick
test: $(READY)  ## Run the unit tests, and about a hundred tests of what users do
	$(PYTEST) --tier unit,front $(ARGS)

test-rest: EXAMPLES ?= steady
test-rest: $(READY)  ## Run the tests that `make test` leaves out: the engine, trainers, Ray, docs, recipes, benchmarks
	$(PYTEST) --tier model,process,gang,external,slow $(ARGS)

test-all: EXAMPLES ?= steady
test-all: $(READY)  ## Run all tests, with all their examples; without ARGS, those with the newest versions too
	$(PYTEST) $(ARGS)
	$(if $(ARGS),,$(MAKE) test-newest)

test-newest: $(READY)  ## Run the unit tests and the README with the newest versions of all packages
	$(BIN)/python .ci/matrix.py --newest $(ARGS)

check: $(READY)  ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## Rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## Run all benchmarks, within half an hour, into one record in results/
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(READY)  ## Build the documentation as a site in results/docs, to be read from the disk
	$(BIN)/mkdocs build --strict --quiet

pictures: $(READY)  ## Draw the pictures of the documentation again
	$(BIN)/python -m benchmarks.search --plots docs/images
	$(BIN)/python -m benchmarks.league --page docs/tuning/league.md
	$(BIN)/python -m recipes.mnist --output results/pictures
	cp results/pictures/curves.png docs/images/mnist.png
	$(BIN)/python -m tests.plugins.dashboard.pictures docs/images

clean:  ## Remove the environment and all caches
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
