"""The commands that answer what would happen, as the shell calls them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.cli.app import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parent / "data"


@pytest.fixture
def asked(tailrace: Callable[..., Any]) -> Callable[..., Any]:
    """What a command puts on standard output with ``--json``."""

    def call(*arguments: object) -> Any:
        said = tailrace(*arguments, "--json")
        assert said.code == 0, said.err
        return json.loads(said.out)

    return call


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.json"
    steps: list[dict[str, Any]] = [
        {"name": "parse", "service_ms": 0.05},
        {"name": "score", "service_ms": 0.4, "keyed_by": ["user"], "keys": {"anna": 0.3}},
    ]
    path.write_text(json.dumps({"name": "orders", "rate_per_s": 1000, "cores": 4, "steps": steps}))
    return path


def test_predict_says_what_another_plan_does(
    tailrace: Callable[..., Any], asked: Callable[..., Any], orders: Path
) -> None:
    now = asked("predict", orders)
    other = asked(
        "predict",
        orders,
        "--rate",
        "2 k/s",
        "--interval",
        "900 ms",
        "--cores",
        "8",
        "--partitions",
        "score=8",
    )
    assert now["works"]
    assert other["works"]
    assert other["mean_ms"] > now["mean_ms"]
    assert other["plan"]["partitions"] == {"score": 8}
    assert len(other["utilisation"]["score"]) == 8
    shown = tailrace("predict", orders, "--p99", "1 s").out
    assert "saturates at" in shown
    assert "kept" in shown


def test_a_flow_that_costs_next_to_nothing_saturates_at_no_rate(
    tailrace: Callable[..., Any], tmp_path: Path
) -> None:
    """A case of the fuzzer: "inf" is nothing to show to people."""
    tiny = 1e-300
    free = {"fixed_ms": tiny, "per_record_ms": tiny}
    profile = {
        "name": "orders",
        "rate_per_s": tiny,
        "steps": [{"name": "parse", "service_ms": tiny}],
        "hand_over": free | {"gap_ms": tiny},
        "batch": free | {"noise": tiny},
    }
    path = tmp_path / "orders.json"
    path.write_text(json.dumps(profile))
    said = tailrace("predict", path)
    assert said.code == 0, said.err
    (row,) = [line for line in said.out.splitlines() if "saturates at" in line]
    assert "no rate" in row


def test_a_backlog_and_a_query_behind_are_told(
    tailrace: Callable[..., Any], asked: Callable[..., Any], orders: Path
) -> None:
    assert asked("predict", orders, "--backlog", "100000")["drain_ms"] > 0
    assert "a backlog of 100,000 is gone" in tailrace("predict", orders, "--backlog", "1e5").out
    alone = asked("predict", orders)["mean_ms"]
    both = asked("predict", orders, "--then", orders)
    assert [one["works"] for one in both["queries"]] == [True, True]
    assert both["mean_ms"] == pytest.approx(2 * alone, rel=0.2)
    assert "together" in tailrace("predict", orders, "--then", orders).out


def test_a_sweep_is_drawn(asked: Callable[..., Any], orders: Path, tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "curve.png"
    said = asked(
        "predict",
        orders,
        "--sweep",
        "rate=100/s..3k/s",
        "--mean",
        "300 ms",
        "--plot",
        picture,
    )
    sweep = said["sweep"]
    assert [one["rate_per_s"] for one in sweep] == sorted(one["rate_per_s"] for one in sweep)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_capacity_and_size_answer(
    tailrace: Callable[..., Any], asked: Callable[..., Any], orders: Path
) -> None:
    found = asked("capacity", orders, "--mean", "500 ms")
    assert 0 < found["bound_per_s"] < 0.95 * found["saturation_per_s"]
    sized = asked("size", orders, "--rate", "2 k/s", "--p99", "1 s")
    assert sized["best"]["works"]
    assert sized["best"]["p99_ms"] <= 1_000
    assert "keep the p99" in " ".join(tailrace("size", orders, "--p99", "1 s").out.split())


def test_predictions_are_kept_and_scored(
    asked: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    found = asked("predict", orders, "--log", log)
    data = json.loads(orders.read_text())
    mean_ms = 1.1 * found["mean_ms"]
    latency = {"mean_ms": mean_ms, "p50_ms": mean_ms, "p95_ms": mean_ms, "p99_ms": mean_ms}
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps(data | {"latency": latency}))
    scored = asked("score", log, measured)
    assert (scored["predictions"], scored["scored"], scored["newly_scored"]) == (1, 1, 1)
    assert scored["median_abs_error"] == pytest.approx(1 - 1 / 1.1, rel=1e-3)


def test_any_query_has_a_profile_in_its_progress_log(
    tailrace: Callable[..., Any], asked: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "query.json"
    assert tailrace("profile", DATA / "progress.jsonl", out).code == 0
    found = asked("predict", out, "--rate", "100 k/s")
    assert found["works"]
    assert found["mean_ms"] > 0


def test_a_forecast_says_when_the_bound_breaks(
    asked: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    rates = tmp_path / "rates.csv"
    lines = [f"{60 * i},{500 + 8 * i + 3 * math.sin(i)}" for i in range(120)]
    rates.write_text("\n".join(["time,rate", *lines]))
    found = asked("forecast", rates, "--horizon", "4 h", "--profile", orders, "--mean", "300 ms")
    assert found["mean_per_s"][-1] > found["mean_per_s"][0]
    assert "breaks" in found["alarm"]
    assert found["advice"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict", "{orders}", "--cores", "0"], "at least 1"),
        (["predict", "{orders}", "--rate", "-5/s"], "rate"),
        (["predict", "{orders}", "--partitions", "score"], "step=8"),
        (["predict", "{orders}", "--partitions", "scroe=8"], "no step 'scroe'"),
        (["predict", "{orders}", "--backend", "storm"], "microbatch or realtime"),
        (["predict", "{orders}", "--sweep", "5..6"], "rate=5k/s..80k/s"),
        (["predict", "{orders}", "--sweep", "rate=9/s..1/s"], "turn its ends"),
        (["predict", "{orders}", "--plot", "x.png"], "--sweep"),
        (["predict", "{orders}", "--mean", "1 s", "--p99", "2 s"], "Only one bound"),
        (["predict", "nowhere.json"], "nowhere.json"),
        (["size", "{orders}"], "--mean"),
        (["score", "nowhere.jsonl"], "--log"),
        (["profile", "nowhere.jsonl", "out.json"], "JSON lines"),
        (["forecast", "nowhere.csv"], "CSV"),
        (["predict", "{orders}", "--cores", "1000000"], "--cores 1000000 cannot be: give at least"),
        (["predict", "{orders}", "--partitions", "score=\u00b2"], "no number of partitions"),
        (["predict", "{orders}", "--partitions", "score=1000000000"], "10,000 at most"),
        (["predict", "{orders}", "--row-limit", "0"], "--row-limit 0 cannot be"),
        (["predict", "{orders}", "--rate", "1e300/s"], "--rate 1e300/s is too high"),
        (["predict", "{orders}", "--interval", "1e300 h"], "--interval 1e300 h is too long"),
        (["predict", "{orders}", "--backlog", "nan"], "--backlog nan cannot be"),
        (["predict", "{orders}", "--backlog", "1e300"], "--backlog 1e+300 cannot be"),
        (["predict", "{orders}", "--sweep", "rate=1/s..1e300/s"], "--sweep 1e300/s is too high"),
        (["predict", "{orders}", "--mean", ""], "the bound on the mean"),
        (["predict", "{orders}", "--mean", "1e300 h"], "--mean 1e300 h is too long"),
        (["predict", "{orders}", "--log", "."], "is a directory"),
        (["predict", "{orders}", "--sweep", "rate=1/s..9/s", "--plot", "x.doc"], ".png or .svg"),
        (["size", "{orders}", "--p99", "1 s", "--most-cores", "1000000"], "1,000 at most"),
        (["profile", "{orders}", "out.json", "--cores", "0"], "--cores 0 cannot be"),
        (["predict", "\x1b[31m\u202enone.json"], "There is no profile none.json:"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tailrace: Callable[..., Any], orders: Path, arguments: list[str], said: str
) -> None:
    assert said in tailrace(*(a.format(orders=orders) for a in arguments)).sentence(2)


def test_a_forecast_over_milliseconds_is_refused_and_not_begun(
    tailrace: Callable[..., Any], tmp_path: Path
) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("\n".join(["time,rate", *(f"{n / 1e3:.3f},{n}" for n in range(60))]))
    said = tailrace("forecast", rates, "--horizon", "1 h").sentence(2)
    assert "3,600,000 steps of 1 ms is too long" in said


HOSTILE = "\x1b[31m[red]or[/]ders\u202e\x9b2J[/nothing]\n:boom:"


def test_names_steer_neither_the_terminal_nor_the_table(
    tailrace: Callable[..., Any], orders: Path
) -> None:
    data = json.loads(orders.read_text())
    data["name"] = HOSTILE
    data["steps"][0]["name"] = HOSTILE
    orders.write_text(json.dumps(data))
    for arguments in (
        ("predict", orders),
        ("predict", orders, "--then", orders),
        ("predict", orders, "--rate", "1 M/s"),
        ("predict", orders, "--sweep", "rate=100/s..3k/s"),
        ("size", orders, "--p99", "1 s"),
        ("capacity", orders, "--p99", "1 s"),
    ):
        said = tailrace(*arguments)
        assert said.code == 0, said.err
        assert not {"\x1b", "\u202e", "\x9b"} & set(said.out)
        assert "Traceback" not in said.err
    assert "[red]or[/]ders" in tailrace("predict", orders).out.replace("\n", "")


def test_json_has_null_for_what_has_no_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"a": [math.inf, {"b": math.nan}], "c": (1.5, -math.inf), "d": "nan"})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": [None, {"b": None}],
        "c": [1.5, None],
        "d": "nan",
    }


def test_errors_of_scores_are_finite_in_json(asked: Callable[..., Any], tmp_path: Path) -> None:
    plan = {"backend": "microbatch", "interval_ms": 0.0, "chains": [], "partitions": {}}
    line = {"flow": "a", "at_us": 1, "plan": plan, "rate_per_s": 1.0, "known": True}
    pairs = [(1e-6, 1e12), (1e12, 1e-6), (5.0, 5.0)]
    log = tmp_path / "log.jsonl"
    entries = (line | {"predicted_ms": a, "measured_ms": b} for a, b in pairs)
    log.write_text("\n".join(map(json.dumps, entries)))
    assert asked("score", log)["max_abs_error"] == pytest.approx(1e18)
