"""Whether a step can be sent to workers, and if not, what in it cannot be copied.

Spark pickles the functions of steps when it makes a plan; its error then names neither the step nor
the culprit, and it prints the traceback itself. So steps are tried when the pipeline is traced. If
one fails, everything that its function holds is tried too, to find the innermost object that cannot
be pickled: a lock, a socket, a connection, the session.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEPEST = 5
"""How deep the objects that a function holds are searched."""

_OF_THE_DRIVER = (SparkContext, SparkSession, DataFrame)


def require_sendable(what: str, *held: object) -> None:
    """Refuse what cannot be sent to workers; ``what`` names it for users, as in "Step 'parse'".

    Raises:
        InputError: With the name of the variable that is to blame, if it can be found.
    """
    for value in held:
        error = _obstacle(value)
        if error is not None:
            raise _refusal(what, _culprit(value), error) from error


def _refusal(what: str, found: tuple[str, Any] | None, error: Exception) -> InputError:
    if found is None:
        why = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(" .")
        return InputError(
            f"{what} cannot be sent to workers ({why}): let its function hold plain data only, and "
            "create the rest inside it, at the first call."
        )
    where, value = found
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    remedy = (
        "only the driver has: pass what the step needs from it as plain data"
        if isinstance(value, _OF_THE_DRIVER)
        else "cannot be copied to another process: create it inside the function, at the first call"
    )
    return InputError(
        f"{what} cannot be sent to workers, since '{where}' is a {kind}, which {remedy}."
    )


def _obstacle(value: object) -> Exception | None:
    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - a user's own __reduce__ may raise anything
        return error
    return None


def _culprit(value: Any, where: str = "", depth: int = DEEPEST) -> tuple[str, Any] | None:
    """The innermost object that cannot be pickled, and the path to it; None if it has no name."""
    if depth:
        for name, held in _held(value):
            if _obstacle(held) is not None:
                path = f"{where}.{name}" if where else name
                return _culprit(held, path, depth - 1) or (path, held)
    return None


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, by the names that its author knows."""
    if isinstance(value, partial):
        yield from ((f"argument {n}", held) for n, held in enumerate(value.args, start=1))
        yield from value.keywords.items()
        yield from _held(value.func)
    elif inspect.ismethod(value):
        yield from _held(value.__self__)
    elif inspect.isfunction(value):
        variables = inspect.getclosurevars(value)
        yield from variables.nonlocals.items()
        yield from variables.globals.items()
        defaults = value.__defaults__ or ()
        yield from ((f"default {n}", held) for n, held in enumerate(defaults, start=1))
    elif isinstance(value, Mapping):
        yield from ((str(name), held) for name, held in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {n}", held) for n, held in enumerate(value, start=1))
    elif not isinstance(value, (*_OF_THE_DRIVER, type)):
        slots = (slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ()))
        names = dict.fromkeys((*getattr(value, "__dict__", {}), *slots))
        yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))
