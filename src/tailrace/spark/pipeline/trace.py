"""Tracing: from a pipeline function to the graph of its named steps.

The pipeline is called once on its real source, every step becomes a ``mapInArrow`` with a known
name, and the graph is read from the logical plan that Spark makes of it. So the graph shows what
Spark will do, however the Python code got there. Nothing is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tailrace.constraint import SINK, SOURCE
from tailrace.errors import TraceError
from tailrace.graph import Graph, Stream, graph
from tailrace.spark.pipeline.compilation import STEP_PREFIX, Compilation, refuse_reserved
from tailrace.state.manifest import HASHED, KEYED, Layout

if TYPE_CHECKING:
    from tailrace.graph import Step
    from tailrace.spark.pipeline.step import Apply

Pipeline = Callable[[DataFrame], DataFrame | Mapping[str, DataFrame]]

_SPREADING = {
    "RepartitionByExpression": "partitionExpressions",
    "Aggregate": "groupingExpressions",
    "Deduplicate": "keys",
}
_STATEFUL = frozenset({"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct"})
_ROW_BY_ROW = frozenset(
    {"Filter", "Generate", "Project", "Repartition", "RepartitionByExpression", "Union"}
)


def outputs_of(pipeline: Pipeline, frame: DataFrame) -> dict[str, DataFrame]:
    """Call the pipeline; its outputs by the name of the sink that each goes to."""
    result = pipeline(frame)
    if isinstance(result, DataFrame):
        return {SINK: result}
    if isinstance(result, Mapping) and result:
        for name, output in result.items():
            if not isinstance(output, DataFrame):
                raise TraceError(
                    f"The output {name!r} of the pipeline is {type(output).__name__}, not a "
                    "DataFrame: return a DataFrame, or a dict of DataFrames by name."
                )
        return {f"{SINK}:{name}": output for name, output in result.items()}
    raise TraceError(
        f"The pipeline returned {type(result).__name__}: return a DataFrame, or a dict of "
        "DataFrames by name."
    )


@dataclass(frozen=True, slots=True)
class Traced:
    """What one reading of a pipeline shows: its graph, and what its steps were given.

    ``key_types`` are the Spark types of the columns that each keyed step is keyed by.
    """

    graph: Graph
    applied: tuple[Apply, ...]
    key_types: Mapping[str, tuple[str, ...]]

    @property
    def functions(self) -> tuple[object, ...]:
        """The functions that the steps call."""
        return tuple(apply.function for apply in self.applied)

    @property
    def layouts(self) -> dict[str, Layout]:
        """The steps as a checkpoint sees them."""
        return {
            apply.step.name: _layout(apply, self.key_types.get(apply.step.name, ()))
            for apply in self.applied
        }


def trace(pipeline: Pipeline, source: DataFrame) -> Graph:
    """The graph of a pipeline, read from the plan that Spark analysed."""
    return traced(pipeline, source).graph


def traced(pipeline: Pipeline, source: DataFrame) -> Traced:
    """Read a pipeline: call it once, every step a chain of its own."""
    compilation = Compilation()
    try:
        with compilation.active():
            outputs = outputs_of(pipeline, source)
    except AnalysisException as error:
        raise TraceError(f"Spark cannot analyse the pipeline: {_sentence(error)}") from error
    steps = {apply.step.name: apply.step for apply in compilation.applied}
    if len(steps) < len(compilation.applied):
        graph(tuple(apply.step for apply in compilation.applied), ())  # names the one used twice
    streams: list[Stream] = []
    refuse_reserved(source.columns, "The source of the flow has")
    for name, output in outputs.items():
        refuse_reserved(output.columns, f"The output '{name}' of the pipeline has")
        _walk(_plan(output), Stream("", name), streams, _several(source))
    _refuse_what_cannot_run(steps, streams, outputs)
    read = graph(tuple(steps.values()), tuple(streams))
    return Traced(read, tuple(compilation.applied), compilation.key_types)


def _layout(apply: Apply, types: tuple[str, ...]) -> Layout:
    if apply.memory is None:
        return Layout(apply.operator.kind)
    time = "event time" if apply.memory.event else "the time of the clock"
    timers = time if apply.memory.on_timer else ""
    return Layout(KEYED, apply.step.keyed_by, types, timers, HASHED)


def splits(graph: Graph) -> bool:
    """Whether records are read more than once, in a pipeline that may be run batch by batch.

    Spark would compute what the branches share once for each of them. Only operators that handle
    every record by itself mean the same on a batch as on the stream.
    """
    native = {name for stream in graph.streams for name in stream.native}
    return bool(graph.forks()) and native <= _ROW_BY_ROW


def keeps_state(graph: Graph) -> bool:
    """Whether anything in a pipeline remembers, so that every batch must be computed."""
    native = {name for stream in graph.streams for name in stream.native}
    return any(step.keyed_by for step in graph.steps) or not native <= _ROW_BY_ROW


def _plan(frame: DataFrame) -> Any:
    session: Any = frame.sparkSession
    return session._jvm.tailrace.plan.LivePlan.read(frame._jdf)


def _several(source: DataFrame) -> Any:
    """The plan of a source of several streams, such as a union; None for a single stream."""
    session: Any = source.sparkSession
    alone = session._jvm.tailrace.plan.LivePlan.streams(source._jdf) == 1
    return None if alone else _plan(source)


def _walk(node: Any, stream: Stream, streams: list[Stream], whole: Any) -> None:
    """Follow the plan upstream to the named steps or the source.

    ``stream`` is the one being followed, backwards from its target: it collects native operators
    on the way, and its origin is not known yet. ``whole`` is a source made of several streams.
    """
    kind = node.nodeName()
    origin = None
    if kind == "MapInArrow" and node.functionExpr().name().startswith(STEP_PREFIX):
        origin = node.functionExpr().name().removeprefix(STEP_PREFIX)
    children = [node.children().apply(i) for i in range(node.children().size())]
    if whole is not None and node.sameResult(whole):
        origin = SOURCE
    if origin is None and not children:
        if not node.isStreaming():
            return  # the static side of a join: part of the native operators
        origin = SOURCE
    if origin is None:
        keyed_by = stream.keyed_by or _keys(node, kind)
        for child in children:
            further = replace(stream, native=(kind, *stream.native), keyed_by=keyed_by)
            _walk(child, further, streams, whole)
        return
    known = any(other.origin == origin for other in streams)
    streams.append(replace(stream, origin=origin))
    if not known and origin != SOURCE:
        for child in children:
            _walk(child, Stream("", origin), streams, whole)


def _keys(node: Any, kind: str) -> tuple[str, ...]:
    """The columns by which a Spark operator spreads records over partitions."""
    if kind not in _SPREADING:
        return ()
    keys = getattr(node, _SPREADING[kind])()
    names = (keys.apply(i).references() for i in range(keys.size()))
    return tuple(ref.head().name() for ref in names if ref.size())


def _refuse_what_cannot_run(
    steps: dict[str, Step],
    streams: list[Stream],
    outputs: dict[str, DataFrame],
) -> None:
    reached = {stream.origin for stream in streams}
    fed = {stream.target for stream in streams}
    for name in steps:
        if name not in reached:
            raise TraceError(
                f"Nothing that the pipeline returns depends on step '{name}': return its result "
                "too, or leave it out."
            )
    for name in (*steps, *outputs):
        if name not in fed:
            raise TraceError(
                f"'{name}' does not depend on the source of the flow: a pipeline must use the "
                "DataFrame that it is given."
            )
    if len(outputs) > 1:
        for stream in streams:
            stateful = _STATEFUL.intersection(stream.native)
            if stateful:
                raise TraceError(
                    f"A flow with several outputs cannot keep state across batches, and the path "
                    f"to '{stream.target}' has {min(stateful)}: make it a flow of its own."
                )


def _sentence(error: AnalysisException) -> str:
    """The first line of what Spark says, without its plans and error classes."""
    return (error.getMessage() or str(error)).strip().splitlines()[0]
