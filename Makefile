# make run [ARGS=--once]   install what is needed, start everything, answer a sample question, serve
# make demo                what can happen to an answer, beside its log
# make test                lint, types and every test
# make bench               what a hop, a stream and a feature cost

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
RUN_PINS := requirements/base.txt requirements/embedded.txt requirements/embedded-nodeps.txt requirements/governance.txt
TEST_PINS := requirements/vertex.txt requirements/plots.txt requirements/dev.txt

.PHONY: setup run demo test lint unit bench schemas pins clean
.DELETE_ON_ERROR:

setup: $(VENV)/.run

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.python $(RUN_PINS) pyproject.toml
	@echo "installing into $(VENV) (once)" >&2
	@$(PIP) install -r requirements/base.txt -r requirements/embedded.txt -r requirements/governance.txt
	@$(PIP) install --no-deps -r requirements/embedded-nodeps.txt
	@$(PIP) install --no-deps -e .
	@touch $@

$(VENV)/.test: $(VENV)/.run $(TEST_PINS)
	@$(PIP) install $(addprefix -r ,$(TEST_PINS))
	@touch $@

run: setup
	@exec $(BIN)/railbus up --ask $(ARGS)

demo: $(VENV)/.vertex
	@$(BIN)/railbus demo $(ARGS)

$(VENV)/.vertex: $(VENV)/.run requirements/vertex.txt
	@$(PIP) install -r requirements/vertex.txt
	@touch $@

test: lint unit

lint: $(VENV)/.test
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m schemas --check

unit: $(VENV)/.test
	$(BIN)/python -m pytest $(ARGS)

bench: $(VENV)/.test
	$(BIN)/python -m tests.bench $(ARGS)

schemas: setup
	$(BIN)/python -m schemas

pins: $(VENV)/.test
	$(BIN)/python infra/pin.py

clean:
	rm -rf $(VENV) .railbus build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
