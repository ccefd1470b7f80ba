"""Profile files: one JSON object with a format, a version and the fields of a profile.

``schema.json`` beside this module describes every field. A file written by hand needs ``name``,
``steps`` and ``rate_per_s``, and for each step its ``name`` and ``service_ms``. Unknown fields are
refused rather than ignored, so that typos are found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from jsonschema import Draft202012Validator

from tailrace.constraint import SINK, SOURCE, is_sink
from tailrace.errors import InputError, unwritable
from tailrace.outside import check_data, joined, parse_json, read_text, shown
from tailrace.plan import Backend, Plan, chain_name
from tailrace.profile.costs import BatchCosts, ExecutorCosts, HandOverCosts
from tailrace.profile.profile import Latency, Origin, Profile, StepProfile
from tailrace.state.files import write_text

if TYPE_CHECKING:
    import os

    from jsonschema import ValidationError

    from tailrace.plan import Chains

FORMAT: Final = "tailrace-profile"
VERSION: Final = 1

_PLAN_COUNTS: Final = ("cores", "row_limit", "executors")
_MOSTS: Final = ("maxLength", "maxItems", "maxProperties")
_KINDS: Final = {"array": "a list", "object": "an object in braces", "string": "a text"}


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a profile file.

    Raises:
        InputError: If it cannot be read, or does not hold a profile of this version.
    """
    text = read_text(Path(path), "profile", "record one, or write its name, steps and rate_per_s")
    return from_json(_parsed(text, str(path)), str(path))


def save(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile file; a reader sees either all of it or the previous file.

    Raises:
        InputError: If it cannot be written to this place.
        EnvironmentUnfit: If there is no space left.
    """
    place = Path(path)
    if place.is_dir():
        raise InputError(f"{place} is a directory: name a file in it for the profile.")
    text = json.dumps(as_json(profile), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, text)
    except OSError as error:
        raise unwritable(f"The profile {path}", error) from None
    except ValueError as error:  # such as a null character in the path
        raise InputError(
            f"The profile {path} cannot be written ({error}): choose another place."
        ) from None


def as_json(profile: Profile) -> dict[str, Any]:
    """A profile as plain data: every field that is not None."""
    return {"format": FORMAT, "version": VERSION, **_plain(profile)}


def from_json(data: object, where: str) -> Profile:
    """Make a profile from plain data; ``where`` names the data in errors.

    Raises:
        InputError: If it is not a profile of this version.
    """
    check_data(data, f"The profile {where}")
    if not isinstance(data, dict):
        raise InputError(
            f"The profile {where} holds {shown(data)} and not an object in braces: write "
            '{"name": ..., "steps": [...], "rate_per_s": ...}.'
        )
    _check_version(data, where)
    errors = sorted(_validator().iter_errors(data), key=_urgency)
    if errors:
        raise InputError(f"The profile {where} {_sentence(errors[0])}.")
    try:
        return _profile(data)
    except InputError as error:
        said = " ".join(str(error).split())  # a name may contain anything
        raise InputError(f"The profile {where} does not fit together: {said}") from None


def schema() -> dict[str, Any]:
    """The JSON Schema of a profile file."""
    text = resources.files("tailrace.profile").joinpath("schema.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


# --- reading --------------------------------------------------------------------------------------


def _parsed(text: str, where: str) -> object:
    if not text.strip():
        raise InputError(
            f"The profile {where} is empty: record one, or write its name, steps and rate_per_s."
        )
    return parse_json(text, f"The profile {where}")


def _check_version(data: dict[str, Any], where: str) -> None:
    found = data.get("format", FORMAT)
    if found != FORMAT:
        raise InputError(
            f"The file {where} has the format {shown(found)} and not '{FORMAT}': give a profile."
        )
    version = data.get("version", VERSION)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InputError(
            f"The profile {where} has {shown(version)} as its version: write {VERSION}, or "
            "leave it out."
        )
    if version > VERSION:
        raise InputError(
            f"The profile {where} has version {shown(version)} and this Tailrace reads up "
            f"to {VERSION}: update Tailrace."
        )


# --- what is wrong --------------------------------------------------------------------------------


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(schema())


def _urgency(error: ValidationError) -> tuple[bool, int]:
    """Puts unknown names first: a typo is often why another name is missing."""
    return error.validator != "additionalProperties", len(error.absolute_path)


def _sentence(error: ValidationError) -> str:
    place = ""
    for part in error.absolute_path:
        place = joined(place, part)
    rules, found = cast("dict[str, Any]", error.schema), cast("Any", error.instance)
    if error.validator == "additionalProperties":
        known = [name for name in rules["properties"] if name != "$schema"]
        unknown = next(name for name in found if name not in rules["properties"])
        near = get_close_matches(unknown[:40], known, n=1)
        advice = (
            f"write '{near[0]}' if you meant that" if near else f"it can have {', '.join(known)}"
        )
        return f"has a field {shown(unknown)}{_at(place)} that is not known: {advice}"
    if error.validator == "required":
        missing = next(name for name in rules["required"] if name not in found)
        return f"has no '{missing}'{_at(place)}: add {_described(rules, missing)}"
    return f"has {shown(found)} at {place}: give {_expected(rules)}"


def _at(place: str) -> str:
    return f" at {place}" if place else ""


def _described(rules: dict[str, Any], name: str) -> str:
    """What a missing field is for: the first sentence of its description in the schema."""
    text: str = rules["properties"][name]["description"]
    first = text.split(". ", maxsplit=1)[0].removesuffix(".")
    return f"it, {first[0].lower()}{first[1:]}"


def _expected(rules: dict[str, Any]) -> str:
    """What is allowed in place of a wrong value."""
    if "enum" in rules:
        return f"one of {', '.join(rules['enum'])}"
    kind = rules["type"]
    if kind in ("number", "integer"):
        noun = "a whole number" if kind == "integer" else "a number"
        low = f"above {rules['exclusiveMinimum']}" if "exclusiveMinimum" in rules else ""
        low = low or f"from {rules['minimum']}"
        return f"{noun} {low} " + (f"to {rules['maximum']:,}" if "maximum" in rules else "up")
    if rules.get("maxItems") == rules.get("minItems", 0):
        return "a pair of names, from where and to where"
    filled = " that is not empty" if {"minLength", "minItems"} & set(rules) else ""
    most = next((rules[name] for name in _MOSTS if name in rules), None)
    return _KINDS[kind] + filled + (f", of up to {most:,}" if most else "")


# --- profiles and data ----------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Dataclasses, mappings and tuples as JSON types."""
    if is_dataclass(value):
        pairs = ((item.name, getattr(value, item.name)) for item in fields(value))
        return {name: _plain(inner) for name, inner in pairs if inner is not None}
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, str) else value


def _profile(data: dict[str, Any]) -> Profile:
    """A profile from data that matches the schema."""
    steps = tuple(_step(found) for found in data["steps"])
    row = pairwise((SOURCE, *(step.name for step in steps), SINK))
    latency, batch, hand_over = (data.get(name) for name in ("latency", "batch", "hand_over"))
    executors = data.get("executors")
    profile = Profile(
        name=data["name"],
        steps=steps,
        streams=tuple((origin, target) for origin, target in data.get("streams", row)),
        rate_per_s=data["rate_per_s"],
        plan=_plan(data.get("plan", {})),
        cores=int(data.get("cores", 1)),
        source_partitions=int(data.get("source_partitions", 1)),
        seconds=data.get("seconds", 0.0),
        records=int(data.get("records", 0)),
        latency=None if latency is None else Latency(**latency),
        batch=None if batch is None else _batch(batch),
        hand_over=None if hand_over is None else HandOverCosts(**hand_over),
        executors=None if executors is None else ExecutorCosts(**executors),
        origin=Origin(data.get("origin", Origin.HAND)),
    )
    _check_streams(profile)
    if "chains" not in data.get("plan", {}):
        profile = replace(profile, plan=replace(profile.plan, chains=_chains(profile)))
    _check_plan(profile)
    return profile


def _batch(data: dict[str, float]) -> BatchCosts:
    """Costs of a batch; a profile that gives the cost of an exchange has no cost of a task."""
    earlier = {"task_ms": 0.0} if "shuffle_ms" in data and "task_ms" not in data else {}
    return BatchCosts(**{**earlier, **data})


def _step(found: dict[str, Any]) -> StepProfile:
    counts = {name: int(found[name]) for name in ("distinct", "window") if name in found}
    return StepProfile(**found | counts | {"keyed_by": tuple(found.get("keyed_by", ()))})


def _plan(found: dict[str, Any]) -> Plan:
    counts = {name: int(found[name]) for name in _PLAN_COUNTS if name in found}
    chains = tuple(tuple(chain) for chain in found.get("chains", ()))
    partitions = {name: int(count) for name, count in found.get("partitions", {}).items()}
    backend = Backend(found.get("backend", Backend.MICROBATCH))
    return Plan(**found | counts | {"chains": chains, "partitions": partitions, "backend": backend})


def _chains(profile: Profile) -> Chains:
    """Chained as far as possible: a step with a key or its own partitions starts a chain."""
    own = {step.name for step in profile.steps if step.keyed_by} | set(profile.plan.partitions)
    chains: list[tuple[str, ...]] = []
    for chain in profile.graph.primary_chains():
        starts = [0, *(i for i, name in enumerate(chain) if i and name in own), len(chain)]
        chains += [chain[start:end] for start, end in pairwise(starts)]
    return tuple(chains)


def _check_streams(profile: Profile) -> None:
    """Check that every stream connects existing steps, and that every step is reached."""
    names = profile.graph.names  # this refuses cycles and duplicate names
    for origin, target in profile.streams:
        if origin not in (SOURCE, *names) or not (target in names or is_sink(target)):
            raise InputError(
                f"The stream from '{origin}' to '{target}' does not connect two of its steps, or "
                f"'{SOURCE}' and '{SINK}' at the ends: correct its names."
            )
    targets = {target for _, target in profile.streams}
    for name in names:
        if name not in targets:
            raise InputError(f"No stream leads to step '{name}': add one to the streams.")


def _check_plan(profile: Profile) -> None:
    """Check that the plan names only existing steps, and chains each of them once."""
    names, plan = profile.graph.names, profile.plan
    chained = [name for chain in plan.chains for name in chain]
    if chained and sorted(chained) != sorted(names):
        wrong = next(name for name in (*names, *chained) if chained.count(name) != 1)
        raise InputError(
            f"Step '{wrong}' is in {chained.count(wrong)} of the chains of its plan: put every "
            "step into one chain, or leave the chains out."
        )
    for name in plan.partitions:
        if name not in names:
            raise InputError(
                f"Its plan has partitions for a step '{name}', which is not one of its steps: "
                f"name one of {', '.join(names)}."
            )
    known = [chain_name(chain) for chain in plan.chains]
    for name in plan.lifetimes_ms:
        if name not in known:
            raise InputError(
                f"Its plan has a lifetime for a chain '{name}', which is not one of its chains: "
                f"name one of {', '.join(known)}."
            )
