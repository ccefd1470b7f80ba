"""How a pipeline of named steps becomes a Spark plan.

Adjacent steps of one chain become one ``mapInArrow``. What a step turns into is decided by the
``Compilation`` that is active while the pipeline is called.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, LongType, StructType

from tailrace.errors import InputError
from tailrace.spark.pipeline.sending import require_sendable
from tailrace.spark.worker.chain import LAST, READ, RESERVED, TAG, Chain
from tailrace.spark.worker.keyed import KeyedOperator, StateSpec
from tailrace.state.partitions import home_of
from tailrace.state.place import state_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.accumulators import Accumulator

    from tailrace.graph import Graph, Step
    from tailrace.plan import Plan
    from tailrace.spark.pipeline.step import Apply
    from tailrace.spark.worker.meter import Meters
    from tailrace.spark.worker.operator import Operator
    from tailrace.spark.worker.telemetry import TelemetryClient

_MARK = {"tailrace.arrival": True}
"""The metadata by which ``jvm/src/tailrace/probe/Tag.java`` knows the column of arrival times."""

STEP_PREFIX = "tailrace:"
"""Prefix of the name of every chain's function, by which the tracer finds it in Spark's plan."""

_current: ContextVar[Compilation | None] = ContextVar("compilation", default=None)


def current() -> Compilation:
    """The compilation that is active; outside of any, one that makes each step a chain."""
    return _current.get() or Compilation()


@dataclass
class Compilation:
    """One call of a pipeline: the steps that it applied, and the chains made of them.

    Without a plan every step is a chain of its own, which is how a pipeline is traced.
    ``made_of`` may replace the result of a step by an equal DataFrame, such as a cached one.
    ``state_directory`` is where keyed steps keep their state. With ``telemetry`` the steps are
    compiled for real-time mode: they report as they run, and records carry their arrival time in a
    column that the pipeline does not see. ``redaction`` is the secret for hiding keys, if neither
    they nor records may be shown; ``watched`` is where hanging steps are reported in micro-batches.
    ``key_types`` collects, without a plan, the Spark types of the columns that keyed steps are
    keyed by.
    """

    plan: Plan | None = None
    graph: Graph | None = None
    meters: Accumulator[Meters] | None = None
    made_of: Callable[[DataFrame, str], DataFrame] | None = None
    telemetry: TelemetryClient | None = None
    state_directory: Path | None = None
    redaction: bytes | None = None
    watched: TelemetryClient | None = None
    applied: list[Apply] = field(default_factory=list)
    key_types: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _made: dict[int, tuple[DataFrame, DataFrame, tuple[Operator, ...]]] = field(
        default_factory=dict
    )

    @contextmanager
    def active(self) -> Iterator[None]:
        """While active, every step that is applied belongs to this compilation."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def apply(self, apply: Apply, frame: DataFrame) -> DataFrame:
        """Add a step after ``frame``, in the chain of its predecessor if so planned."""
        self.applied.append(apply)
        name = apply.step.name
        refuse_reserved(frame.columns, f"Step '{name}' gets")
        if self.plan is None and name != LAST:  # a flow is traced once, and compiled often
            memory = apply.memory
            state = (memory.initial, memory.on_timer) if memory else ()
            require_sendable(f"Step '{name}'", apply.function, *state)
        base, operators = self._joined(name, frame)
        operators = (*operators, self._operator(apply))
        if len(operators) == 1:
            base = self._spread(name, base if self.telemetry is None else carried(base))
        chain = Chain(
            operators,
            self.meters,
            self.telemetry,
            tagged=TAG in base.columns,
            redaction=self.redaction,
            watched=self.watched or self.telemetry,
        )
        result = self._run(base, chain, schema_of(apply.step))
        if self.made_of is not None:
            result = self.made_of(result, name)
        self._made[id(result)] = (result, base, operators)
        return result

    def _joined(self, name: str, frame: DataFrame) -> tuple[DataFrame, tuple[Operator, ...]]:
        """What a step's chain starts from, and the operators in it so far."""
        made = self._made.get(id(frame))
        if made is not None and self.plan is not None:
            _, before, earlier = made
            if name == LAST or earlier[-1].name in self.plan.chain_of(name):
                return before, earlier
        return frame, ()

    def _spread(self, name: str, base: DataFrame) -> DataFrame:
        """Give a step its planned partitions, with all records of a key in one."""
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
        if self.telemetry is None:
            return _map_in_arrow(base, chain, schema)
        tagged = TAG in base.columns
        whole = StructType([*schema.fields])
        if tagged:
            whole = whole.add(TAG, LongType(), metadata=_MARK)
        result = _map_in_arrow(base.withColumn(READ, sf.lit(0).cast("long")), chain, whole)
        return result.select(*(sf.col(f"`{name}`") for name in schema.names))

    def _keys(self, name: str, frame: DataFrame) -> tuple[str, ...]:
        """The columns by which the user partitioned records before a step, if still there."""
        keys = self.graph.keyed_by(name) if self.graph else ()
        return keys if set(keys) <= set(frame.columns) else ()

    def _operator(self, apply: Apply) -> Operator:
        step = apply.step
        schema = to_arrow_schema(schema_of(step), timezone="UTC")
        keyed_by = step.keyed_by or (self.graph.keyed_by(step.name) if self.graph else ())
        error, memory = str(step.on_error), self._memory(apply)
        redact = self.redaction is not None
        common = step.name, apply.function, schema, error, keyed_by, redact
        return apply.operator(*common) if memory is None else KeyedOperator(*common, memory=memory)

    def _memory(self, apply: Apply) -> StateSpec | None:
        if apply.memory is None or self.state_directory is None:
            return apply.memory
        home = home_of(state_place(self.state_directory, apply.step.name))
        return replace(apply.memory, directory=str(home))


@lru_cache(maxsize=1_000)
def _of_ddl(schema: str) -> DataType | None:
    """A schema as Spark's parser reads it, which is asked once; None if it cannot."""
    try:
        return StructType.fromDDL(schema)
    except ParseException:
        return None


def schema_of(step: Step) -> StructType:
    """The schema of a step's results, as Spark's type."""
    parsed = _of_ddl(step.schema)
    if not isinstance(parsed, StructType) or not parsed.names:
        raise InputError(
            f"The schema {step.schema!r} of step '{step.name}' cannot be read: write columns and "
            "types, as in 'user string, score double'."
        )
    if len(set(parsed.names)) < len(parsed.names):
        raise InputError(
            f"The schema {step.schema!r} of step '{step.name}' has two columns of the same name: "
            "give each a name of its own."
        )
    refuse_reserved(parsed.names, f"Step '{step.name}' makes")
    return parsed


def refuse_reserved(columns: Iterable[str], where: str) -> None:
    """Refuse columns whose names are reserved for the columns that Tailrace adds."""
    for column in columns:
        if column.lower().startswith(RESERVED):
            raise InputError(
                f"{where} a column {column!r}, and Tailrace reserves names that begin with "
                f"{RESERVED!r}: give it another name."
            )


def tagged(frame: DataFrame, arrived_us: Column) -> DataFrame:
    """The same records, with their arrival time in a hidden column."""
    visible = [sf.col(f"`{column}`") for column in frame.columns]
    return frame.select(*visible, arrived_us.alias(TAG, metadata=_MARK)).select(*visible)


def carried(frame: DataFrame) -> DataFrame:
    """The same records, with their arrival time as the last column if it is still known."""
    session: Any = frame.sparkSession
    return DataFrame(session._jvm.tailrace.probe.Tag.carried(frame._jdf), frame.sparkSession)


def lost_in(frame: DataFrame) -> str:
    """The Spark operator that dropped the arrival time of records, if one did."""
    session: Any = frame.sparkSession
    return str(session._jvm.tailrace.probe.Tag.lostIn(frame._jdf))


def _map_in_arrow(frame: DataFrame, chain: Chain, schema: StructType) -> DataFrame:
    def run(batches: Any) -> Any:
        return chain(batches)

    run.__name__ = STEP_PREFIX + chain.name
    return frame.mapInArrow(run, schema)
