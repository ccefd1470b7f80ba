"""The check for code that no user reaches, on packages of a few lines."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tools import reachable, sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Package = dict[str, str]

INIT = """
    from tailrace.core import {names}

    __all__ = [{quoted}]
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Package], Path]:
    """Writes files below ``src/tailrace``, or from the root if their path begins with a slash."""

    def write(files: Package) -> Path:
        (tmp_path / "pyproject.toml").write_text("[project]\nscripts.t = 'tailrace.cli:main'\n")
        for name, text in {"__init__.py": "", **files}.items():
            path = tmp_path / (name[1:] if name[0] == "/" else f"src/tailrace/{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        return tmp_path

    return write


@pytest.fixture
def dead(write: Callable[[Package], Path]) -> Callable[[Package], set[str]]:
    """Tells what is not reached of a package."""

    def dead(files: Package) -> set[str]:
        reach = reachable.reach_from_users(write(files))
        return {
            each.name
            for module in reach.modules.values()
            for each in reachable.unreached(module, reach.reached)
        }

    return dead


@pytest.fixture
def dead_core(dead: Callable[[Package], set[str]]) -> Callable[..., set[str]]:
    """Tells what is not reached of one module, some names of which are public."""

    def dead_core(text: str, *names: str, **others: str) -> set[str]:
        quoted = ", ".join(f'"{name}"' for name in names)
        init = INIT.format(names=", ".join(names), quoted=quoted)
        files = {f"{name}.py": code for name, code in others.items()}
        return dead({"__init__.py": init, "core.py": text, **files})

    return dead_core


def test_a_function_that_nothing_uses_is_found(dead_core) -> None:
    assert dead_core("def used(): ...\ndef unused(): ...", "used") == {"unused"}


def test_unused_functions_that_use_each_other_are_all_found(dead_core) -> None:
    text = "def used(): ...\ndef ping(): pong()\ndef pong(): ping(); last()\ndef last(): ..."
    assert dead_core(text, "used") == {"ping", "pong", "last"}


def test_what_a_used_function_uses_is_reached_in_any_place_of_it(dead_core) -> None:
    text = """
        from __future__ import annotations
        from typing import cast

        DEFAULT = OTHER = 1
        UNUSED = DEFAULT
        def mark(f): return f
        class Taken: ...
        class Returned: ...
        class Cast: ...
        def inner(): ...
        @mark
        def used(a: list["Taken"], b=DEFAULT) -> Returned:
            return [cast("Cast", inner()) for _ in a]
    """
    assert dead_core(text, "used") == {"OTHER", "UNUSED"}


def test_a_constant_of_several_is_found_by_itself(dead_core) -> None:
    assert dead_core("A, B = 1, 2\ndef used(): return A", "used") == {"B"}


def test_a_variable_of_the_same_name_is_no_use(dead_core) -> None:
    text = """
        def size(): ...
        def rate(): ...
        def used(many):
            size = len(many)
            return size, [rate for rate in many]
    """
    assert dead_core(text, "used") == {"size", "rate"}


def test_a_global_that_a_function_keeps_is_reached(dead_core) -> None:
    text = "COUNT = 0\ndef used():\n    global COUNT\n    COUNT += 1"
    assert dead_core(text, "used") == set()


def test_an_import_alone_is_no_use(dead_core) -> None:
    text = "from tailrace.other import lonely\ndef used(): ..."
    assert dead_core(text, "used", other="def lonely(): ...") == {"lonely"}


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("import tailrace.other", "tailrace.other.wanted"),
        ("from tailrace import other as name", "name.wanted"),
        ("from . import other", "other.wanted"),
        ("from .other import wanted as name", "name"),
    ],
)
def test_every_way_to_import_leads_to_the_definition(dead_core, head: str, call: str) -> None:
    other = "def wanted(): ...\ndef left(): ..."
    assert dead_core(f"{head}\ndef used(): {call}()", "used", other=other) == {"left"}
    inside = f"def used():\n    {head}\n    {call}()"
    assert dead_core(inside, "used", other=other) == {"left"}


def test_a_name_is_reached_through_the_package_that_gives_it_on(dead) -> None:
    init = "from tailrace.room import wanted\n__all__ = ['wanted']"
    room = "from tailrace.room.deep import left, wanted\n__all__ = ['left', 'wanted']"
    deep = "def wanted(): ...\ndef left(): ..."
    files = {"__init__.py": init, "room/__init__.py": room, "room/deep.py": deep}
    assert dead(files) == {"left"}


def test_a_public_module_makes_its_public_names_public(dead) -> None:
    init = "from tailrace import plain, said\n__all__ = ['plain', 'said']"
    plain = "def public(): ...\ndef _own(): ..."
    said = "__all__ = ['given']\ndef given(): ...\ndef kept(): ..."
    assert dead({"__init__.py": init, "plain.py": plain, "said.py": said}) == {"_own", "kept"}


@pytest.mark.parametrize("text", ["tailrace.other:wanted", "tailrace.other.wanted"])
def test_a_text_that_names_a_function_reaches_it(dead_core, text: str) -> None:
    other = "def wanted(): ...\ndef left(): ..."
    assert dead_core(f"def used(): return '{text}'", "used", other=other) == {"left"}


def test_a_text_that_names_a_module_runs_it(dead_core) -> None:
    other = "def wanted(): ...\ndef left(): ...\nwanted()"
    assert dead_core("def used(): return ['-m', 'tailrace.other']", "used", other=other) == {"left"}
    assert dead_core("def used(): ...", "used", other=other) == {"wanted", "left"}


def test_what_runs_as_a_program_is_reached(dead) -> None:
    by_name = "def run(): ...\ndef left(): ...\nif __name__ == '__main__':\n    run()"
    assert dead({"tool.py": by_name}) == {"left"}
    room = {"room/__init__.py": "def go(): ...\ndef stay(): ..."}
    main = "from tailrace.room import go\ngo()"
    assert dead({"tool.py": "", **room, "room/__main__.py": main}) == {"stay"}


def test_commands_and_the_script_are_reached(dead) -> None:
    cli = """
        import typer
        app = typer.Typer()
        @app.command()
        def plan(): helper()
        @app.callback()
        def each(): ...
        def main(): app()
        def helper(): ...
        def left(): ...
    """
    assert dead({"cli/__init__.py": cli}) == {"left"}


def test_what_the_docs_import_is_reached(dead) -> None:
    docs = "```python\nfrom tailrace.other import (\n    One,\n    two,\n)\n```\n"
    other = "class One:\n    def method(self): ...\ndef two(): ...\ndef three(): ..."
    assert dead({"other.py": other, "/docs/use.md": docs}) == {"three"}


def test_a_method_is_reached_by_any_attribute_of_its_name(dead_core) -> None:
    text = """
        class _Thing:
            LIMIT = 1
            SPARE = 2
            def __len__(self): return self.LIMIT
            def called(self): ...
            def named(self): ...
            def left(self): self.also_left()
            def also_left(self): ...
            @property
            def read(self): ...
            @property
            def unread(self): ...
        def used(each):
            thing = _Thing()
            thing.called()
            each.unread = getattr(thing, "named")
            return each().read
    """
    found = {"_Thing.SPARE", "_Thing.left", "_Thing.also_left", "_Thing.unread"}
    assert dead_core(text, "used") == found


def test_an_attribute_of_a_library_is_no_use(dead_core) -> None:
    text = """
        import math
        class _Sum:
            def floor(self): ...
        def used(): return math.floor(_Sum())
    """
    assert dead_core(text, "used") == {"_Sum.floor"}


def test_a_class_that_nothing_uses_is_found_as_a_whole(dead_core) -> None:
    text = "class Unused:\n    def method(self): ...\ndef used(each): each.method()"
    assert dead_core(text, "used") == {"Unused"}


def test_users_may_call_all_that_a_public_class_has_or_inherits(dead_core) -> None:
    text = """
        class _Base:
            def inherited(self): ...
        class Public(_Base):
            def own(self): ...
            def _private(self): ...
    """
    assert dead_core(text, "Public") == {"Public._private"}


def test_users_may_call_what_they_are_handed(dead_core) -> None:
    text = """
        from __future__ import annotations
        class Result:
            def show(self): ...
        class State:
            def wake(self): ...
        class Detail:
            def left(self): ...
        def used(callback: Callable[[State], None]) -> Result:
            return Detail()
    """
    assert dead_core(text, "used") == {"Detail.left"}


def test_a_method_that_a_library_calls_is_reached(dead_core) -> None:
    text = """
        import json
        from unknown_library import Base
        class _Coder(json.JSONEncoder):
            def default(self, value): ...
            def left(self): ...
        class _Finer(_Coder):
            def iterencode(self, value): ...
            def also_left(self): ...
        class _Error(ValueError):
            def with_traceback(self, trace): ...
            def left_too(self): ...
        class _Unknown(Base):
            def perhaps(self): ...
        class _Listener:
            def onEvent(self): ...
            class Java:
                implements = ["a.b.Listener"]
        def used(): return _Finer, _Error, _Unknown, _Listener
    """
    assert dead_core(text, "used") == {"_Coder.left", "_Finer.also_left", "_Error.left_too"}


def test_fields_and_members_of_enums_are_not_judged(dead_core) -> None:
    text = """
        from dataclasses import dataclass
        from enum import StrEnum
        from typing import ClassVar, NamedTuple
        DEFAULT = 1
        @dataclass(frozen=True)
        class _Record:
            first: int
            second: int = DEFAULT
            unit: ClassVar[str] = "s"
        class _Pair(NamedTuple):
            left: int
        class _Kind(StrEnum):
            ONE = "one"
        def used(): return _Record, _Pair, _Kind
    """
    assert dead_core(text, "used") == {"_Record.unit"}


def test_a_module_that_is_passed_on_is_used_by_its_attributes(dead_core) -> None:
    text = "from tailrace import other\ndef used(): return show(other)\ndef show(it): it.table()"
    assert dead_core(text, "used", other="def table(): ...\ndef left(): ...") == {"left"}


def test_a_package_that_is_reached_as_a_whole_takes_one_line(write, capsys) -> None:
    root = write({"cli/__init__.py": "def main(): ..."})
    assert reachable.main(root) == 0
    assert capsys.readouterr().out == "Users reach all 1 definitions.\n"


def test_what_is_not_reached_is_told_with_its_lines_the_largest_first(write, capsys) -> None:
    core = 'LIMIT = 1\n"""How many."""\n\n@mark\ndef long():\n    return 1\n\nONE = 1\n'
    root = write({"core.py": core, "room/deep.py": "class Thing:\n    one: int\n"})
    assert reachable.main(root) == 1
    assert capsys.readouterr().out.splitlines() == [
        "src/tailrace/core.py:4: function long (3 lines)",
        "src/tailrace/core.py:1: constant LIMIT (2 lines)",
        "src/tailrace/core.py:8: constant ONE (1 line)",
        "src/tailrace/room/deep.py:1: class Thing (2 lines)",
        "core.py: 6 lines that no user reaches",
        "room: 2 lines that no user reaches",
        "tailrace: 8 lines that no user reaches",
    ]


def test_every_name_that_is_listed_by_hand_is_there() -> None:
    modules = sources.read_package(reachable.ROOT)
    for name in reachable.EXTRA_ROOTS:
        home = next(each for each in sorted(modules, reverse=True) if name.startswith(f"{each}."))
        scope: sources.Scope = modules[home]
        for part in name.removeprefix(f"{home}.").split("."):
            scope = scope.definitions[part].inner
