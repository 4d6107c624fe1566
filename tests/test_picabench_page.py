"""docs/picabench.md says what the package does."""

import re
import shlex
from pathlib import Path

import pytest

from physedit.eval_hooks.picabench.published import published_rows
from physedit.eval_hooks.report_file import SCHEMA_VERSION
from physedit.train.cli import app
from physedit.train.compose import compose_config

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "picabench.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (physedit [^#\n]+)", PAGE, flags=re.MULTILINE)
_RECIPE = ["experiment=pica100k_kontext"]


def test_the_papers_rows_of_the_bases_are_those_of_the_package() -> None:
    printed = re.findall(
        r"^\| (\d) \| (\w+) \| (\S+) \| ([^|]+) \| ([\d.]+) \| (\w+) \| ([\d.]+) \|$", PAGE, re.MULTILINE
    )
    held = [
        (
            str(row.table), row.level, row.judge, row.model, f"{100 * row.overall:.2f}",
            row.overall_aggregation.value.split(",")[0].removeprefix("per "), f"{row.overall_consistency_db:.2f}",
        )
        for row in published_rows()
        if row.base is not None
    ]  # fmt: skip
    assert printed == held
    assert len(held) == 25


def test_the_doing_nothing_figures_are_the_papers() -> None:
    base, mira = (next(row for row in published_rows() if row.model == f"FLUX.1-Kontext{data}") for data in _DATA)
    assert f"+{mira.overall_consistency_db - base.overall_consistency_db:.2f} dB" in PAGE
    assert f"{100 * (mira.overall - base.overall):.2f} points" in PAGE


_DATA = ("", " + MIRA400K SFT")


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_are_accepted(command: str) -> None:
    _, verb, *words = shlex.split(command)
    assert verb in {info.name or info.callback.__name__ for info in app.registered_commands if info.callback}
    overrides = [word for word in words if re.match(r"[\w.]+=", word)]
    compose_config([*_RECIPE, *(each for each in overrides if each not in _RECIPE)])


def test_it_has_its_commands_and_names_what_exists() -> None:
    assert len(COMMANDS) == 4
    assert f"`schema_version` {SCHEMA_VERSION}" in PAGE
    named = re.findall(r"`((?:eval_hooks|tests|launch|conf)/[\w./-]+)`", PAGE) + [
        f"docs/{page}" for page in re.findall(r"\]\(([\w.-]+\.md)\)", PAGE)
    ]
    assert len(named) >= 5
    assert [path for path in named if not (ROOT / path).exists()] == []
