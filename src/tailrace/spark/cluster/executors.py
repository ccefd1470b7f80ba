"""The executors of a session: how many there are, more of them, fewer of them.

Through Spark's developer API, which standalone, YARN and Kubernetes serve alike. A request is only
a wish: the cluster answers "yes" to any number, and what it cannot give it gives never. So what was
asked for is held against what came, and a wish that stays open is reported.

An executor that has just come is cold: its first task starts Python and loads thousands of
classes, which takes seconds, and a batch waits for its last task. So a new executor is first given
tasks that do all that and nothing else, on every slot it has. Batches are kept off it until then.
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
"""How long executors may take to come before the cluster is taken to have no more."""

REFUSED_S = 10.0
"""How long an executor that was busy when it should go is left alone, and how long a cluster that
did not answer is."""

REFUSALS = 3
"""So often an executor may be busy when it should go before it is taken to stay."""

WARMING = pa.schema([pa.field("x", pa.int32())])
WARM_UPS = 2
"""How often a new executor is warmed up: what was loaded the first time runs fast the second."""


@dataclass(slots=True)
class _Wish:
    """How many executors were asked for, since when fewer are there, and who heard it."""

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
    """The executors of a running session, and how to have another number of them.

    ``warm_up``, once it is set, is called with the id of each one that comes, in a thread of its
    own, before it is taken to be ready. ``now_s`` is the clock, for tests.
    """

    def __init__(self, spark: SparkSession, now_s: Callable[[], float] = time.monotonic) -> None:
        """Take charge of them; refuses a session that has none to take charge of.

        Those that are there already are taken to be warm.
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
        for known in self._known:  # one that has just come may still be kept for a warm-up
            self._pool.release(self._context, known)
        self._warming: set[str] = set()

    @property
    def requested(self) -> int | None:
        """How many the cluster was asked for last; None if it was not."""
        return None if self._wish is None else self._wish.total

    def there(self) -> tuple[str, ...]:
        """The executors that take tasks, oldest first."""
        return tuple(sorted(self._pool.ready(self._context), key=int))

    def ready(self) -> tuple[str, ...]:
        """Those of them that are warm; what is new begins to warm up."""
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
        """Warm an executor up; one that cannot be is taken as it is."""
        try:
            warm_up(new)
        except (Py4JError, PySparkException) as error:
            _LOG.info("Executor %s was not warmed up: %s", new, told(error))
        finally:
            self._pool.release(self._context, new)
            self._warming.discard(new)

    def ask_for(self, total: int) -> None:
        """Have the cluster bring the number up to ``total``; none ends for a lower one.

        What ``spark.cores.max`` forbids is refused here: the cluster would not say so. One that
        does not answer is asked again a while later.
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
        """The executors beyond the number asked for, the newest, which know least by heart."""
        if self._wish is None:
            return ()
        now_s = self._now_s()
        willing = [i for i in self.there() if self._kept_until_s.get(i, 0.0) <= now_s]
        return tuple(willing[self._wish.total :])

    def end_surplus(self) -> tuple[str, ...]:
        """End those, except for any that has a task to finish; the ones that end.

        To be called between two batches, when no task of the flow runs: nothing is then repeated.
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
        """What to tell of a wish that the cluster does not fulfil; None while it may yet."""
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
            return f"{said}{PATIENCE_S:.0f} s: the cluster manager does not answer; look after it."
        return (
            f"{said}{PATIENCE_S:.0f} s: the cluster has no worker with {self.cores} cores and the "
            "memory of an executor free; add workers, or ask for fewer."
        )

    def _staying(self, beyond: Sequence[str]) -> str | None:
        """What to tell of executors that were busy each time that they should have gone."""
        if not beyond or any(self._refusals[one] < REFUSALS for one in beyond):
            return None
        for one in beyond:
            del self._refusals[one]
        return (
            f"{len(beyond)} executors more than the flow wants stay, since they have tasks of "
            "other queries each time that they should go: give those a session of their own."
        )


def _answered(ask: Callable[[], _T], otherwise: _T) -> _T:
    """What the cluster manager answers, or something else if it is not reached."""
    try:
        return ask()
    except Py4JError as error:
        _LOG.warning("The cluster manager was not reached: %s", told(error))
        return otherwise


def warmer(spark: SparkSession, cores: int, functions: tuple[object, ...]) -> Callable[[str], None]:
    """What warms up an executor of so many cores, for flows whose steps call these functions.

    Python gets them along, so that what they import is imported there; but they are not called. A
    step that does nothing is, as theirs will be: the first Arrow array that is made of a list has
    pyarrow import pandas, a third of a second. Its records are then shuffled, as records are.
    """
    session: Any = spark
    pool = session._jvm.tailrace.cluster.ExecutorPool

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _ = functions  # what a function speaks of travels with it
        return Chain((RowOperator("warm-up", itemgetter(0), WARMING, "fail"),))(batches)

    def warm_up(executor: str) -> None:
        spark.sparkContext.setLocalProperty(pool.WARMS, executor)
        for _ in range(WARM_UPS):
            rows = pool.rowsOn(session._jsparkSession, executor, cores)
            compute(DataFrame(rows, spark).mapInArrow(held, "x int").repartition(1))

    return warm_up


def _obstacle(spark: SparkSession, context: Any, jvm: Any) -> str | None:
    """Why the number of executors is not ours to change, and what would make it so."""
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
            "Spark's dynamic allocation is on and would pull the other way; set "
            "spark.dynamicAllocation.enabled=false, or let tailrace.session(executors=...) build "
            "the session."
        )
    if conf_of(spark, "spark.executor.cores") is None:
        return (
            "an executor takes all cores of its worker unless it is told how many; set "
            "spark.executor.cores."
        )
    return None
