"""The executors of a session: counting, adding and removing them.

This uses Spark's developer API, which works on standalone, YARN and Kubernetes. A request is only a
wish: the cluster answers "yes" to any number, even if it can never provide it. So requests are
compared with what came, and a wish that stays open is reported.

A new executor is cold: its first task starts Python and loads thousands of classes, which takes
seconds, and a batch waits for its last task. So a new executor first gets tasks that do just that,
on every slot it has. Batches are kept off it until then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.failures import told
from tailrace.spark.jvm.java import JAR
from tailrace.spark.settings import conf_of
from tailrace.spark.sinks import compute
from tailrace.spark.worker.chain import Chain
from tailrace.spark.worker.operator import RowOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")

PATIENCE_S = 45.0
"""How long executors may take to come before the cluster is assumed to have no more."""

REFUSED_S = 10.0
"""How long to wait before trying again to remove a busy executor, or to reach a cluster that did
not answer."""

REFUSALS = 3
"""How often an executor may be busy when it should go before it is assumed to stay."""

WARMING = pa.schema([pa.field("x", pa.int32())])
WARM_UPS = 2
"""How often a new executor is warmed up: the first run loads code, the second makes it fast."""


@dataclass(slots=True)
class _Wish:
    """How many executors were asked for, since when some are missing, and if that got through."""

    total: int
    since_s: float
    heard: bool
    asked_s: float


_IN_CHARGE: dict[str, str] = {}
_CHARGE = threading.Lock()


@contextmanager
def in_charge(spark: SparkSession, flow: str) -> Iterator[None]:
    """Let one flow decide on the executors of a session; two would ask for different numbers."""
    application = spark.sparkContext.applicationId
    with _CHARGE:
        if application in _IN_CHARGE:
            raise EnvironmentUnfit(
                f"Flow '{_IN_CHARGE[application]}' decides on the executors of this session: stop "
                f"it first, leave out executors=... of '{flow}', or give it another session."
            )
        _IN_CHARGE[application] = flow
    try:
        yield
    finally:
        with _CHARGE:
            del _IN_CHARGE[application]


class Executors:
    """The executors of a running session, and how to change their number.

    ``warm_up``, once it is set, is called with the id of each new executor, in a separate thread,
    before it counts as ready. ``now_s`` is the clock, for tests.
    """

    def __init__(self, spark: SparkSession, now_s: Callable[[], float] = time.monotonic) -> None:
        """Take charge of them; refuses a session whose executors cannot be changed.

        Existing executors are assumed to be warm.
        """
        context: Any = spark.sparkContext
        self._context = context._jsc.sc()
        self._pool = context._jvm.tailrace.cluster.ExecutorPool
        self._jvm = context._jvm
        self._now_s = now_s
        obstacle = _obstacle(spark, self._context, self._jvm)
        if obstacle:
            raise EnvironmentUnfit(f"The number of executors cannot be changed here: {obstacle}")
        self.cores = int(conf_of(spark, "spark.executor.cores") or 1)
        self._pool.guard(self._context, self.cores)
        allowed = conf_of(spark, "spark.cores.max")
        self.most = None if allowed is None else max(1, int(allowed) // self.cores)
        self._wish: _Wish | None = None
        self._kept_until_s: dict[str, float] = {}
        self._refusals = Counter[str]()
        self.warm_up: Callable[[str], None] | None = None
        self._known = set(self.there())
        for known in self._known:  # a new one may still be held for a warm-up
            self._pool.release(self._context, known)
        self._warming: set[str] = set()

    @property
    def requested(self) -> int | None:
        """How many the cluster was last asked for; None if it was not asked."""
        return None if self._wish is None else self._wish.total

    def there(self) -> tuple[str, ...]:
        """The executors that take tasks, oldest first."""
        return tuple(sorted(self._pool.ready(self._context), key=int))

    def ready(self) -> tuple[str, ...]:
        """Those of them that are warm; new ones start to warm up."""
        there = self.there()
        for new in set(there) - self._known:
            self._known.add(new)
            if self.warm_up is None:
                self._pool.release(self._context, new)
                continue
            self._warming.add(new)
            how = (new, self.warm_up)
            threading.Thread(target=self._warmed, args=how, daemon=True).start()
        return tuple(one for one in there if one not in self._warming)

    def _warmed(self, new: str, warm_up: Callable[[str], None]) -> None:
        """Warm up an executor; if that fails, use it as it is."""
        try:
            warm_up(new)
        except (Py4JError, PySparkException) as error:
            _LOG.info("Executor %s was not warmed up: %s", new, told(error))
        finally:
            self._pool.release(self._context, new)
            self._warming.discard(new)

    def ask_for(self, total: int) -> None:
        """Ask the cluster to bring the number up to ``total``; a lower number ends none.

        More than ``spark.cores.max`` allows is refused here: the cluster would not say so. A
        cluster that does not answer is asked again a while later.
        """
        now_s, wish = self._now_s(), self._wish
        if wish is not None and wish.total != total:
            wish = None
        if wish is not None and (wish.heard or now_s < wish.asked_s + REFUSED_S):
            return
        if self.most is not None and total > self.most:
            raise EnvironmentUnfit(
                f"{total} executors of {self.cores} cores are more than spark.cores.max allows, "
                f"which is {self.most}: raise it to {total * self.cores}."
            )
        nowhere = self._jvm.scala.collection.immutable.HashMap()
        heard = _answered(
            lambda: bool(self._context.requestTotalExecutors(total, 0, nowhere)), False
        )
        self._wish = _Wish(total, now_s if wish is None else wish.since_s, heard, self._now_s())

    def surplus(self) -> tuple[str, ...]:
        """The executors beyond the number asked for: the newest, which have cached least."""
        if self._wish is None:
            return ()
        now_s = self._now_s()
        willing = [i for i in self.there() if self._kept_until_s.get(i, 0.0) <= now_s]
        return tuple(willing[self._wish.total :])

    def end_surplus(self) -> tuple[str, ...]:
        """End the surplus, except executors that are running a task; returns those that end.

        To be called between two batches, when no task of the flow runs, so that none is repeated.
        """
        surplus = self.surplus()
        if not surplus:
            return ()
        ended = _answered(lambda: tuple(self._pool.remove(self._context, list(surplus))), ())
        again_s = self._now_s() + REFUSED_S
        refused = [i for i in surplus if i not in ended]
        self._kept_until_s |= dict.fromkeys(refused, again_s)
        self._refusals.update(refused)
        return ended

    def missing(self) -> str | None:
        """Why a wish is not fulfilled, as a sentence; None if it is, or still may be."""
        wish, there = self._wish, self.there()
        if wish is None:
            return None
        if len(there) >= wish.total:
            wish.since_s = self._now_s()
            return self._staying(there[wish.total :])
        if self._now_s() - wish.since_s < PATIENCE_S:
            return None
        said = f"{wish.total} executors were asked for and {len(there)} are there after "
        if not wish.heard:
            return f"{said}{PATIENCE_S:.0f} s: the cluster manager does not answer; check on it."
        return (
            f"{said}{PATIENCE_S:.0f} s: the cluster has no worker with {self.cores} cores and the "
            "memory of an executor free; add workers, or ask for fewer."
        )

    def _staying(self, beyond: Sequence[str]) -> str | None:
        """A sentence on executors that were busy each time they should have gone, if any."""
        if not beyond or any(self._refusals[one] < REFUSALS for one in beyond):
            return None
        for one in beyond:
            del self._refusals[one]
        return (
            f"{len(beyond)} executors more than the flow wants stay, since they run tasks of "
            "other queries each time they should go: give those a session of their own."
        )


def _answered(ask: Callable[[], _T], otherwise: _T) -> _T:
    """The cluster manager's answer, or ``otherwise`` if it cannot be reached."""
    try:
        return ask()
    except Py4JError as error:
        _LOG.warning("The cluster manager was not reached: %s", told(error))
        return otherwise


def warmer(spark: SparkSession, cores: int, functions: tuple[object, ...]) -> Callable[[str], None]:
    """A function that warms up executors with this many cores, for steps with these functions.

    Python receives the functions, so that it imports what they import; but they are not called. A
    step that does nothing is run the way theirs will be: the first Arrow array made from a list
    has pyarrow import pandas, which takes a third of a second. Its records are then shuffled.
    """
    session: Any = spark
    pool = session._jvm.tailrace.cluster.ExecutorPool

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _ = functions  # what a function refers to is sent with it
        return Chain((RowOperator("warm-up", itemgetter(0), WARMING, "fail"),))(batches)

    def warm_up(executor: str) -> None:
        spark.sparkContext.setLocalProperty(pool.WARMS, executor)
        for _ in range(WARM_UPS):
            rows = pool.rowsOn(session._jsparkSession, executor, cores)
            compute(DataFrame(rows, spark).mapInArrow(held, "x int").repartition(1))

    return warm_up


def _obstacle(spark: SparkSession, context: Any, jvm: Any) -> str | None:
    """Why the number of executors cannot be changed, and how to make it possible."""
    if not isinstance(jvm.tailrace.cluster.ExecutorPool, JavaClass):
        return (
            f"the session was built without {JAR.name}; build it with tailrace.session(), or name "
            f"{JAR} in spark.jars and spark.driver.extraClassPath."
        )
    if context.isLocal() or not jvm.tailrace.cluster.ExecutorPool.isElastic(context):
        return (
            "the session runs in one process and has no executors; use a cluster, such as one of "
            "'tailrace cluster start'."
        )
    if context.executorAllocationManager().isDefined():
        return (
            "Spark's dynamic allocation is on and would interfere; set "
            "spark.dynamicAllocation.enabled=false, or let tailrace.session(executors=...) build "
            "the session."
        )
    if conf_of(spark, "spark.executor.cores") is None:
        return "an executor takes all cores of its worker by default; set spark.executor.cores."
    return None
