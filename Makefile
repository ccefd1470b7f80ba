# setup makes .venv and the Java part once; every other target needs nothing else.
PYTHON ?= python3
BIN := .venv/bin
JAR := src/tailrace/spark/tailrace.jar

.PHONY: setup demo test check bench lock clean

setup: .venv/ready $(JAR)

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tailrace needs Python 3.11 or later: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(JAR): .venv/ready jvm/build.py $(shell find jvm/src jvm/resources -type f)
	$(BIN)/python jvm/build.py

demo: setup
	$(BIN)/tailrace demo

test: setup
	$(BIN)/pytest -q

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# About an hour; the results that the docs quote.
bench: setup
	$(BIN)/tailrace bench floor --out bench/results/floor.json
	$(BIN)/tailrace bench batching --out bench/results/batching.json
	$(BIN)/tailrace bench overhead --out bench/results/overhead.json
	$(BIN)/tailrace bench replay --out bench/results/replay.json
	$(BIN)/tailrace demo --json > bench/results/demo.json
	$(BIN)/python docs/figures.py

# What a fresh install gives: run after changing dependencies, then test.
lock: .venv/ready
	$(BIN)/pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf .venv out build dist $(JAR)
