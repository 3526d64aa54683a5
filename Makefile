# `make` prints what it can do; every target sets up what it needs first.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
export VENV
unexport PYTHONDONTWRITEBYTECODE  # each process of each server would compile the whole package again

TEST_EXTRAS := dev,docs,server,compress,kafka,pydantic,redis,replication,spark
TEST_PACKAGES := redis-server chromium postgresql curl kcat default-jdk-headless
TEST_NPM := kafkajs@2.2.4 @platformatic/kafka@1.35.0 pyright@1.1.414
SOAK_NPM := azurite@3.37.0
BENCH_PACKAGES := redis-server mosquitto rabbitmq-server
IMAGE_PACKAGES := buildah mmdebstrap
WORKERS ?= 2
UNIT := tests/unit tests/property
CHECKS := check-types check-doc-types check-style check-layers check-generated check-planted

.DEFAULT_GOAL := help
.PHONY: help setup serve test retest test-pythons unit test-of check $(CHECKS) format bench bench-quick bench-guard compat demo soak fuzz simulate docs site site-serve image release upgrade clean

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.test ## install everything development needs

serve: $(VENV)/.serve ## run the server: TCP 7654, HTTP 8080, data in ./data
	@$(BIN)/nexo serve

test: $(VENV)/.test ## all checks and all tests
	@$(MAKE) --no-print-directory --jobs $(WORKERS) --output-sync $(VENV)/spark.jsa $(CHECKS)
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --durations 60

retest: $(VENV)/.test ## run again, one after the other, what failed in the last run
	$(BIN)/pytest --last-failed --last-failed-no-failures none --durations 0

test-pythons: $(VENV)/.test ## unit, contract and integration tests on every other Python that is found
	$(BIN)/python tools/pythons.py --extras $(TEST_EXTRAS) --workers $(WORKERS)

unit: $(VENV)/.test ## unit and property tests at a small budget, in a minute
	$(BIN)/pytest --numprocesses $(WORKERS) --quiet --hypothesis-profile quick $(UNIT)

test-of: $(VENV)/.test ## the tests that cover one file: F=src/nexo/storage/log.py
	$(BIN)/python tools/test_of.py $(F)

check: $(VENV)/.test ## format, lint, types, layers, generated files
	@$(MAKE) --no-print-directory --jobs $(WORKERS) --output-sync $(CHECKS)

check-types: | $(VENV)/.test
	$(BIN)/mypy src tests benchmarks compat examples tools

check-doc-types: | $(VENV)/.test
	$(BIN)/python tools/doc_types.py

check-style: | $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-layers: | $(VENV)/.test
	$(BIN)/lint-imports

check-generated: | $(VENV)/.test
	$(BIN)/python tools/unasync.py --check
	$(BIN)/python tools/docs.py --check

check-planted: | $(VENV)/.test
	$(BIN)/python -m tests.simulation.planted --check

format: $(VENV)/.test ## format, and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench ## speed side by side with the peers; `make docs` then shows it in the README
	$(BIN)/python -m benchmarks

bench-quick: $(VENV)/.bench ## a tenth of the work in two minutes, without Spark, curves and the slowest rows
	$(BIN)/python -m benchmarks --quick --only store,pubsub,queue,stream,service,guard

bench-guard: $(VENV)/.bench ## only the hot paths, against their baseline
	$(BIN)/python -m benchmarks --only guard

compat: $(VENV)/.test ## other projects' suites against our server, an hour or two; ONLY="kombu Celery", WRITE=1 keeps the results
	$(BIN)/python -m compat $(if $(WRITE),--write) $(ONLY)

demo: $(VENV)/.test ## a lakehouse in a minute: 1 M records through Spark into Iceberg, tables of your own, SQL
	$(BIN)/python examples/demo.py

soak: $(VENV)/.test ## faults, long crash tests and fuzzing for an hour; one table
	@tools/setup npm $(TEST_NPM) $(SOAK_NPM)
	$(BIN)/python tools/soak.py

fuzz: $(VENV)/.test ## ten minutes of fuzzing at every entrance, goes on where it was stopped
	$(BIN)/python tools/fuzz.py --minutes 10 --workers $(WORKERS)

simulate: $(VENV)/.test ## the whole system on virtual time with faults; SEEDS=, HOURS=, SCENARIO=, SEED=n replays and shrinks, PLANTED=all or rest
	$(BIN)/python -m $(if $(PLANTED),tests.simulation.planted $(PLANTED) --seeds $(or $(SEEDS),200),tests.simulation --scenario $(or $(SCENARIO),one) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),200) --hours $(or $(HOURS),0)))

docs: $(VENV)/.test ## write the generated files: reference pages, sync client, speed
	$(BIN)/python tools/unasync.py
	$(BIN)/python tools/docs.py

site: $(VENV)/.test ## build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

site-serve: $(VENV)/.test ## show the documentation on http://127.0.0.1:8000 while you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

image: $(VENV)/.test ## build the image without Docker, start it and check it; needs root
	@tools/setup debian $(IMAGE_PACKAGES)
	tools/image

release: $(VENV)/.test ## build both packages, check each extra on each Python, tag; ARGS=--check does not tag
	$(BIN)/python -m tools.release $(ARGS)

upgrade: ## move constraints.txt to the newest versions allowed
	tools/setup upgrade $(TEST_EXTRAS),bench

clean: ## remove what was generated here, but not data
	rm -rf $(VENV) .venv-3.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache bench-results build

$(VENV)/.serve: pyproject.toml constraints.txt
	@tools/setup python server,compress
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt tools/setup
	@tools/setup debian $(TEST_PACKAGES)
	@tools/setup npm $(TEST_NPM)
	@tools/setup python $(TEST_EXTRAS)
	@touch $@ $(VENV)/.serve

# What a JVM of Spark maps instead of loading its classes; without it the tests only take longer.
$(VENV)/spark.jsa: | $(VENV)/.test
	-@$(BIN)/python tools/spark_archive.py $@ >$(VENV)/spark.log 2>&1

$(VENV)/.bench: pyproject.toml constraints.txt tools/setup
	@tools/setup debian $(BENCH_PACKAGES)
	@tools/setup python $(TEST_EXTRAS),bench
	@touch $@ $(VENV)/.test $(VENV)/.serve
