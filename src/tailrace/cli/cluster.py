"""``tailrace cluster``: a Spark cluster on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.app import app

cluster = typer.Typer(
    no_args_is_help=True, help="A Spark cluster on this machine, for development and tests."
)
app.add_typer(cluster, name="cluster")

LOOK_S = 0.5


@cluster.callback()
def group() -> None:
    """A Spark cluster on this machine, for development and tests."""


@cluster.command()
def start(
    *,
    workers: Annotated[int, typer.Option(help="How many workers.")] = 1,
    cores: Annotated[
        int, typer.Option(help="Cores of each worker; may be more than the machine has.")
    ] = 4,
    memory: Annotated[str, typer.Option(help="Memory of each worker, per core.")] = "1 GiB",
    port: Annotated[int, typer.Option(help="Port of the master.")] = 7077,
    archived: Annotated[
        bool,
        typer.Option(
            "--archive/--no-archive",
            help="Start executors faster, from an archive of their classes.",
        ),
    ] = True,
) -> None:
    """Run a standalone master and workers until Ctrl-C, on loopback."""
    from tailrace.spark.cluster import archive  # noqa: PLC0415 - commands import what they need
    from tailrace.spark.cluster.local import Cluster  # noqa: PLC0415
    from tailrace.spark.interrupt import ctrl_c  # noqa: PLC0415

    if archived and not archive.path().exists():
        typer.echo(
            "Making the archive that executors start from; once only, half a minute.", err=True
        )
        archive.ensure()
    with (
        ctrl_c() as asked_to_end,
        Cluster(workers, cores, memory=memory, port=port) as running,
    ):
        typer.echo(f"{workers} x {cores} cores at {running.master}; Ctrl-C stops them.", err=False)
        while not asked_to_end.is_set():
            running.watch(LOOK_S)
