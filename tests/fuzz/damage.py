"""Ways to damage bytes, and directories of them: by hand, by a disk, by a copy that went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping

Images = dict[str, bytes]
"""The files of a directory by their relative names."""


class Damaged(NamedTuple):
    """Files after something happened to them, and what it was."""

    images: Images
    how: str


# --- one file, everywhere -----------------------------------------------------------------------


def everywhere(raw: bytes, draw: random.Random) -> Iterator[tuple[bytes, str]]:
    """Every bit turned, every byte changed and lost, every cut at either end."""
    for at, byte in enumerate(raw):
        for bit in range(8):
            yield raw[:at] + bytes([byte ^ 1 << bit]) + raw[at + 1 :], f"bit {bit} of byte {at}"
        other = byte ^ draw.randrange(1, 256)
        yield raw[:at] + bytes([other]) + raw[at + 1 :], f"byte {at} is {other}"
        yield raw[:at] + raw[at + 1 :], f"byte {at} is lost"
        yield raw[:at], f"cut after {at} bytes"
        yield raw[at + 1 :], f"begins at byte {at + 1}"


# --- one file, anywhere -------------------------------------------------------------------------


def _block(raw: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(raw) + 1)
    return start, min(len(raw), start + draw.choice((1, 2, 4, 8, 16, 57, 61, 512, 4096)))


def _change(raw: bytes, draw: random.Random, _: bytes) -> bytes:
    a, b = _block(raw, draw)
    return raw[:a] + draw.randbytes(b - a) + raw[b:]


def _zero(raw: bytes, draw: random.Random, _: bytes) -> bytes:
    a, b = _block(raw, draw)
    return raw[:a] + bytes(b - a) + raw[b:]


def _double(raw: bytes, draw: random.Random, _: bytes) -> bytes:
    a, b = _block(raw, draw)
    return raw[:b] + raw[a:b] * draw.randrange(1, 4) + raw[b:]


def _lose(raw: bytes, draw: random.Random, _: bytes) -> bytes:
    a, b = _block(raw, draw)
    return raw[:a] + raw[b:]


def _insert(raw: bytes, draw: random.Random, _: bytes) -> bytes:
    at = draw.randrange(len(raw) + 1)
    return raw[:at] + draw.randbytes(draw.randrange(1, 20)) + raw[at:]


def _swap(raw: bytes, draw: random.Random, _: bytes) -> bytes:
    a, b, c, d = sorted(draw.randrange(len(raw) + 1) for _ in range(4))
    return raw[:a] + raw[c:d] + raw[b:c] + raw[a:b] + raw[d:]


def _cut(raw: bytes, draw: random.Random, _: bytes) -> bytes:
    return raw[: draw.randrange(len(raw) + 1)]


def _extend(raw: bytes, draw: random.Random, other: bytes) -> bytes:
    return raw + draw.choice((bytes(draw.randrange(1, 20)), draw.randbytes(7), raw, other))


def _splice(raw: bytes, draw: random.Random, other: bytes) -> bytes:
    """The beginning of this file and the end of another, as after a copy that was interrupted."""
    return raw[: draw.randrange(len(raw) + 1)] + other[draw.randrange(len(other) + 1) :]


def _number(raw: bytes, draw: random.Random, _: bytes) -> bytes:
    """A number where there may have been one: small, large, or what is too large by one."""
    width = draw.choice((1, 2, 4, 8))
    extremes = (0, 1, 2, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1)
    number = draw.choice((*extremes, draw.randrange(2 ** (8 * width))))
    at = draw.randrange(len(raw) + 1)
    return raw[:at] + number.to_bytes(width, draw.choice(("little", "big"))) + raw[at + width :]


ANYWHERE: tuple[Callable[[bytes, random.Random, bytes], bytes], ...] = (
    *(_change, _zero, _double, _lose, _insert, _swap, _cut, _extend, _splice, _number),
)


def anywhere(raw: bytes, draw: random.Random, other: bytes) -> tuple[bytes, str]:
    """One to three kinds of damage to a file; ``other`` is another file of its kind."""
    kinds = draw.choices(ANYWHERE, k=draw.choice((1, 1, 1, 2, 3)))
    for kind in kinds:
        raw = kind(raw, draw, other)
    return raw, ", ".join(kind.__name__.strip("_") for kind in kinds)


# --- a directory --------------------------------------------------------------------------------


def among(images: Mapping[str, bytes], draw: random.Random, *, may_lose: bool) -> Damaged:
    """One file of a directory damaged, or two taken for each other.

    ``may_lose`` says whether a file may also lose its name: where two attempts have left a file,
    the loss of one looks as if it had never been there.
    """
    names = sorted(images)
    one, two = draw.choice(names), draw.choice(names)
    kinds = ["bytes", "bytes", "exchanged", "copied over", "empty", "junk beside"]
    if may_lose or one.endswith("claim"):
        kinds.append("lost")
    if may_lose:
        kinds += ["renamed", "moved"]
    kind = draw.choice(kinds)
    after, how = dict(images), f"{one}: {kind}"
    match kind:
        case "bytes":
            after[one], how = anywhere(images[one], draw, images[two])
            how = f"{one}: {how}"
        case "exchanged":
            after[one], after[two] = images[two], images[one]
        case "copied over":
            after[one] = images[two]
        case "empty":
            after[one] = b""
        case "junk beside":
            after[f"{one}.{draw.choice(('tmp', 'bak', 'delta'))}"] = draw.randbytes(20)
        case "lost":
            del after[one]
        case "renamed":
            del after[one]
            after[_other_name(one, draw)] = images[one]
        case "moved":
            after[f"{two.partition('/')[0]}/{one.partition('/')[2]}"] = after.pop(one)
    return Damaged(after, f"{how} ({two})")


def _other_name(name: str, draw: random.Random) -> str:
    """A name of the same kind that says something else of the file."""
    if draw.randrange(2):
        swapped = {"delta": "snapshot", "snapshot": "delta"}
        stem, _, kind = name.rpartition(".")
        return f"{stem}.{swapped.get(kind, kind)}" if stem else f"{name}.bak"
    place, _, rest = name.partition("/")
    version, dash, tail = rest.partition("-")
    return f"{place}/{int(version) + draw.choice((-1, 1))}-{tail}" if dash else f"{name}.bak"


def turned(images: Mapping[str, bytes]) -> Damaged:
    """The directories of two partitions taken for each other."""
    other = {"0": "1", "1": "0"}
    return Damaged({other[name[0]] + name[1:]: raw for name, raw in images.items()}, "turned")
