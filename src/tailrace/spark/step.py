"""Named steps, and how a pipeline of them becomes a Spark plan.

``step``, ``flat_step`` and ``batch_step`` return functions from DataFrame to DataFrame, so that
they compose with ``DataFrame.transform`` and with everything else in Spark. Inside a flow, a
``Compilation`` decides what each of them turns into: adjacent steps of one chain become one
``mapInArrow``.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from urllib.parse import quote

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, LongType, StructType

from tailrace.errors import InputError
from tailrace.flow import OnError, Step
from tailrace.spark.chain import LAST, READ, RESERVED, TAG, Chain
from tailrace.spark.keyed import Memory
from tailrace.spark.link import Link
from tailrace.spark.sending import require_sendable
from tailrace.state.keyed import initial_maker
from tailrace.state.partitions import home_of
from tailrace.units import duration_ms, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.accumulators import Accumulator

    from tailrace.flow import Graph
    from tailrace.plan import Plan
    from tailrace.spark.beacon import Beacon
    from tailrace.spark.meter import Meters
    from tailrace.state.state import State

_MARK = {"tailrace.arrival": True}
"""The metadata by which ``jvm/src/tailrace/probe/Tag.java`` knows the column of arrival times."""

LONGEST_NAME = 200
"""Characters in the name of a step's directory: file systems take 255 bytes, and some add to it."""

STEP_PREFIX = "tailrace:"
"""Starts the name of every chain's function, by which the tracer finds it in Spark's plan."""


@dataclass(frozen=True, slots=True)
class Remembers:
    """What a keyed step was told of its state."""

    initial: Any
    on_timer: Callable[..., Any] | None
    event: str | None
    lateness_ms: float
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Apply:
    """A named step as a function from DataFrame to DataFrame."""

    step: Step
    kind: str
    function: Callable[..., Any]
    remembers: Remembers | None = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Apply the step: as the flow under compilation decides, or on its own outside one."""
        compilation = _current.get() or Compilation()
        return compilation.apply(self, frame)


class Options(TypedDict, total=False):
    """What may be said of any step.

    ``chain``: whether it may share a hand-over to Python with its neighbours (True). ``scale``:
    the smallest and largest number of partitions that it may run on, if it is to have its own.
    ``on_error``: what to do with a record on which it raises: ``"fail"`` (the default),
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
    is how constraints, reports and errors speak of the step; ``schema`` is what it returns, as in
    ``"user string, score double"``. For the rest see ``Options``.
    """
    return _apply("row", name, function, schema, options)


def flat_step(
    name: str, function: Callable[[Any], Any], schema: str, **options: Unpack[Options]
) -> Apply:
    """A step that makes any number of records of each record; ``function`` yields them."""
    return _apply("flat", name, function, schema, options)


def batch_step(
    name: str, function: Callable[[Any], Any], schema: str, **options: Unpack[Options]
) -> Apply:
    """A columnar step: ``function`` turns a ``pyarrow.RecordBatch`` into another one.

    The fastest kind, since no record is ever looked at on its own.
    """
    return _apply("batch", name, function, schema, options)


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
    """A step that remembers something of every key.

    ``function(key, rows, state)`` gets the records of one key that came together, as a list, and
    the state of the key: a dict of plain data that it reads and changes; it yields records. All
    records of a key go to one partition, in the order in which they came.

    State is written when a batch ends, under the id of the batch: after any crash it is what it
    was when the last committed batch ended, in micro-batches and in real-time mode alike.

    Args:
        name: how constraints, reports and errors speak of the step.
        function: what is done with the records of a key.
        schema: what it yields, as in ``"user string, n long"``.
        key: the column, or the columns, whose values are the key.
        state: what a new key begins with: a dict, or a function that returns one.
        on_timer: ``(key, state)``, called when a timer that ``state.wake(when)`` set is due; it
            yields records too.
        event: a timestamp column. With it timers are in event time: they are due when the newest
            event that the partition has seen, less ``lateness``, has passed them. Without it they
            are due by the clock.
        lateness: how far behind the newest event another may come.
        limit: what the state of one partition may take, in bytes; more fails the flow.
        formerly: the name that the step had when the checkpoint was written, if it was renamed.
        **options: see ``Options``.
    """
    columns = (key,) if isinstance(key, str) else tuple(key)
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise InputError(f"Step '{name}' has key={key!r}: name a column, or a tuple of columns.")
    if on_timer is not None and not callable(on_timer):
        kind = type(on_timer).__name__
        raise InputError(f"Step '{name}' has an on_timer of type {kind}, which cannot be called.")
    initial_maker(name, state)  # refuses what cannot be a state
    made = _apply("keyed", name, function, schema, options)
    remembers = Remembers(state, on_timer, event, duration_ms(lateness), size_bytes(limit))
    return replace(
        made,
        step=replace(made.step, keyed_by=columns, timed=on_timer is not None, formerly=formerly),
        remembers=remembers,
    )


def last_step(function: Callable[[Any], object]) -> Apply:
    """The step that a sink is which hands every record to a function."""

    def done(row: Any) -> bool:
        function(row)
        return True

    return Apply(Step(LAST, "done boolean"), "row", done)


def _apply(
    kind: str, name: str, function: Callable[..., Any], schema: str, options: Options
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
    return Apply(Step(name, schema, chain, scale, OnError(on_error)), kind, function)


@lru_cache(maxsize=1_000)
def _of_ddl(schema: str) -> DataType | None:
    """A schema as Spark's parser reads it, which is asked once; None if it cannot."""
    try:
        return StructType.fromDDL(schema)
    except ParseException:
        return None


def _parsed(step: Step) -> StructType:
    parsed = _of_ddl(step.schema)
    if not isinstance(parsed, StructType) or not parsed.names:
        raise InputError(
            f"The schema {step.schema!r} of step '{step.name}' cannot be read: write columns and "
            "types, as in 'user string, score double'."
        )
    if len(set(parsed.names)) < len(parsed.names):
        raise InputError(
            f"The schema {step.schema!r} of step '{step.name}' has two columns of one name: give "
            "each a name of its own."
        )
    refuse_reserved(parsed.names, f"Step '{step.name}' makes")
    return parsed


def refuse_reserved(columns: Iterable[str], where: str) -> None:
    """Refuse columns whose names are those of the columns that Tailrace adds."""
    for column in columns:
        if column.lower().startswith(RESERVED):
            raise InputError(
                f"{where} a column {column!r}, and Tailrace keeps names that begin with "
                f"{RESERVED!r} for itself: give it another name."
            )


@dataclass
class Compilation:
    """One reading of a pipeline: which steps it met, and the chains that it made of them.

    Without a plan every step is a chain of its own, which is how a pipeline is traced.
    ``made_of`` may replace what a step made by an equal DataFrame, such as a cached one.
    ``state_directory`` is where keyed steps keep their state. With a ``beacon`` the steps are
    compiled for real-time mode: they report as they run, and records bear the time of their
    arrival in a column that the pipeline does not see. ``redaction`` is the secret that keys are
    hidden by, where neither they nor records may be shown, ``watched`` where steps that hang are
    heard of in micro-batches. ``key_types`` gathers, without a plan, the Spark types of the columns
    that keyed steps are keyed by.
    """

    plan: Plan | None = None
    graph: Graph | None = None
    meters: Accumulator[Meters] | None = None
    made_of: Callable[[DataFrame, str], DataFrame] | None = None
    beacon: Beacon | None = None
    state_directory: Path | None = None
    redaction: bytes | None = None
    watched: Beacon | None = None
    applied: list[Apply] = field(default_factory=list)
    key_types: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _made: dict[int, tuple[DataFrame, DataFrame, tuple[Link, ...]]] = field(default_factory=dict)

    @contextmanager
    def active(self) -> Iterator[None]:
        """While active, every step that is applied belongs to this compilation."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def apply(self, apply: Apply, frame: DataFrame) -> DataFrame:
        """Add a step to what ``frame`` holds, in the chain of its predecessor where planned."""
        self.applied.append(apply)
        name = apply.step.name
        refuse_reserved(frame.columns, f"Step '{name}' gets")
        if self.plan is None and name != LAST:  # a flow is traced once, and compiled often
            said = apply.remembers
            state = (said.initial, said.on_timer) if said else ()
            require_sendable(f"Step '{name}'", apply.function, *state)
        base, links = self._joined(name, frame)
        links = (*links, self._link(apply))
        if len(links) == 1:
            base = self._spread(name, base if self.beacon is None else carried(base))
        chain = Chain(
            links,
            self.meters,
            self.beacon,
            tagged=TAG in base.columns,
            redaction=self.redaction,
            watched=self.watched or self.beacon,
        )
        result = self._run(base, chain, _parsed(apply.step))
        if self.made_of is not None:
            result = self.made_of(result, name)
        self._made[id(result)] = (result, base, links)
        return result

    def _joined(self, name: str, frame: DataFrame) -> tuple[DataFrame, tuple[Link, ...]]:
        """What a step's chain starts from, and the links in it so far."""
        made = self._made.get(id(frame))
        if made is not None and self.plan is not None:
            _, before, earlier = made
            if name == LAST or earlier[-1].name in self.plan.chain_of(name):
                return before, earlier
        return frame, ()

    def _spread(self, name: str, base: DataFrame) -> DataFrame:
        """Give a step the partitions that the plan has for it, all records of a key in one."""
        step = self.applied[-1].step
        missing = set(step.keyed_by) - set(base.columns)
        if missing:
            raise InputError(
                f"Step '{name}' is keyed by {min(missing)!r}, which is not among the columns that "
                f"reach it: {', '.join(base.columns)}."
            )
        if self.plan is None:
            if not step.keyed_by:
                return base
            types = (base.schema[column].dataType for column in step.keyed_by)
            self.key_types[name] = tuple(kind.simpleString() for kind in types)
            return base.repartition(*step.keyed_by)
        if name not in self.plan.partitions:
            return base
        keys = step.keyed_by or self._keys(name, base)
        return base.repartition(self.plan.partitions[name], *keys)

    def _run(self, base: DataFrame, chain: Chain, schema: StructType) -> DataFrame:
        if self.beacon is None:
            return _map_in_arrow(base, chain, schema)
        tagged = TAG in base.columns
        whole = StructType([*schema.fields])
        if tagged:
            whole = whole.add(TAG, LongType(), metadata=_MARK)
        result = _map_in_arrow(base.withColumn(READ, sf.lit(0).cast("long")), chain, whole)
        return result.select(*(sf.col(f"`{name}`") for name in schema.names))

    def _keys(self, name: str, frame: DataFrame) -> tuple[str, ...]:
        """The columns that the user spread records by on the way to a step, if still there."""
        keys = self.graph.keyed_by(name) if self.graph else ()
        return keys if set(keys) <= set(frame.columns) else ()

    def _link(self, apply: Apply) -> Link:
        step = apply.step
        schema = to_arrow_schema(_parsed(step), timezone="UTC")
        keyed_by = step.keyed_by or (self.graph.keyed_by(step.name) if self.graph else ())
        error, memory = str(step.on_error), self._memory(apply)
        redact = self.redaction is not None
        return Link(step.name, apply.kind, apply.function, schema, error, keyed_by, memory, redact)

    def _memory(self, apply: Apply) -> Memory | None:
        said = apply.remembers
        if said is None or self.state_directory is None:
            return None
        return Memory(
            apply.step.keyed_by,
            said.initial,
            said.on_timer,
            said.event,
            round(said.lateness_ms * 1e3),
            said.limit_bytes,
            str(home_of(state_place(self.state_directory, apply.step.name))),
        )


def state_place(directory: Path, step: str) -> Path:
    """Where a keyed step keeps its state; its name may hold what a file's name may not.

    A name of dots alone would lead out of the directory, and a long one is more than file systems
    take: the dots are written as a slash is, and of a long name a part with the hash of it all.
    """
    written = quote(step, safe=" ")
    if not written.strip("."):
        written = written.replace(".", "%2E")
    if len(written) > LONGEST_NAME:
        digest = sha256(step.encode("utf-8", "surrogatepass")).hexdigest()
        written = f"{written[: LONGEST_NAME - len(digest) - 1]}~{digest}"
    return directory / written


def tagged(frame: DataFrame, arrived_us: Column) -> DataFrame:
    """The same records, bearing the time of their arrival in a column that is not seen."""
    visible = [sf.col(f"`{column}`") for column in frame.columns]
    return frame.select(*visible, arrived_us.alias(TAG, metadata=_MARK)).select(*visible)


def carried(frame: DataFrame) -> DataFrame:
    """The same records with the time of their arrival as last column, where it is still known."""
    session: Any = frame.sparkSession
    return DataFrame(session._jvm.tailrace.probe.Tag.carried(frame._jdf), frame.sparkSession)


def lost_in(frame: DataFrame) -> str:
    """The operator of Spark's in which records lost the time of their arrival, if they did."""
    session: Any = frame.sparkSession
    return str(session._jvm.tailrace.probe.Tag.lostIn(frame._jdf))


def _map_in_arrow(frame: DataFrame, chain: Chain, schema: StructType) -> DataFrame:
    def run(batches: Any) -> Any:
        return chain(batches)

    run.__name__ = STEP_PREFIX + chain.name
    return frame.mapInArrow(run, schema)


_current: ContextVar[Compilation | None] = ContextVar("compilation", default=None)
