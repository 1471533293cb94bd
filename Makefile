# Every target installs what it needs into .venv by itself, once.
.DEFAULT_GOAL := help
.PHONY: help run demo demo-security check test compile-tests conformance sim chaos chaos-local faults power-loss up down lint fmt type proto verify-proto sync verify-sync bench bench-store bench-raft bench-broker bench-calls bench-rocketmq bench-client bench-backlog bench-spark bench-executors bench-peers clean

PYTHON ?= $(shell command -v python3.11 || echo python3)
BIN := .venv/bin
DATA ?= data
CONSOLE_PORT ?= 8080

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

# pip is the last that an environment gets: one that was left half-made is begun again.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mq needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Install one, and name it if it is not found: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

# One stamp a set of packages: a stranger who only runs the broker does not wait for the linters.
.venv/.run: pyproject.toml | $(BIN)/pip
	@echo "installing mq into .venv, once"
	@$(BIN)/pip install --quiet --editable '.[server,console]'
	@touch $@

# Most modules of these packages are never imported: those that are get compiled then.
.venv/.dev: pyproject.toml | $(BIN)/pip
	@echo "installing mq and its development tools into .venv"
	@$(BIN)/pip install --quiet --no-compile --editable '.[dev,spark]'
	@touch .venv/.run $@

run: .venv/.run ## start a node on ./data, with the web console on port 8080 (DATA=dir, CONSOLE_PORT=port)
	$(BIN)/mq server --data $(DATA) --console-port $(CONSOLE_PORT)

demo: .venv/.run ## a broker of its own: send, consume, filter, measure, stop
	@$(BIN)/python -m mq.cli.demo

demo-security: .venv/.run ## docs/SECURITY.md's quick start, as it stands there
	@$(BIN)/python tools/run_page.py docs/SECURITY.md "Quick start"

check: .venv/.dev ## before a commit: lint, types, unit tests with fewer random examples; under two minutes
	@$(MAKE) --no-print-directory --jobs 2 type lint
	$(BIN)/python -m pytest -q tests/unit --hypothesis-profile quick --numprocesses auto --dist worksteal

# A browser for tests/browser, where this machine can have one: once, quietly, and never a reason to
# fail. Without one these tests are skipped, and say so.
.venv/.browser: .venv/.dev
	@command -v chromium >/dev/null || command -v apt-get >/dev/null && test "$$(id -u)" = 0 && \
	  { command -v chromium || timeout 600 sh -c 'apt-get update && apt-get install --yes --no-install-recommends chromium'; } \
	  >/dev/null 2>&1 </dev/null || true
	@touch $@

# promtool alone, out of Debian's package of Prometheus, for the tests of the alert rules.
.venv/.promtool: .venv/.dev
	@command -v promtool >/dev/null || command -v apt-get >/dev/null && \
	  { command -v promtool || timeout 300 sh -c 'cd .venv && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } && \
	    dpkg --extract prometheus_*.deb prometheus && mv prometheus/usr/bin/promtool bin/; rm -rf prometheus prometheus_*.deb'; } \
	  >/dev/null 2>&1 </dev/null || true
	@touch $@

# What makes a Java of Spark start in half of the time; never a reason to fail either.
.venv/.spark-classes: .venv/.dev
	@timeout 300 $(BIN)/python -m tests.spark.shared_classes >/dev/null 2>&1 </dev/null || true
	@touch $@

test: .venv/.dev .venv/.browser .venv/.xfs .venv/.promtool ## lint, types, generated code, all tests
	@$(MAKE) --no-print-directory --jobs 2 type .venv/.spark-classes compile-tests lint verify-proto verify-sync
	$(BIN)/python -m pytest --ignore tests/chaos --numprocesses 4 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest tests/chaos

# In a fresh clone pytest rewrites the assertions of all tests: one process does it, while types are
# checked, instead of each that runs tests. What is wrong with a test, the run says.
compile-tests: .venv/.dev
	@$(BIN)/python -m pytest --collect-only --quiet --ignore tests/chaos > /dev/null || true

conformance: .venv/.dev ## tests/conformance and tests/rocketmq, all with every client, also Java and Node.js
	$(BIN)/python -m pytest tests/conformance tests/rocketmq --every-client --numprocesses 3 --dist loadfile --no-loadscope-reorder

SEEDS ?= 2000
sim: .venv/.dev ## many seeds of the simulations (SEEDS=20000 for a long run)
	$(BIN)/python -m tests.sim --seeds $(SEEDS)
	$(BIN)/python -m tests.sim.flows --seeds $$(( $(SEEDS) / 10 ))

MINUTES ?= 5
CHAOS = $(if $(SECURE),--secure) $(if $(ROCKETMQ),--rocketmq)
chaos: .venv/.dev ## the compose cluster under load, a fault every few seconds; ends with a line of JSON (MINUTES=5, SECURE=1: TLS and keys, ROCKETMQ=1: its client, too)
	@$(BIN)/python -m tests.chaos --engine docker --minutes $(MINUTES) $(CHAOS)

chaos-local: .venv/.dev ## the same against plain processes, without Docker
	@$(BIN)/python -m tests.chaos --engine local --minutes $(MINUTES) $(CHAOS)

# FUSE's library for slow disks, as chromium above: without one these faults are left out.
.venv/.fuse: .venv/.dev
	@ldconfig -p | grep -q libfuse3 || command -v apt-get >/dev/null && test "$$(id -u)" = 0 && \
	  { ldconfig -p | grep -q libfuse3 || timeout 600 sh -c 'apt-get update && apt-get install --yes --no-install-recommends libfuse3-3'; } \
	  >/dev/null 2>&1 </dev/null || true
	@touch $@

SECONDS ?= 8
faults: .venv/.fuse ## slow disks and networks, one-way partitions, shortages: latencies and pauses of producers; root (ONLY=deaf)
	@$(BIN)/python -m tests.faults --seconds $(SECONDS) $(if $(ONLY),--only $(ONLY))

# As chromium above: XFS is below the disks of tests/power_loss, which is skipped without it.
.venv/.xfs: .venv/.dev
	@command -v mkfs.xfs >/dev/null || command -v apt-get >/dev/null && test "$$(id -u)" = 0 && \
	  { command -v mkfs.xfs || timeout 600 sh -c 'apt-get update && apt-get install --yes --no-install-recommends xfsprogs'; } \
	  >/dev/null 2>&1 </dev/null || true
	@touch $@

power-loss: .venv/.dev .venv/.xfs ## brokers under load whose disks lose power every few seconds; needs root; ends with a line of JSON (MINUTES=5)
	@$(BIN)/python -m tests.power_loss --minutes $(MINUTES)

COMPOSE := docker compose --file deploy/docker-compose.yml $(if $(SECURE),--file deploy/docker-compose.secure.yml)
up: .venv/.run ## build and start the cluster of deploy/docker-compose.yml: two sets of three brokers (SECURE=1: TLS, keys)
	$(COMPOSE) build --quiet a1
	$(if $(SECURE),$(COMPOSE) up --quiet-pull --no-log-prefix secrets)
	$(COMPOSE) up --detach --wait --quiet-pull $(if $(SECURE),a1 a2 a3 b1 b2 b3 console)
	@$(if $(SECURE),deploy/fetch-secrets $(COMPOSE))
	@SECURE=$(SECURE) deploy/usage

down: ## stop it; its data stays (VOLUMES=1: goes too)
	$(COMPOSE) --profile monitoring down $(if $(VOLUMES),--volumes)

lint: .venv/.dev ## ruff and the dependency rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

fmt: .venv/.dev ## format and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: .venv/.dev ## mypy, strict
	$(BIN)/mypy

proto: .venv/.dev ## generate mq/wire from proto/
	$(BIN)/python tools/generate_proto.py

verify-proto: .venv/.dev ## is mq/wire what proto/ generates?
	$(BIN)/python tools/generate_proto.py --check

sync: .venv/.dev ## generate mq/client/_sync, the clients without asyncio
	$(BIN)/python tools/generate_sync.py

verify-sync: .venv/.dev ## is mq/client/_sync what the asyncio clients generate?
	$(BIN)/python tools/generate_sync.py --check

bench: bench-store bench-raft bench-broker ## all benchmarks

bench-store: .venv/.run ## the store against bare file access
	$(BIN)/python -m bench.store

bench-raft: .venv/.run ## replication against PySyncObj alone, and the time of a fail-over
	$(BIN)/python -m bench.raft

bench-broker: .venv/.run ## the broker against a bare gRPC server
	$(BIN)/python -m bench.broker

bench-calls: .venv/.dev ## one message a call, from a Go client, on either transport
	$(BIN)/python -m bench.calls

bench-rocketmq: .venv/.dev ## sends of RocketMQ's own client for Go against our unary Send
	$(BIN)/python -m bench.rocketmq

bench-client: .venv/.run ## our own client in one process, against a bare gRPC stream
	$(BIN)/python -m bench.client

bench-backlog: .venv/.run ## producers beside a reader of an old backlog; ends with a line of JSON
	@$(BIN)/python -m bench.backlog

bench-console: .venv/.run ## sends to three nodes, without and with twenty open tabs of the console
	@$(BIN)/python -m bench.console

bench-spark: .venv/.dev ## the Spark source and sink against Arrow alone and our producer
	@$(BIN)/python -m bench.spark

bench-executors: .venv/.dev ## the same with one and with two executors of a standalone cluster
	@$(BIN)/python -m bench.spark.executors

bench-peers: .venv/.dev ## our broker and client beside others, as far as they can be had (ARGS=--help)
	@$(BIN)/python -m bench.peers $(ARGS)

clean: ## remove .venv and caches (never data)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
