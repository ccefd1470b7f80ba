"""What it costs to run: cores, executors, money or watts, all behind one question.

A cost says what ``size`` units of a speed grade take while they run, in a unit of its own (cores,
executors, money an hour, watts). A scaler only weighs such costs against each other, so no unit has
to be made into another one.

A speed grade is the second thing that a scaler may choose beside the number of units: a type of
machine, a number of cores for each task, a frequency. Spark itself sets no frequency and reads no
meter, so power is a model here (De Matteis 2016, eq. 6.11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Protocol

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Grade:
    """A kind of unit: how fast it is, against one of speed 1, and what its costs follow from.

    ``price_per_h`` is the money for one unit and hour, ``ghz`` its frequency and ``volts`` its
    voltage; each is needed only by the cost that asks for it.
    """

    name: str = "standard"
    speed: float = 1.0
    price_per_h: float | None = None
    ghz: float | None = None
    volts: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no machine has."""
        for what, value in (
            ("speed", self.speed),
            ("price_per_h", self.price_per_h),
            ("ghz", self.ghz),
            ("volts", self.volts),
        ):
            if value is not None and not 0 < value < math.inf:
                raise InputError(
                    f"Grade '{self.name}' has a {what} of {value}: give a finite number above 0."
                )


STANDARD = (Grade(),)
"""Units of one kind: nothing to choose but their number."""


def check_grades(grades: Sequence[Grade]) -> tuple[Grade, ...]:
    """The grades, refused unless there is one and each is faster than the one before it.

    Only in that order are two grades next to each other a small step apart, which is what the
    switching cost counts (De Matteis 2016, eq. 6.17).
    """
    if not grades:
        raise InputError("There is no grade to choose from: give at least one.")
    for slow, fast in pairwise(grades):
        if fast.speed <= slow.speed:
            raise InputError(
                f"Grade '{fast.name}' is not faster than '{slow.name}' before it: give the grades "
                "from slow to fast, each with a speed of its own."
            )
    return tuple(grades)


class Cost(Protocol):
    """Anything that says what units cost while they run."""

    @property
    def unit(self) -> str:
        """What the cost is counted in, as reports write it behind the number."""

    def of(self, size: int, grade: Grade) -> float:
        """What ``size`` units of a grade cost; never below zero, and more for more units."""


@dataclass(frozen=True, slots=True)
class ExecutorCount:
    """Each unit counts as one, of any grade (De Matteis 2016, eq. 6.15, "Node")."""

    unit: ClassVar[str] = "executors"

    def of(self, size: int, grade: Grade) -> float:  # noqa: ARG002 - every grade counts alike
        """The number of units."""
        return float(size)


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of the units, of any grade."""

    per_unit: int = 1
    unit: ClassVar[str] = "cores"

    def __post_init__(self) -> None:
        """Refuse a unit without a core."""
        if self.per_unit < 1:
            raise InputError(f"A unit with {self.per_unit} cores runs nothing: give at least 1.")

    def of(self, size: int, grade: Grade) -> float:  # noqa: ARG002 - every grade counts alike
        """The number of cores."""
        return float(size * self.per_unit)


@dataclass(frozen=True, slots=True)
class Price:
    """The money for an hour, from the price of each grade."""

    currency: str = "money"

    @property
    def unit(self) -> str:
        """The currency, by the hour."""
        return f"{self.currency}/h"

    def of(self, size: int, grade: Grade) -> float:
        """The money for an hour of ``size`` units."""
        if grade.price_per_h is None:
            raise InputError(f"Grade '{grade.name}' has no price: give it a price_per_h.")
        return size * grade.price_per_h


@dataclass(frozen=True, slots=True)
class Watts:
    """Dynamic power ``C * n * f * V(n, f)**2``, plus what is drawn anyway (De Matteis, eq. 6.11).

    ``volts`` is V: a function of the number of active cores and the frequency in GHz, or a table of
    it; None for the voltage that each grade bears. The number of active cores is ``size`` and those
    ``beside`` it that do other work (the published experiments count 3). ``capacitance`` is C, in
    watts per GHz and square volt, and ``base_w`` is the static power, which the original leaves
    out. As long as C is not measured only ratios of such costs mean something.
    """

    volts: Callable[[int, float], float] | Mapping[tuple[int, float], float] | None = None
    capacitance: float = 1.0
    base_w: float = 0.0
    beside: int = 0
    unit: ClassVar[str] = "W"

    def __post_init__(self) -> None:
        """Refuse what would not be power."""
        if not 0 < self.capacitance < math.inf:
            raise InputError(
                f"A capacitance of {self.capacitance} cannot be: give a finite number above 0."
            )
        if not 0 <= self.base_w < math.inf or self.beside < 0:
            raise InputError(
                f"A base of {self.base_w} W and {self.beside} cores beside the units cannot be: "
                "give neither below 0."
            )

    def of(self, size: int, grade: Grade) -> float:
        """The power of ``size`` units at the frequency of their grade."""
        if grade.ghz is None:
            raise InputError(f"Grade '{grade.name}' has no frequency: give it ghz.")
        active = size + self.beside
        volts = self._volts(active, grade)
        return self.base_w + self.capacitance * active * grade.ghz * volts**2

    def _volts(self, active: int, grade: Grade) -> float:
        ghz = grade.ghz or 0.0
        if callable(self.volts):
            return self.volts(active, ghz)
        volts = grade.volts if self.volts is None else self.volts.get((active, ghz))
        if volts is None:
            raise InputError(
                f"No voltage is known of {active} active cores at {ghz:g} GHz (grade "
                f"'{grade.name}'): give the grade volts, or the cost a table or function of them."
            )
        return volts
