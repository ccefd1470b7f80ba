"""Renders the table of measured figures in the README from the results of the benchmarks.

    python docs/figures.py

rewrites the table in place, and draws the picture of the scaling benchmark. No figure is ever
written by hand: a test compares the README with what stands in ``bench/results``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import scale
from tailrace.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- figures:begin -->\n", "\n<!-- figures:end -->"

Row = tuple[str, str, str]


def figures(results: Path) -> str:
    """The table as Markdown; of results that are not there it has no rows."""
    lines = ["| Measured | Tailrace | Beside it |", "|---|---|---|"]
    machines: dict[str, None] = {}
    for name, rows in _ROWS.items():
        path = results / f"{name}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        lines += [f"| {' | '.join(row)} |" for row in rows(result)]
        if "machine" in result:
            machines[_machine(result["machine"])] = None
    if machines:
        lines += ["", f"The benchmarks ran on {'; and on '.join(machines)}."]
    return "\n".join(lines)


def updated(readme: str, table: str) -> str:
    """The README with its table replaced."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table}{END}{after}"


def _floor(result: dict[str, Any]) -> Iterator[Row]:
    what = f"Three Python steps that do nothing, at {result['rate_per_s']:,} records/s"
    for statistic in ("p50", "p99"):
        ours, stock = (result[side][f"{statistic}_ms"] for side in ("tailrace", "stock"))
        beside = f"{show_duration(stock)} on stock PySpark"
        yield f"{what}: {statistic} latency", show_duration(ours), beside


def _batching(result: dict[str, Any]) -> Iterator[Row]:
    back = result["back_to_back"]
    beside = f"{show_duration(back['mean_ms'])}, {_cpu(back)} back to back"
    for row in result["bounds"]:
        bound = show_duration(row["bound_ms"])
        kept = f"kept in {row['share_fulfilled']:.0%} of intervals"
        yield (
            f"Mean latency under a bound of {bound}, at {result['rate_per_s']:,} records/s",
            f"{show_duration(row['mean_ms'])}, {kept}, {_cpu(row)}",
            beside,
        )


def _cpu(row: dict[str, Any]) -> str:
    return f"{row['cpu_s_per_million']:.3g} CPU seconds a million records"


def _realtime(result: dict[str, Any]) -> Iterator[Row]:
    peers = [peer for peer in result["peers"] if "missing" not in peer]
    compared = result["compared_at_per_s"]
    for row in result["rates"]:
        same = row["rate_per_s"] == compared
        beside = ", ".join(f"{_of(peer)} on {peer['name']}" for peer in peers) if same else "-"
        what = f"Real-time mode, three Arrow steps at {row['rate_per_s']:,} records/s: p50 and p99"
        yield what, _of(row), beside
    yield (
        "Real-time mode, highest rate with a p99 below 100 ms",
        (
            f"{result['max_rate_per_s']:,} records/s in Arrow steps, "
            f"{result['max_rate_row_steps_per_s']:,} in row steps"
        ),
        ", ".join(f"{peer['max_rate_per_s']:,} on {peer['name']}" for peer in peers) or "-",
    )
    chained = result["chaining"]
    yield (
        f"Real-time mode, three steps in one chain at {compared:,} records/s: p50",
        show_duration(chained["chained_p50_ms"]),
        f"{show_duration(chained['unchained_p50_ms'])} unchained",
    )
    for row in result["bounds"]:
        kept = f"kept in {row['share_kept']:.0%} of intervals"
        yield (
            f"Real-time mode, mean latency under a bound of {show_duration(row['bound_ms'])}",
            f"{show_duration(row['mean_ms'])}, {kept}, {_cpu(row)}",
            "-",
        )


def _of(row: dict[str, Any]) -> str:
    return f"{show_duration(row['p50_ms'])} and {show_duration(row['p99_ms'])}"


def _kafka(result: dict[str, Any]) -> Iterator[Row]:
    for row in result["batches"]:
        what = f"Kafka to Kafka, two steps and a keyed count, batches of {row['batch_s']} s"
        without = show_duration(row["without_gaps"]["p99_ms"])
        yield f"{what}: p50 and p99", _of(row), f"p99 {without} without the gaps"


def _staircase(result: dict[str, Any]) -> Iterator[Row]:
    for side in result["sides"]:
        asked = "chosen" if side["asked"] == "auto" else "told to"
        kept = f"kept in {_share(side['fulfilled_share'])} of intervals"
        mean, cpu = show_duration(side["mean_ms"]), f"{side['cpu_seconds']:.1f}"
        yield (
            f"PrimeTest, mean within {show_duration(side['bound_ms'])}, on {side['ran']} ({asked})",
            f"{mean}, {kept}, {cpu} CPU seconds",
            "-",
        )


def _soak(result: dict[str, Any]) -> Iterator[Row]:
    quarters = result["quarters"]
    kinds = {"driver_mib": "driver", "jvm_mib": "JVM", "workers_mib": "workers"}
    memory = ", ".join(
        f"{told} {quarters[name]['first']:.0f} to {quarters[name]['last']:.0f} MiB"
        for name, told in kinds.items()
    )
    p50 = " to ".join(show_duration(quarters["p50_ms"][side]) for side in ("first", "last"))
    what = f"{result['seconds'] / 60:g} minutes with state at {result['rate_per_s']:,} records/s"
    yield f"{what}: first to last quarter", f"{memory}, p50 {p50}", "-"


def _scale(result: dict[str, Any]) -> Iterator[Row]:
    ours, *others = result["policies"]
    best = result["best_constant"]
    beside = [f"{best['core_seconds']:,.0f} core-seconds on {best['name']} all the time"]
    beside += [f"{run['name']} {_followed(run)}" for run in others]
    bound = show_duration(result["bound_ms"])
    what = "A step that waits 5 ms a record, under PrimeTest's staircase, on 1 to 8 executors"
    what = f"{what}, mean within {bound}, {ours['name']}"
    yield what, f"{_followed(ours)}, {ours['core_seconds']:,.0f} core-seconds", "; ".join(beside)


def _followed(run: dict[str, Any]) -> str:
    return f"{_share(run['fulfilled_share'])} of intervals with {run['reconfigurations']} moves"


def _stela(result: dict[str, Any]) -> Iterator[Row]:
    gains, beside = [], []
    for topology, sides in result["scale_out"].items():
        others = [side["gain"] for name, side in sides.items() if not name.startswith("etp")]
        gains.append(f"{topology} {sides['etp']['gain']:+.0%}")
        beside.append(f"{max(others):+.0%}")
    told = f"{', '.join(beside)} by the best of the other strategies"
    yield "Simulated throughput after one machine more, by ETP", ", ".join(gains), told


def _overhead(result: dict[str, Any]) -> Iterator[Row]:
    rates = {name: f"{rate:,} records/s" for name, rate in result["records_per_s"].items()}
    beside = f"{rates['unmeasured']} without: measuring takes {result['overhead_share']:.1%}"
    yield "Throughput of three row steps, measured", rates["measured"], beside


def _replay(result: dict[str, Any]) -> Iterator[Row]:
    rate = f"{result['records_per_s']['all columns']:,} records/s"
    yield "Replay source, one partition, every column", rate, "-"


def _starts(result: dict[str, Any]) -> Iterator[Row]:
    warm, cold = (show_duration(result[key] * 1e3) for key in ("warm_s", "cold_s"))
    yield "Real-time mode, from start to first result", warm, f"{cold} for the first of a session"
    together = show_duration(result["together_s"] * 1e3)
    yield f"The same for {result['flows']} flows started at once, until the last", together, "-"


def _simulator(result: dict[str, Any]) -> Iterator[Row]:
    for what, key in (("one queue", ""), ("three in a row", "_three_stages")):
        ours = result["three_stages" if key else "single_queue"]
        beside = f"{result[f'simpy{key}']:,} in SimPy, {result[f'ciw{key}']:,} in Ciw"
        yield f"Simulator: customers per second, {what}", f"{ours:,}", beside


def _predict(result: dict[str, Any]) -> Iterator[Row]:
    once = f"{result['predict_microbatch_ms']:g} and {result['predict_realtime_ms']:g} ms"
    yield "A prediction with its p99, in micro-batch and real-time mode", once, "-"
    for name, found in result["size"].items():
        yield f"The cheapest of {found['plans']:,} plans, {name}", f"{found['ms']:,.0f} ms", "-"


def _validate(result: dict[str, Any]) -> Iterator[Row]:
    runs = f"{result['predictions']} predictions of {result['configurations']} runs"
    for what in ("mean", "p99"):
        found = result[what]
        error = f"{found['median_abs_error']:.1%}, 9 in 10 within {found['p90_abs_error']:.1%}"
        yield f"Predicted {what} latency: median error over {runs}", error, "-"
    rates = {"saturation": "at which a plan saturates", "arrivals": "of records into each step"}
    for what, told in rates.items():
        worst = f"{result[what]['max_abs_error']:.1%}"
        yield f"Predicted rate {told}: largest error of all topologies", worst, "-"


def _demo(result: dict[str, Any]) -> Iterator[Row]:
    plain = _shown(result["baseline"]) if "baseline" in result else {}
    for what, ours in _shown(result).items():
        yield f"Demo: {what}", ours, f"{plain[what]} on plain Spark" if plain else "-"


def _shown(report: dict[str, Any]) -> dict[str, str]:
    """What the table says of one side of the demo."""
    kept = {
        f"intervals with {constraint['text']}": _share(constraint["fulfilled_share"])
        for constraint in report["constraints"]
    }
    p99 = show_duration(report["latency_ms"]["p99_ms"])
    return {**kept, "p99 latency": p99, "CPU seconds": f"{report['cpu_seconds']:.1f}"}


def _share(share: float | None) -> str:
    return "none judged" if share is None else f"{share:.0%}"


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores with {machine['memory_gib']} GiB, {machine['system']} on "
        f"{machine['architecture']}, Python {machine['python']}, PySpark {machine['pyspark']}"
    )


_ROWS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "floor": _floor,
    "batching": _batching,
    "realtime": _realtime,
    "kafka": _kafka,
    "staircase": _staircase,
    "scale": _scale,
    "stela": _stela,
    "soak": _soak,
    "overhead": _overhead,
    "replay": _replay,
    "starts": _starts,
    "simulator": _simulator,
    "predict": _predict,
    "validate": _validate,
    "demo": _demo,
}

if __name__ == "__main__":
    path, results = ROOT / "README.md", ROOT / "bench" / "results"
    table = figures(results)
    path.write_text(updated(path.read_text(encoding="utf-8"), table), encoding="utf-8")
    scaled = results / "scale.json"
    if scaled.exists():
        found = json.loads(scaled.read_text(encoding="utf-8"))
        scale.draw(found, ROOT / "docs" / "images" / "scale.png")
