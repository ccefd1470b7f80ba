from __future__ import annotations

import json

import pytest

from tailrace.errors import FlowFailed, InputError, StepFailed
from tailrace.spark.failures import explained
from tailrace.spark.worker.chain import LAST
from tailrace.spark.worker.operator import FAILURE

FACTS = {"step": "parse", "batch": "7", "record": '{"n": "a } b"}', "error": "ValueError: no\nway"}
SPARK = f"""Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
tailrace.spark.worker.chain.RecordFailed: {FAILURE}{json.dumps(FACTS)}
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.run(DAGScheduler.scala:1)
"""


def test_the_facts_about_a_record_are_found_in_what_spark_says() -> None:
    error = explained(SPARK)
    assert isinstance(error, StepFailed)
    assert str(error) == (
        'Step \'parse\' failed in batch 7 on the record {"n": "a } b"} (ValueError: no way): '
        "fix the step, or give it on_error='drop' or 'dead-letter'."
    )


def test_the_function_of_a_sink_is_not_called_a_step() -> None:
    said = SPARK.replace('"parse"', f'"{LAST}"')
    assert str(explained(said)) == (
        'The function of the sink failed in batch 7 on the record {"n": "a } b"} (ValueError: no '
        "way): fix it, or what it writes to."
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("column"), "KeyError: 'column'"),
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
        (RuntimeError(), "RuntimeError"),
        ("", "Spark gave no reason"),
        ("plain words\nand a plan", "plain words"),
        (
            "x\nCaused by: java.io.IOException: disk full\nCaused by: a.b.FSError: no space left",
            "FSError: no space left",
        ),
    ],
)
def test_everything_else_becomes_one_sentence(error: Exception | str, reason: str) -> None:
    made = explained(error)
    assert isinstance(made, FlowFailed)
    assert str(made).startswith(f"The flow failed ({reason.rstrip(' .')}): fix the cause")


@pytest.mark.parametrize(
    "said",
    [
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "java.net.SocketException: Connection reset\n\tat org.apache.spark.api.python.PythonRunner",
        "java.io.IOException: Broken pipe\n\tat x\n\tat org.apache.spark.api.python.PythonRunner",
    ],
)
def test_a_worker_that_died_is_reported_whatever_its_socket_says(said: str) -> None:
    assert str(explained(said)).startswith("A Python worker died while it was working")


def test_a_connection_that_is_no_workers_is_not_taken_for_one() -> None:
    assert "Connection reset" in str(explained("java.net.SocketException: Connection reset"))


def test_what_a_worker_raised_in_our_own_words_comes_back_as_it_was() -> None:
    said = "PythonException: Traceback\ntailrace.errors.StepFailed: The state is full: free some.\n"
    made = explained(said)
    assert isinstance(made, StepFailed)
    assert str(made) == "The state is full: free some."


def test_an_error_of_our_own_stays_what_it_is() -> None:
    error = InputError("This is wrong: do that.")
    assert explained(error) is error


@pytest.mark.parametrize(
    "said",
    [
        "x\nCaused by: java.sql.SQLException: no login at jdbc:pg://h/d?user=u&password=hunter2",
        "org.apache.kafka.KafkaException: sasl.jaas.config=Plain required password='hunter2';",
        "tailrace.errors.FlowFailed: Nothing at https://u:hunter2@example.org: fix it.",
        RuntimeError("cannot open postgres://u:hunter2@h/d"),
        SPARK.replace("no\\nway", "secret=hunter2"),
    ],
)
def test_secrets_that_an_error_quotes_are_masked(said: Exception | str) -> None:
    sentence = str(explained(said))
    assert "hunter2" not in sentence
    assert "***" in sentence


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            "x\nCaused by: a.b.NumberFormatException: [CAST_INVALID_INPUT] The value 'Al' of the",
            "NumberFormatException [CAST_INVALID_INPUT]",
        ),
        (KeyError("Al"), "KeyError"),
        ("The record Al", "redacted"),
        ("[CAST_INVALID_INPUT] The value 'Al'", "[CAST_INVALID_INPUT]"),
        ("Caused by: java.io.IOException: disk full", "IOException"),
    ],
)
def test_a_redacted_failure_has_its_kind_and_not_what_it_says(
    error: Exception | str, cause: str
) -> None:
    assert str(explained(error, redact=True)).startswith(f"The flow failed ({cause}): fix the")


def test_a_worker_that_left_out_the_record_is_quoted_without_one() -> None:
    facts = {"step": "parse", "batch": "7", "error": "ValueError in parse, line 3 of job.py"}
    assert str(explained(f"RecordFailed: {FAILURE}{json.dumps(facts)}")) == (
        "Step 'parse' failed in batch 7 on a record (ValueError in parse, line 3 of job.py): fix "
        "the step, or give it on_error='drop' or 'dead-letter'."
    )
