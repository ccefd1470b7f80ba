"""The moves that scalers make: to a size within the limits, or none for now."""

from __future__ import annotations

from tailrace.policy.scaling.sizing import Load, Move


def ask(load: Load, size: float, reason: str) -> Move:
    """A move to a size, brought within the limits."""
    return Move(load.limits.within(size), reason)


def stay(load: Load, reason: str) -> Move:
    """No move: what runs goes on, or what has been asked for is waited for."""
    return ask(load, load.size if load.wanted is None else load.wanted, reason)


def wait(load: Load) -> Move:
    """No move because one is under way, or was until just now."""
    if not load.moving:
        return stay(load, "What was measured is of the size before.")
    return stay(load, f"The move from {load.size} to {load.wanted} is still under way.")


def settling(load: Load) -> bool:
    """Whether what was measured is, in part at least, of another size than the present one."""
    return load.moving or load.since_move < 1
