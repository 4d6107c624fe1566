"""``physedit compare``: runs beside each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from physedit.train.config import ConfigError

if TYPE_CHECKING:
    from physedit.eval_hooks.comparing.comparison import Comparison
    from physedit.eval_hooks.comparing.tables import Shown


def compare(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders, a sweep's folder (runs/sweeps/NAME), or offline runs of wandb."),
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(help="ENTITY/PROJECT, or ENTITY/PROJECT/SWEEP: reads the runs over wandb's API.")
    ] = None,
    wandb_group: Annotated[str | None, typer.Option(help="Of --wandb, only the runs of this tracker.group.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the files go; default: the sweep's folder, else runs/compare.")
    ] = None,
    at: Annotated[Literal["newest", "best"], typer.Option(help="Which evaluated step stands for a run.")] = "newest",
    against: Annotated[str | None, typer.Option(help="Test each run against this one alone, not every pair.")] = None,
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Compare runs that were not evaluated alike, and say so.")
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Put the paper's rows of the same base, judge and level beside them.")
    ] = False,
    no_page: Annotated[bool, typer.Option("--no-page", help="Write no compare.html, which needs plotly.")] = False,
    per_law: Annotated[int, typer.Option(min=0, help="Pictured items of each law.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json instead of the tables.")] = False,
) -> None:
    """Puts runs beside each other: what differs in settings and numbers, and whether that is more than chance."""
    given = tuple(paths or ())
    if not given and wandb is None:
        raise ConfigError(
            "There is nothing to compare. Give run folders (physedit compare runs/a runs/b), a sweep's folder "
            "(physedit compare runs/sweeps/NAME), or --wandb ENTITY/PROJECT."
        )
    if wandb is None and wandb_group is not None:
        raise ConfigError("--wandb-group has no effect without --wandb ENTITY/PROJECT.")
    from physedit.eval_hooks.comparing.files import JSON
    from physedit.eval_hooks.comparing.runs import When
    from physedit.launch.sweep_trials import TRIALS_FILE
    from physedit.train.comparing import CompareRequest
    from physedit.train.comparing import compare as compare_all
    from physedit.train.wandb_runs import Project

    only_sweep = len(given) == 1 and wandb is None and (given[0] / TRIALS_FILE).exists()
    request = CompareRequest(
        paths=given,
        project=None if wandb is None else Project(wandb, wandb_group),
        out=out or (given[0] if only_sweep else Path("runs/compare")),
        when=When(at),
        against=against,
        allow_different=allow_different,
        published=published,
        page=not no_page,
        per_law=per_law,
    )
    comparison, written = compare_all(request)
    if as_json:
        typer.echo((request.out / JSON).read_text(encoding="utf-8"), nl=False)
    else:
        _print(comparison)
        for path in written:
            typer.echo(path)


def _print(comparison: Comparison) -> None:
    from rich.console import Console

    from physedit.eval_hooks.comparing.tables import how_tested, runs_table, settings_table, tests_table

    console = Console()
    for hook in comparison.hooks:
        console.print(_rich(_results_of(runs_table(comparison, hook), len(comparison.differing))))
        for difference in hook.differences:
            console.print(f"Not alike, and compared all the same: {difference}.", markup=False, highlight=False)
        for note in hook.notes:
            console.print(note, markup=False, highlight=False)
    if comparison.tests:
        console.print(_rich(tests_table(comparison.tests)))
        console.print(how_tested(comparison.tests), markup=False, highlight=False)
    if comparison.differing:
        console.print(_rich(settings_table(comparison)))
    for note in comparison.notes:
        console.print(note, markup=False, highlight=False)


def _results_of(shown: Shown, num_settings: int) -> Shown:
    """The table without its settings, which come last and stand in one of their own here: terminals are narrow."""
    keep = len(shown.headings) - num_settings
    rows = tuple(tuple(cell.replace(" (", "\n(") for cell in row[:keep]) for row in shown.rows)
    return replace(shown, headings=shown.headings[:keep], rows=rows)


def _rich(shown: Shown) -> object:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(shown.title), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, heading in enumerate(shown.headings):
        table.add_column(escape(heading), justify="left" if place == 0 else "right", overflow="fold")
    for row in shown.rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
