"""``physedit doctor``: what would go wrong with a run, before it is started."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from physedit.train.cli_options import ConfigDir
from physedit.train.compose import compose_config

if TYPE_CHECKING:
    from physedit.train.doctor.finding import Finding

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}
_CHECK_WIDTH = 18


def doctor(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Those of the run, such as experiment=demo; without any: the demo's.")
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Start the launch's processes and measure between them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of {check, state, found, remedy}.")] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Says what would go wrong with a run: machine, weights, data, judge, disk. It trains and leaves nothing."""
    given = recipe(overrides or [])
    config = compose_config(given, config_dir=config_dir)
    from physedit.train import launching
    from physedit.train.doctor.examine import examine
    from physedit.train.doctor.finding import exit_code

    launching.check_launch(config)
    findings: list[Finding] = []
    with _quiet():
        for finding in examine(config, given, distributed=distributed, config_dir=config_dir):
            findings.append(finding)
            if not as_json:
                _say(finding)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        counts = ", ".join(f"{sum(each.state == state for each in findings)} {state}" for state in _STYLES)
        typer.echo(counts)
    raise SystemExit(exit_code(findings))


def recipe(overrides: Sequence[str]) -> list[str]:
    """Returns overrides that compose: those of the demo, unless they choose an experiment or data."""
    chooses = any(each.startswith(("experiment=", "data=")) for each in overrides)
    return [*([] if chooses else ["experiment=demo"]), *overrides]


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the context the parts that are examined report warnings alone."""
    log = logging.getLogger("physedit")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _say(finding: Finding) -> None:
    from rich.console import Console
    from rich.text import Text

    line = Text(f"{finding.state:8}", style=_STYLES[finding.state])
    line.append(f"{finding.check:{_CHECK_WIDTH}} {finding.found}", style="default")
    if finding.remedy:
        line.append(f". {finding.remedy}" if not finding.found.endswith(".") else f" {finding.remedy}", style="bold")
    Console(soft_wrap=True, highlight=False).print(line)
