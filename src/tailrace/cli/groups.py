"""Groups of options that several commands take: declared once, and handed over as one object."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let every parameter that is a dataclass stand for the options that are its fields.

    Typer makes options of a command's signature: it is shown one with the fields in the place of
    the group, and the command is called with the group made of their values.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {
        name: kind
        for name, parameter in signature.parameters.items()
        if isinstance(kind := parameter.annotation, type) and is_dataclass(kind)
    }
    parameters = [
        option
        for name, parameter in signature.parameters.items()
        for option in (_options(groups[name]) if name in groups else (parameter,))
    ]

    @wraps(command)
    def call(**values: Any) -> None:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **made)

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def _options(group: type) -> Iterator[inspect.Parameter]:
    """The fields of a group as parameters that can only be given by name."""
    types = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=types[field.name],
        )
