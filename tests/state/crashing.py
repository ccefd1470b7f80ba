"""A process to be killed: it runs batches on a store for as long as it lives.

``python crashing.py DIRECTORY SEED``. The records of a batch depend on the attempt. A commit is a
file that holds the salt of the attempt, as Spark's commit log would hold its offsets; the state as
of a commit follows from the salts of all commits up to it. A line is printed before every write
and after every commit, so that the parent knows where it is.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tailrace.state.state import State
from tailrace.state.store import Store

KEYS = 400


def changes(batch: int, salt: str) -> dict[int, int | None]:
    """What the records of an attempt at a batch do: most keys get a number, some are forgotten."""
    draw = random.Random(f"{batch} {salt}")
    keys = draw.sample(range(KEYS), draw.randrange(60))
    return {key: None if draw.random() < 0.2 else draw.randrange(10**9) for key in keys}


def expected(salts: list[str]) -> dict[int, int]:
    """The state after committed batches, by a plain dict."""
    state: dict[int, int] = {}
    for batch, salt in enumerate(salts):
        for key, number in changes(batch, salt).items():
            state.pop(key, None)
            if number is not None:
                state[key] = number
    return state


def committed(commits: Path) -> list[str]:
    """The salts of the committed batches."""
    total = len(list(commits.glob("*.commit")))
    return [(commits / f"{batch}.commit").read_text() for batch in range(total)]


def main(root: Path, salt: str) -> None:
    """Take up the state, see that it is right, and go on."""
    commits = root / "commits"
    commits.mkdir(exist_ok=True)
    salts = committed(commits)
    store = Store(root / "state", most_deltas=5)
    store.open(len(salts) - 1)
    found = {key: state["n"] for key, state in store.values.items()}
    if found != expected(salts):
        sys.exit(f"after {len(salts)} commits the state is wrong")
    for batch in range(len(salts), 10**6):
        store.open(batch - 1)
        for key, number in changes(batch, salt).items():
            store.touch(key)
            if number is None:
                store.forget(key)
            else:
                store.put(key, State({"n": number}))
        print("writes", flush=True)
        store.write(batch)
        (commits / "temporary").write_text(salt)
        (commits / "temporary").rename(commits / f"{batch}.commit")
        print("commits", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
