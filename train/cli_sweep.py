"""``physedit sweep``: a sweep in wandb's yaml, run here without a server."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from physedit.train.config import ConfigError

if TYPE_CHECKING:
    from physedit.launch.sweep_runner import SweepPlan
    from physedit.launch.sweep_trials import SweepRecord

_BY_SIGNAL = 128
"""Exit codes from here on say that a signal ended the sweep, and then nobody wants to wait for more."""


def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep in wandb's yaml, such as launch/sweeps/demo.yaml.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Hydra overrides of every trial, such as launch=none seed=1")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Run the trials here, one after another.")] = False,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; default: runs/sweeps/NAME.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Trials; default: run_cap, or the whole grid.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of a random or bayes search.")] = 0,
    stop_at_first_failure: Annotated[
        bool, typer.Option("--stop-at-first-failure", help="Start no trial after one has failed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate every trial, print its command.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print trials.json, or the commands of a dry run.")] = False,
) -> None:
    """Runs the trials of a sweep file without a server: physedit sweep launch/sweeps/demo.yaml --local."""
    from physedit.train.sweeping import SweepRequest, check_is_file, plan_sweep

    check_is_file(file)
    if not local and not dry_run:
        raise ConfigError(
            f"physedit sweep runs trials on this machine: physedit sweep {file} --local. With a server, wandb reads "
            f"the same file: wandb sweep {file}, then wandb agent ID."
        )
    from physedit.launch.sweep_runner import run_sweep
    from physedit.launch.sweep_trials import TRIALS_FILE

    plan = plan_sweep(SweepRequest(file, tuple(overrides or ()), out, count, seed, stop_at_first_failure))
    if dry_run:
        typer.echo(_planned(plan, as_json=as_json))
        return
    record, code = run_sweep(plan)
    if as_json:
        typer.echo(record.as_json(), nl=False)
    else:
        _print_table(record)
        typer.echo(f"{record.summary()}. {plan.folder / TRIALS_FILE}")
    if code < _BY_SIGNAL:
        _compare(plan.folder)
    raise SystemExit(code)


def _compare(folder: Path) -> None:
    """Writes the comparison beside trials.json, and says on the error stream what came of it."""
    from physedit.train.comparing import compare_sweep

    written, why_not = compare_sweep(folder)
    if written:
        typer.echo(f"Compared: {', '.join(path.name for path in written)} in {folder}", err=True)
    if why_not:
        typer.echo(why_not, err=True)


def _planned(plan: SweepPlan, *, as_json: bool) -> str:
    from physedit.train.sweeping import known_trials

    trials = known_trials(plan)
    commands = [list(plan.command(name, parameters)) for name, parameters in trials]
    if as_json:
        rows = [
            {"trial": name, "parameters": parameters, "command": command}
            for (name, parameters), command in zip(trials, commands, strict=True)
        ]
        return json.dumps(rows, indent=2, ensure_ascii=False)
    lines = [f"# {name}\n{shlex.join(command)}" for (name, _), command in zip(trials, commands, strict=True)]
    hidden = plan.num_trials - len(trials)
    if hidden:
        lines.append(f"# The values of {hidden} more depend on the results before them.")
    return "\n".join([*lines, f"# {len(trials)} of {plan.num_trials} trials were validated; nothing was started."])


def _print_table(record: SweepRecord) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=record.name)
    names = list(record.trials[0].parameters) if record.trials else []
    for column in ("trial", *names, "state", "exit code", record.metric.name if record.metric else "metric"):
        table.add_column(column, overflow="fold")
    for trial in record.trials:
        table.add_row(
            trial.trial,
            *(escape(_short(trial.parameters[name])) for name in names),
            trial.state.replace("_", " "),
            "" if trial.exit_code is None else str(trial.exit_code),
            "" if trial.metric is None else f"{trial.metric:.4g}",
        )
    console = Console()
    console.print(table)
    for trial in record.trials:
        for failed in trial.failed_evaluations:
            console.print(
                f"{trial.trial}: an evaluation failed: {failed}", markup=False, highlight=False, soft_wrap=True
            )


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
