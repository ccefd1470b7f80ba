from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from tailrace.cli.groups import grouped

Width = Annotated[int, typer.Option(help="From left to right.")]


@dataclass(frozen=True, slots=True)
class Area:
    width: Width = 3
    height: Annotated[int | None, typer.Option("--high")] = None


def paint(name: str, *, times: int = 1, area: Area, as_json: bool = False) -> None:
    typer.echo(f"{name} {times} {area} {as_json}")


def test_the_options_of_a_group_stand_in_its_place() -> None:
    parameters = inspect.signature(grouped(paint)).parameters
    assert list(parameters) == ["name", "times", "width", "height", "as_json"]
    assert parameters["width"].annotation == Width
    assert parameters["width"].default == 3


def test_a_command_gets_the_group_made_of_what_the_user_gave() -> None:
    app = typer.Typer()
    app.command()(grouped(paint))
    assert CliRunner().invoke(app, ["wall"]).output == f"wall 1 {Area()} False\n"
    given = CliRunner().invoke(app, ["wall", "--width", "7", "--high", "2", "--times", "4"])
    assert given.output == f"wall 4 {Area(7, 2)} False\n"
