"""Finds code of the package that no user can reach.

    python -m tools.reachable

A user has the names in ``tailrace.__all__``, what the docs import, and the commands. From there the
check follows names through the sources of the package, by their syntax and without running them.
Code that only tests or benchmarks use is not reached. Each unreached definition is printed with its
number of lines, and the exit code is 1; if everything is reached, one line says so.

When in doubt a definition counts as reached: a method or class attribute if anything with its name
is read from any object, or if a text equals its name. Fields and members of enums are not checked.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.sources import (
    PACKAGE,
    Definition,
    Function,
    Module,
    Scope,
    Uses,
    last_part,
    read_package,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tools.sources import Chain

ROOT: Final = Path(__file__).resolve().parents[1]

EXTRA_ROOTS: Final[dict[str, str]] = {
    "tailrace.policy.scaling.costs.Cores": "docs/scaling.md offers it as a cost",
    "tailrace.policy.scaling.costs.Watts": "docs/scaling.md offers it as a cost",
    "tailrace.report.data.Report._repr_html_": "notebooks ask for it",
    "tailrace.state.plain._Pickler.reducer_override": "pickle calls it, though its base has none",
}
"""What users reach in ways that this check does not see: dotted names, each with its reason."""

_IMPORT: Final = re.compile(rf"^from ({PACKAGE}[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
_DOTTED: Final = re.compile(rf"{PACKAGE}(?:[.:]\w+)+")


class Reach:
    """The definitions reached so far, and what they refer to."""

    def __init__(self, modules: dict[str, Module]) -> None:
        """Nothing is reached yet."""
        self.modules = modules
        self.reached: set[Definition] = set()
        self._entered: set[Module] = set()
        self._values: set[Module] = set()
        self._words: set[str] = set()
        self._todo: list[Definition] = []

    def publish(self, chain: Chain) -> None:
        """Mark a name, by its full path, as available to users, with everything public in it."""
        for found, _ in self._locate(chain):
            self._open(found)

    def enter(self, module: Module) -> None:
        """Mark a module as run: its statements, those of its parent packages, and its hooks."""
        if module in self._entered:
            return
        self._entered.add(module)
        self.read(module.statements, module)
        for name, definition in module.definitions.items():
            if is_dunder(name) and name != "__all__":
                self.reach(definition)
        around = self.modules.get(module.name.rpartition(".")[0])
        if around is not None:
            self.enter(around)

    def reach(self, definition: Definition) -> None:
        """Mark a definition as reached; what it refers to is followed later."""
        if definition not in self.reached:
            self.reached.add(definition)
            self._todo.append(definition)
            if definition.owner is not None:
                self.reach(definition.owner)
            self.enter(definition.module)

    def read(self, nodes: Iterable[ast.AST], module: Module, around: Scope | None = None) -> None:
        """Reach what code refers to; ``around`` is the body of the enclosing class."""
        uses = Uses()
        for node in nodes:
            uses.visit_head(node) if isinstance(node, ast.ClassDef) else uses.visit(node)
        for chain in uses.chains:
            if around is not None and chain[0] in around.definitions:
                self.reach(around.definitions[chain[0]])
            for found, rest in self._find(module, chain):
                if isinstance(found, Module):
                    self.enter(found)
                    self._values.add(found)
                else:
                    self.reach(found)
                uses.words.update(rest)
            if chain[0] not in (*module.definitions, *module.imports):
                uses.words.update(chain[1:])
        for word in uses.words - self._words:
            if _DOTTED.fullmatch(word):
                for found, _ in self._locate(tuple(re.split("[.:]", word))):
                    self.enter(found) if isinstance(found, Module) else self.reach(found)
        self._words |= uses.words

    def follow(self) -> None:
        """Follow references until nothing more is reached."""
        while self._todo or self._reach_members():
            found = self._todo.pop()
            around = found.owner.inner if found.owner and found.kind == "attribute" else found.inner
            self.read((*found.nodes, *found.inner.statements), found.module, around)

    def _reach_members(self) -> bool:
        """Reach the used members of classes, and of modules used as values; whether any are new."""
        scopes = [*self._values, *(each.inner for each in self.reached)]
        for name, member in [pair for each in scopes for pair in each.definitions.items()]:
            if name in self._words or (
                member not in self.reached and self._is_called(name, member)
            ):
                self.reach(member)
        return bool(self._todo)

    def _is_called(self, name: str, member: Definition) -> bool:
        """Whether Python, Java or a library calls a member of a class."""
        owner = member.owner
        if owner is None:
            return False
        for_java = "Java" in owner.inner.definitions or owner.name.endswith(".Java")
        return for_java or is_dunder(name) or self._overrides(owner, name)

    def _overrides(self, owner: Definition, name: str) -> bool:
        """Whether a member overrides one of a class outside the package, which may call it."""
        for chain in owner.bases():
            ours = [found for found, _ in self._find(owner.module, chain)]
            for found in ours:
                if isinstance(found, Definition) and self._overrides(found, name):
                    return True
            for target in () if ours else owner.module.imports.get(chain[0], {"builtins"}):
                parts = (target, *chain) if target == "builtins" else (target, *chain[1:])
                if _may_have(".".join(parts), name):
                    return True
        return False

    def _open(self, found: Module | Definition) -> None:
        if isinstance(found, Module):
            self.enter(found)
            for name in public_names(found):
                for inner, _ in self._find(found, (name,)):
                    self._open(inner)
        else:
            for given in (found, *self._open_class(found)):
                self.reach(given)
                for kind in self._handed(given):
                    self._open_class(kind)

    def _open_class(self, kind: Definition) -> list[Definition]:
        """Reach, and return, the public members of a class and of its base classes."""
        members = [each for name, each in kind.inner.definitions.items() if name[0] != "_"]
        for chain in kind.bases():
            for base, _ in self._find(kind.module, chain):
                if isinstance(base, Definition):
                    members += self._open_class(base)
        for each in members:
            self.reach(each)
        return members

    def _handed(self, given: Definition) -> Iterator[Definition]:
        """The classes that a user's function takes, returns, or is called back with."""
        for node in given.nodes:
            if isinstance(node, Function):
                uses = Uses()
                uses.visit_signature(node)
                for chain in uses.chains:
                    for found, _ in self._find(given.module, chain):
                        if isinstance(found, Definition):
                            yield found

    def _locate(self, chain: Chain) -> Iterator[tuple[Module | Definition, Chain]]:
        """What a dotted name that begins with the package stands for."""
        for length in range(len(chain), 0, -1):
            module = self.modules.get(".".join(chain[:length]))
            if module is not None:
                if length == len(chain):
                    yield module, ()
                else:
                    yield from self._find(module, chain[length:])
                return

    def _find(self, module: Module, chain: Chain) -> Iterator[tuple[Module | Definition, Chain]]:
        """What a dotted name stands for in a module, each with the rest of the name."""
        found, rest = module.definitions.get(chain[0]), chain[1:]
        while found is not None and rest and rest[0] in found.inner.definitions:
            found, rest = found.inner.definitions[rest[0]], rest[1:]
        if found is not None:
            yield found, rest
        for target in sorted(module.imports.get(chain[0], ())):
            yield from self._locate((*target.split("."), *chain[1:]))


def _may_have(dotted: str, name: str) -> bool:
    """Whether a class outside the package has an attribute, or cannot be inspected."""
    home, _, kind = dotted.rpartition(".")
    try:
        return hasattr(getattr(importlib.import_module(home), kind), name)
    except (ImportError, AttributeError):
        return True


def is_dunder(name: str) -> bool:
    """Whether Python itself uses a name."""
    return name.startswith("__") and name.endswith("__")


def public_names(module: Module) -> list[str]:
    """The names in ``__all__`` of a module; without it, those that have no underscore."""
    for node in module.definitions["__all__"].nodes if "__all__" in module.definitions else ():
        if isinstance(node, ast.Assign):
            return [str(name) for name in ast.literal_eval(node.value)]
    return [name for name in module.definitions if not name.startswith("_")]


def reach_from_users(root: Path) -> Reach:
    """Everything that users reach of the package below a directory."""
    reach = Reach(read_package(root))
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    given = [PACKAGE, *project.get("scripts", {}).values(), *documented(root), *EXTRA_ROOTS]
    for name in given:
        reach.publish(tuple(re.split("[.:]", name)))
    for module in reach.modules.values():
        if module.main or module.name.endswith(".__main__"):
            reach.enter(module)
            reach.read(module.main, module)
        for command in _commands(module):
            reach.reach(command)
    reach.follow()
    return reach


def documented(root: Path) -> Iterator[str]:
    """The names that the documentation tells users to import from inside the package."""
    for path in (*root.glob("*.md"), *root.glob("docs/*.md")):
        for home, several, single in _IMPORT.findall(path.read_text("utf-8")):
            for name in re.split(r"[,\s]+", (several or single).partition("#")[0].strip(" \n,")):
                yield f"{home}.{name}"


def _commands(module: Module) -> Iterator[Definition]:
    if module.name.startswith(f"{PACKAGE}.cli"):
        for definition in module.definitions.values():
            for node in definition.nodes:
                marks = node.decorator_list if isinstance(node, Function) else []
                if any(last_part(mark) in ("command", "callback") for mark in marks):
                    yield definition


def unreached(scope: Scope, reached: set[Definition]) -> Iterator[Definition]:
    """The unreached definitions of a module or a class, outermost only."""
    for name, definition in scope.definitions.items():
        if definition in reached:
            yield from unreached(definition.inner, reached)
        elif not is_dunder(name):
            yield definition


def main(root: Path = ROOT) -> int:
    """Print what is not reached, and return the exit code."""
    reach = reach_from_users(root)
    rooms: dict[str, int] = defaultdict(int)
    for module in reach.modules.values():
        found = sorted(unreached(module, reach.reached), key=lambda each: -len(each.lines))
        for each in found:
            place = f"{module.path.relative_to(root)}:{min(each.lines)}"
            print(f"{place}: {each.kind} {each.name} ({_lines(len(each.lines))})")
        room = module.path.relative_to(root / "src" / PACKAGE).parts[0]
        rooms[room] += len(set().union(*(each.lines for each in found)))
    total = sum(rooms.values())
    if not total:
        print(f"Users reach all {len(reach.reached)} definitions.")
        return 0
    for room, lines in sorted(rooms.items()):
        if lines:
            print(f"{room}: {_lines(lines)} that no user reaches")
    print(f"{PACKAGE}: {_lines(total)} that no user reaches")
    return 1


def _lines(number: int) -> str:
    return f"{number} line{'' if number == 1 else 's'}"


if __name__ == "__main__":
    sys.exit(main())
