# setup makes .venv and the Java part once; every other target needs nothing else.
PYTHON ?= python3
BIN := .venv/bin
JAR := src/tailrace/spark/tailrace.jar

.PHONY: setup demo wheel test test-spark test-rest test-alone check bench bench-predict bench-scale chaos nightly elastic kafka soak lock clean

setup: .venv/ready $(JAR)

.venv/ready: pyproject.toml requirements/build.txt requirements/dev.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tailrace needs Python 3.11 or later: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes --requirement requirements/build.txt
	$(BIN)/pip install --quiet --require-hashes --no-build-isolation --requirement requirements/dev.txt
	$(BIN)/pip install --quiet --no-index --no-deps --no-build-isolation --check-build-dependencies --editable .
	touch $@

$(JAR): .venv/ready jvm/build.py $(shell find jvm/src jvm/resources -type f)
	$(BIN)/python jvm/build.py

demo: setup
	$(BIN)/tailrace demo

# What users install: the package with its jar, and nothing of bench, tools or tests.
wheel: setup
	$(BIN)/python -m hatchling build -t wheel

# Two halves at once: what shares one Spark session mostly waits; the rest gives way to it.
test: setup
	$(MAKE) --no-print-directory --jobs=2 test-spark test-rest
	$(MAKE) --no-print-directory test-alone

test-spark: setup
	$(BIN)/pytest -q -m 'spark and not apart and not alone and not nightly' tests/spark tests/chaos

test-rest: setup
	nice -n 10 $(BIN)/pytest -q -m '(not spark or apart) and not alone and not nightly' -o cache_dir=.pytest_cache/rest

# What other work on the machine would change.
test-alone: setup
	$(BIN)/pytest -q -m 'alone and not nightly' tests/spark

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.reachable

# About an hour and a half; most of the results that the docs quote.
bench: setup
	$(BIN)/python -m bench floor --out bench/results/floor.json
	$(BIN)/python -m bench batching --out bench/results/batching.json
	$(BIN)/python -m bench realtime --out bench/results/realtime.json
	$(BIN)/python -m bench kafka --out bench/results/kafka.json
	$(BIN)/python -m bench staircase --out bench/results/staircase.json
	$(BIN)/python -m bench overhead --out bench/results/overhead.json
	$(BIN)/python -m bench replay --out bench/results/replay.json
	$(BIN)/python -m bench starts --out bench/results/starts.json
	$(BIN)/python -m bench simulator --out bench/results/simulator.json
	$(BIN)/python -m bench predict --out bench/results/predict.json
	$(BIN)/tailrace demo --json > bench/results/demo.json
	$(BIN)/python -m docs.figures

# About 40 minutes: how right predictions are, on every topology in both backends.
bench-predict: setup
	$(BIN)/tailrace validate --out bench/results/validate.json
	$(BIN)/python -m docs.figures

# About two and a half hours: every policy under one load, on real executors; and what scale-out
# picks. It goes on where it was interrupted; make clean forgets.
bench-scale: setup
	$(BIN)/python -m bench scale --keep out/scale.jsonl --out bench/results/scale.json
	$(BIN)/python -m bench rehearse --keep out/rehearse.jsonl --out bench/results/rehearse.json
	$(BIN)/python -m bench stela --out bench/results/stela.json
	$(BIN)/python -m docs.figures

# 300 faults over six flows: exact, or refused in one sentence. It goes on where it was interrupted.
chaos: setup
	$(BIN)/python -m tests.chaos --faults 300 --seed 1 --keep out/chaos.jsonl

# A few hours: what is too long for every change. Damaged files, mutated input, faults, moves.
nightly: setup
	$(BIN)/pytest -q -m nightly
	$(BIN)/python -m tests.fuzz.files --cases 100000 --seed 1
	$(BIN)/python -m tests.fuzz.outside --cases 100000 --seed 1 --jobs 2
	$(MAKE) --no-print-directory elastic chaos

# Twenty moves and kills of executors under two flows: nothing is lost or counted twice.
elastic: setup
	$(BIN)/python tests/spark/cluster/elastic.py 20 1

# A Kafka broker on loopback, until Ctrl-C; docs/kafka.md says what to do with it.
PORT ?= 9092
kafka: setup
	$(BIN)/python -m bench.broker --port $(PORT)

# An hour of real-time mode with state: does anything grow?
soak: setup
	$(BIN)/python -m bench.soak --minutes 60 --out bench/results/soak.json
	$(BIN)/python -m docs.figures

# Every dependency with the hashes of all its files, for any platform and Python from 3.11 on. Versions
# stay where they are allowed to: run after changing dependencies, then test. UPGRADE=1 takes the newest.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate $(if $(UPGRADE),--upgrade)

lock:
	test -x $(BIN)/uv || $(MAKE) --no-print-directory .venv/ready
	$(COMPILE) --group build --output-file requirements/build.txt
	$(COMPILE) --extra dev --constraint requirements/build.txt --output-file requirements/dev.txt pyproject.toml

clean:
	rm -rf .venv out build dist $(JAR)
