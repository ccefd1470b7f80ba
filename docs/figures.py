"""Writes the measured figures into the documents, and draws their pictures.

    python -m docs.figures

No figure is ever written by hand. A document says where a table belongs, and of which benchmark:

    <!-- figures: floor -->
    <!-- figures end -->

Its rows come from the result in ``bench/results``; a test compares the documents with it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import scale
from tailrace.model.score import summed_up
from tailrace.report.data import Report
from tailrace.report.picture import draw
from tailrace.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "images"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")

HIGHLIGHTS, MACHINES = "highlights", "machines"
"""Two that belong to no single benchmark: the table of the README, and where all of it ran."""

_PLACE = re.compile(r"<!-- figures: ([\w-]+) -->\n(?:.*?\n)??<!-- figures end -->", re.DOTALL)
_MADE = re.compile(r"(.+?): .*mean .+? \(([+-]\d+)%\), p99")

Result = dict[str, Any]
Row = tuple[str, str, str]


def tables(results: Path) -> dict[str, str]:
    """Every table as Markdown, by its name; a benchmark without a result has none."""
    known: dict[str, Result] = {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name in _TABLES
        if (path := results / f"{name}.json").exists()
    }
    found = {
        name: _markdown(_HEADERS.get(name, _COMPARED), _TABLES[name](known[name])) for name in known
    }
    found[HIGHLIGHTS] = _markdown(_COMPARED, _highlights(known))
    machines = [_machine(result["machine"]) for result in known.values() if "machine" in result]
    if machines:
        found[MACHINES] = f"The benchmarks ran on {'; and on '.join(dict.fromkeys(machines))}."
    return found


def updated(document: str, found: Mapping[str, str]) -> str:
    """A document with its tables filled in; one that was not made stays as it was."""

    def filled(place: re.Match[str]) -> str:
        name = place[1]
        if name not in found:
            return place[0]
        return f"<!-- figures: {name} -->\n{found[name]}\n<!-- figures end -->"

    return _PLACE.sub(filled, document)


def asked_for(document: str) -> list[str]:
    """The names of the tables that a document has."""
    return _PLACE.findall(document)


def _markdown(header: Row, rows: Iterable[Row]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in (header, *rows))
    return "\n".join([head, "|---|---|---|", *body])


def _highlights(results: Mapping[str, Result]) -> Iterator[Row]:
    """A row of each benchmark that says most about what Tailrace does."""
    for name, row in _HIGHLIGHTS.items():
        if name in results:
            yield row(results[name])


# --- the rows of each benchmark ---------------------------------------------------------------


def _floor(result: Result) -> Iterator[Row]:
    for statistic in ("p50", "p99"):
        ours, stock = (result[side][f"{statistic}_ms"] for side in ("tailrace", "stock"))
        yield f"{statistic} latency", show_duration(ours), show_duration(stock)


def _floor_in_short(result: Result) -> Row:
    ours, stock = (show_duration(result[side]["p50_ms"]) for side in ("tailrace", "stock"))
    what = f"Micro-batches, three Python steps at {result['rate_per_s']:,} records/s: p50"
    return what, ours, f"{stock} on stock PySpark"


def _batching(result: Result) -> Iterator[Row]:
    for row in result["bounds"]:
        yield show_duration(row["bound_ms"]), _kept(row, "share_fulfilled"), _cpu(row)
    back = result["back_to_back"]
    yield "none: back to back", show_duration(back["mean_ms"]), _cpu(back)


def _batching_in_short(result: Result) -> Row:
    row, back = result["bounds"][-1], result["back_to_back"]
    what = f"Micro-batches, mean within {show_duration(row['bound_ms'])}"
    ours = f"{_kept(row, 'share_fulfilled')}, {_cpu(row)} CPU seconds per million records"
    return what, ours, f"{_cpu(back)} CPU seconds back to back"


def _cpu(row: Result) -> str:
    return f"{row['cpu_s_per_million']:.3g}"


def _kept(row: Result, share: str) -> str:
    return f"{show_duration(row['mean_ms'])}, kept in {row[share]:.0%} of intervals"


def _peers(result: Result) -> list[Result]:
    return [peer for peer in result["peers"] if "missing" not in peer]


def _realtime(result: Result) -> Iterator[Row]:
    compared = result["compared_at_per_s"]
    for row in result["rates"]:
        same = row["rate_per_s"] == compared
        yield (
            f"p50 and p99 at {row['rate_per_s']:,} records/s",
            _of(row),
            _beside(result) if same else "-",
        )
    yield (
        "highest rate with a p99 below 100 ms",
        (
            f"{result['max_rate_per_s']:,} records/s in Arrow steps, "
            f"{result['max_rate_row_steps_per_s']:,} in row steps"
        ),
        ", ".join(f"{peer['max_rate_per_s']:,} on {peer['name']}" for peer in _peers(result))
        or "-",
    )
    chained = result["chaining"]
    yield (
        f"p50 in one chain at {compared:,} records/s",
        show_duration(chained["chained_p50_ms"]),
        f"{show_duration(chained['unchained_p50_ms'])} unchained",
    )
    for row in result["bounds"]:
        yield (
            f"mean under a bound of {show_duration(row['bound_ms'])}",
            f"{_kept(row, 'share_kept')}, {_cpu(row)} CPU seconds per million records",
            "-",
        )


def _realtime_in_short(result: Result) -> Row:
    compared = result["compared_at_per_s"]
    row = next(row for row in result["rates"] if row["rate_per_s"] == compared)
    what = f"Real-time mode, three Python steps at {compared:,} records/s: p50 and p99"
    return what, _of(row), _beside(result)


def _beside(result: Result) -> str:
    return ", ".join(f"{_of(peer)} on {peer['name']}" for peer in _peers(result)) or "-"


def _of(row: Result) -> str:
    return f"{show_duration(row['p50_ms'])} and {show_duration(row['p99_ms'])}"


def _kafka(result: Result) -> Iterator[Row]:
    for row in result["batches"]:
        yield f"{row['batch_s']} s", _of(row), _of(row["without_gaps"])


def _kafka_in_short(result: Result) -> Row:
    row = result["batches"][-1]
    what = f"Kafka to Kafka with state, batches of {row['batch_s']} s: p50 and p99"
    return what, _of(row), f"{_of(row['without_gaps'])} without the gaps between batches"


def _staircase(result: Result) -> Iterator[Row]:
    for side in result["sides"]:
        asked = "chosen" if side["asked"] == "auto" else "asked for"
        yield (
            f"{show_duration(side['bound_ms'])} on {side['ran']} ({asked})",
            _kept(side, "fulfilled_share"),
            f"{side['cpu_seconds']:.1f}",
        )


def _scale(result: Result) -> Iterator[Row]:
    for run in (*result["policies"], *result["constants"]):
        yield run["name"], _followed(run), f"{run['core_seconds']:,.0f}"


def _scale_in_short(result: Result) -> Row:
    ours, best = result["policies"][0], result["best_constant"]
    bound = show_duration(result["bound_ms"])
    return (
        f"1 to 8 executors under a changing load, mean within {bound}",
        f"{_share(ours['fulfilled_share'])} of intervals, {ours['core_seconds']:,.0f} core-seconds",
        f"{best['core_seconds']:,.0f} core-seconds on {best['name']} all the time",
    )


def _followed(run: Result) -> str:
    return f"{_share(run['fulfilled_share'])} of intervals with {run['reconfigurations']} moves"


def _stela(result: Result) -> Iterator[Row]:
    for topology, sides in result["scale_out"].items():
        others = [side["gain"] for name, side in sides.items() if not name.startswith("etp")]
        yield topology, f"{sides['etp']['gain']:+.0%}", f"{max(others):+.0%}"


def _soak(result: Result) -> Iterator[Row]:
    quarters = result["quarters"]
    memory = {"driver_mib": "driver", "jvm_mib": "JVM", "workers_mib": "workers"}
    for name, what in memory.items():
        first, last = (f"{quarters[name][quarter]:.0f} MiB" for quarter in ("first", "last"))
        yield what, first, last
    first, last = (show_duration(quarters["p50_ms"][quarter]) for quarter in ("first", "last"))
    yield "p50 latency", first, last


def _overhead(result: Result) -> Iterator[Row]:
    rates = {name: f"{rate:,} records/s" for name, rate in result["records_per_s"].items()}
    beside = f"{rates['unmeasured']} without: measuring takes {result['overhead_share']:.1%}"
    yield "three row steps, measured", rates["measured"], beside


def _replay(result: Result) -> Iterator[Row]:
    rate = f"{result['records_per_s']['all columns']:,} records/s"
    yield "replay source, one partition, every column", rate, "-"


def _starts(result: Result) -> Iterator[Row]:
    warm, cold = (show_duration(result[key] * 1e3) for key in ("warm_s", "cold_s"))
    yield "from start to first result", warm, f"{cold} for the first of a session"
    together = show_duration(result["together_s"] * 1e3)
    yield f"{result['flows']} flows started at once, until the last", together, "-"


def _simulator(result: Result) -> Iterator[Row]:
    for what, key in (("one queue", ""), ("three in a row", "_three_stages")):
        ours = result["three_stages" if key else "single_queue"]
        beside = f"{result[f'simpy{key}']:,} in SimPy, {result[f'ciw{key}']:,} in Ciw"
        yield f"customers per second, {what}", f"{ours:,}", beside


def _predict(result: Result) -> Iterator[Row]:
    yield "a prediction, micro-batch", f"{result['predict_microbatch_ms']:g} ms", "-"
    yield "a prediction, real-time", f"{result['predict_realtime_ms']:g} ms", "-"
    for name, found in result["size"].items():
        yield f"the cheapest of {found['plans']:,} plans, {name}", f"{found['ms']:,.0f} ms", "-"


def _validate(result: Result) -> Iterator[Row]:
    runs = f"{result['predictions']} predictions of {result['configurations']} runs"
    for what in ("mean", "p99"):
        yield f"{what} latency, {runs}", *_off(result[what])
    for topology, errors in _by_topology(result["made"]).items():
        yield f"mean latency, {topology}", *_off(summed_up(errors))
    yield "rate at which a plan saturates", *_off(result["saturation"])
    yield "rate of records into each step", *_off(result["arrivals"])


def _off(found: Mapping[str, float]) -> tuple[str, str]:
    """By how much predictions were off: in the median, and at worst."""
    worst = f"{found['p90_abs_error']:.1%} and {found['max_abs_error']:.1%}"
    return f"{found['median_abs_error']:.1%}", worst


def _by_topology(made: Iterable[str]) -> dict[str, list[float]]:
    """The errors of the predicted means, to a whole per cent, as the result words them."""
    errors: dict[str, list[float]] = {}
    for prediction in made:
        match = _MADE.match(prediction)
        if match is None:
            raise ValueError(f"This is not a prediction as validation words them: {prediction}")
        errors.setdefault(match[1], []).append(int(match[2]) / 100)
    return errors


def _validate_in_short(result: Result) -> Row:
    found = result["mean"]
    error = f"{found['median_abs_error']:.1%} off in the median, 9 in 10 within"
    topologies = len(_by_topology(result["made"]))
    what = f"Mean latency of {topologies} known topologies, {result['predictions']} predictions"
    return what, f"{error} {found['p90_abs_error']:.1%}", "-"


def _demo(result: Result) -> Iterator[Row]:
    plain = _shown(result["baseline"]) if "baseline" in result else {}
    for what, ours in _shown(result).items():
        yield what, ours, f"{plain[what]} on plain Spark" if plain else "-"


def _shown(report: Result) -> dict[str, str]:
    """The rows of one side of the demo."""
    kept = {
        f"intervals with {constraint['text']}": _share(constraint["fulfilled_share"])
        for constraint in report["constraints"]
    }
    p99 = show_duration(report["latency_ms"]["p99_ms"])
    return {**kept, "p99 latency": p99, "CPU seconds": f"{report['cpu_seconds']:.1f}"}


def _share(share: float | None) -> str:
    return "none judged" if share is None else f"{share:.0%}"


def _machine(machine: Result) -> str:
    return (
        f"{machine['cores']} cores with {machine['memory_gib']} GiB, {machine['system']} on "
        f"{machine['architecture']}, Python {machine['python']}, PySpark {machine['pyspark']}"
    )


_TABLES: dict[str, Callable[[Result], Iterator[Row]]] = {
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

_COMPARED = ("Measured", "Tailrace", "Compared with")
_HEADERS: dict[str, Row] = {
    "floor": ("Measured", "Tailrace", "Stock PySpark"),
    "batching": ("Bound on the mean", "Mean latency", "CPU seconds per million records"),
    "kafka": ("Length of a batch", "p50 and p99", "p50 and p99 without the gaps"),
    "staircase": ("Bound on the mean, backend", "Mean latency", "CPU seconds"),
    "scale": ("Who decides", "Bound kept", "Core-seconds"),
    "stela": ("Topology", "ETP", "Best of the other strategies"),
    "soak": ("Measured", "First quarter", "Last quarter"),
    "validate": ("Predicted", "Median error", "9 in 10 within, and largest"),
}
"""Where a table compares something else than Tailrace with others."""

_HIGHLIGHTS: dict[str, Callable[[Result], Row]] = {
    "floor": _floor_in_short,
    "realtime": _realtime_in_short,
    "kafka": _kafka_in_short,
    "batching": _batching_in_short,
    "scale": _scale_in_short,
    "validate": _validate_in_short,
}


def _draw() -> None:
    """The pictures, of the same results as the figures."""
    demo, scaled = RESULTS / "demo.json", RESULTS / "scale.json"
    if demo.exists():
        found = json.loads(demo.read_text(encoding="utf-8"))
        baseline = Report(found["baseline"]) if "baseline" in found else None
        draw(Report(found), IMAGES / "report.png", baseline)
    if scaled.exists():
        found = json.loads(scaled.read_text(encoding="utf-8"))
        scale.draw(found, IMAGES / "scale.png")


if __name__ == "__main__":
    made = tables(RESULTS)
    for path in DOCUMENTS:
        path.write_text(updated(path.read_text(encoding="utf-8"), made), encoding="utf-8")
    _draw()
