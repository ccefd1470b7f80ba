"""Groups of options that several commands take: declared once, passed as one object."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Turn every parameter that is a dataclass into options, one for each field.

    Typer reads options from a command's signature: this gives it a signature with the fields in
    place of the group, and calls the command with a group built from their values.
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
    """The fields of a group as keyword-only parameters."""
    types = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=types[field.name],
        )
