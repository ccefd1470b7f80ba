"""Named steps: functions from DataFrame to DataFrame.

So they compose with ``DataFrame.transform`` and with everything else in Spark. The active
``Compilation`` (``compilation.py``) decides what each of them turns into.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tailrace.errors import InputError
from tailrace.graph import OnError, Step
from tailrace.spark.pipeline.compilation import current
from tailrace.spark.worker.chain import LAST
from tailrace.spark.worker.keyed import KeyedOperator, StateSpec
from tailrace.spark.worker.operator import BatchOperator, FlatOperator, RowOperator
from tailrace.state.keyed import initial_maker
from tailrace.units import duration_ms, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from tailrace.spark.worker.operator import Operator
    from tailrace.state.state import State


@dataclass(frozen=True, slots=True)
class Apply:
    """A named step as a function from DataFrame to DataFrame."""

    step: Step
    operator: type[Operator]
    function: Callable[..., Any]
    memory: StateSpec | None = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Apply the step: as the active compilation decides, or on its own outside of one."""
        return current().apply(self, frame)


class Options(TypedDict, total=False):
    """The options of any step.

    ``chain``: whether it may share a hand-over to Python with its neighbours (by default True).
    ``scale``: the smallest and largest number of partitions that it may run on, if it is to have
    its own. ``on_error``: what to do with a record on which it raises: ``"fail"`` (the default),
    ``"drop"`` or ``"dead-letter"``.
    """

    chain: bool
    scale: tuple[int, int]
    on_error: str


def step(
    name: str, function: Callable[[Any], Any], schema: str, **options: Unpack[Options]
) -> Apply:
    """A step that makes one record of each record.

    ``function`` takes a record, readable by attribute (``row.user``), and returns a tuple in the
    order of ``schema``, a dict by name, or the bare value if the schema has one column. ``name``
    is what constraints, reports and errors call the step; ``schema`` is what it returns, as in
    ``"user string, score double"``. For the rest see ``Options``.
    """
    return _apply(RowOperator, name, function, schema, options)


def flat_step(
    name: str, function: Callable[[Any], Any], schema: str, **options: Unpack[Options]
) -> Apply:
    """A step that makes any number of records of each record; ``function`` yields them."""
    return _apply(FlatOperator, name, function, schema, options)


def batch_step(
    name: str, function: Callable[[Any], Any], schema: str, **options: Unpack[Options]
) -> Apply:
    """A columnar step: ``function`` turns a ``pyarrow.RecordBatch`` into another one.

    The fastest kind, since records are never handled one by one.
    """
    return _apply(BatchOperator, name, function, schema, options)


def keyed_step(
    name: str,
    function: Callable[[Any, list[Any], State], Any],
    schema: str,
    *,
    key: str | tuple[str, ...],
    state: dict[Any, Any] | Callable[[], dict[Any, Any]] | None = None,
    on_timer: Callable[[Any, State], Any] | None = None,
    event: str | None = None,
    lateness: str | float = 0.0,
    limit: str | int = "1 GiB",
    formerly: str | None = None,
    **options: Unpack[Options],
) -> Apply:
    """A step that remembers something for every key.

    ``function(key, rows, state)`` gets the records of one key that came together, as a list, and
    the state of the key: a dict of plain data that it reads and changes; it yields records. All
    records of a key go to one partition, in the order in which they came.

    State is written when a batch ends, under the id of the batch: after any crash it is as it was
    at the end of the last committed batch, in micro-batches and in real-time mode alike.

    Args:
        name: what constraints, reports and errors call the step.
        function: the function to call with the records of a key.
        schema: what it yields, as in ``"user string, n long"``.
        key: the column, or the columns, whose values are the key.
        state: the initial state of a key: a dict, or a function that returns one.
        on_timer: ``(key, state)``, called when a timer that ``state.wake(when)`` set is due; it
            yields records too.
        event: a timestamp column. With it timers are in event time: they are due when the newest
            event that the partition has seen, less ``lateness``, has passed them. Without it they
            are due by the clock.
        lateness: how far behind the newest event another event may be.
        limit: how many bytes the state of one partition may take; more fails the flow.
        formerly: the name that the step had when the checkpoint was written, if it was renamed.
        **options: see ``Options``.
    """
    columns = (key,) if isinstance(key, str) else tuple(key)
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise InputError(f"Step '{name}' has key={key!r}: name a column, or a tuple of columns.")
    if on_timer is not None and not callable(on_timer):
        kind = type(on_timer).__name__
        raise InputError(f"Step '{name}' has an on_timer of type {kind}, which cannot be called.")
    initial_maker(name, state)  # refuses an invalid state
    made = _apply(KeyedOperator, name, function, schema, options)
    lateness_us = round(duration_ms(lateness) * 1e3)
    memory = StateSpec(columns, state, on_timer, event, lateness_us, size_bytes(limit))
    return replace(
        made,
        step=replace(made.step, keyed_by=columns, timed=on_timer is not None, formerly=formerly),
        memory=memory,
    )


def last_step(function: Callable[[Any], object]) -> Apply:
    """The step that stands for a sink which calls a function with every record."""

    def done(row: Any) -> bool:
        function(row)
        return True

    return Apply(Step(LAST, "done boolean"), RowOperator, done)


def _apply(
    operator: type[Operator],
    name: str,
    function: Callable[..., Any],
    schema: str,
    options: Options,
) -> Apply:
    if not callable(function):
        kind = type(function).__name__
        raise InputError(f"Step '{name}' was given a value of type {kind}, which cannot be called.")
    on_error = options.get("on_error", "fail")
    if on_error not in set(OnError):
        raise InputError(
            f"Step '{name}' has on_error={on_error!r}: write 'fail', 'drop' or 'dead-letter'."
        )
    chain, scale = options.get("chain", True), options.get("scale")
    return Apply(Step(name, schema, chain, scale, OnError(on_error)), operator, function)
