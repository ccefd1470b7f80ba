"""``tailrace predict`` on plans, loads, backlogs, ranges of rates, and wrong input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


def test_predict_says_what_another_plan_does(
    tailrace: Callable[..., Said], asked: Callable[..., Any], orders: Path
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
    tailrace: Callable[..., Said], tmp_path: Path
) -> None:
    """Found by the fuzzer: "inf" is nothing to show to people."""
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


def test_a_backlog_and_a_following_query_are_shown(
    tailrace: Callable[..., Said], asked: Callable[..., Any], orders: Path
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict", "{orders}", "--cores", "0"], "give from 1 to 10,000"),
        (["predict", "{orders}", "--rate", "-5/s"], "rate"),
        (["predict", "{orders}", "--partitions", "score"], "step=8"),
        (["predict", "{orders}", "--partitions", "scroe=8"], "no step 'scroe'"),
        (["predict", "{orders}", "--backend", "storm"], "microbatch or realtime"),
        (["predict", "{orders}", "--sweep", "5..6"], "rate=5k/s..80k/s"),
        (["predict", "{orders}", "--sweep", "rate=9/s..1/s"], "swap its ends"),
        (["predict", "{orders}", "--plot", "x.png"], "--sweep"),
        (["predict", "{orders}", "--mean", "1 s", "--p99", "2 s"], "Only one bound"),
        (["predict", "nowhere.json"], "nowhere.json"),
        (
            ["predict", "{orders}", "--cores", "1000000"],
            "--cores 1000000 is out of range: give from",
        ),
        (
            ["predict", "{orders}", "--partitions", "score=\u00b2"],
            "not give a number of partitions",
        ),
        (["predict", "{orders}", "--partitions", "score=1000000000"], "give from 1 to 10,000"),
        (["predict", "{orders}", "--row-limit", "0"], "--row-limit 0 is out of range"),
        (["predict", "{orders}", "--rate", "1e300/s"], "--rate 1e300/s is too high"),
        (["predict", "{orders}", "--interval", "1e300 h"], "--interval 1e300 h is too long"),
        (["predict", "{orders}", "--backlog", "nan"], "--backlog nan is out of range"),
        (["predict", "{orders}", "--backlog", "1e300"], "--backlog 1e+300 is out of range"),
        (["predict", "{orders}", "--sweep", "rate=1/s..1e300/s"], "--sweep 1e300/s is too high"),
        (["predict", "{orders}", "--mean", ""], "the bound on the mean"),
        (["predict", "{orders}", "--mean", "1e300 h"], "--mean 1e300 h is too long"),
        (["predict", "{orders}", "--log", "."], "is a directory"),
        (["predict", "{orders}", "--sweep", "rate=1/s..9/s", "--plot", "x.doc"], ".png or .svg"),
        (["predict", "\x1b[31m\u202enone.json"], "There is no profile none.json:"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tailrace: Callable[..., Said], orders: Path, arguments: list[str], said: str
) -> None:
    assert said in tailrace(*(a.format(orders=orders) for a in arguments)).sentence(USER)
