"""What the README tells people to type exists and is accepted."""

import re
import shlex
from pathlib import Path

import pytest

from physedit.train.cli import app
from physedit.train.compose import compose_config

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"(?:^|`)((?:\.venv/bin/)?physedit [a-z][^`\n#]*)", README, flags=re.MULTILINE)))

_RECIPE_OF = {"eval": ("experiment=pica100k_kontext",), "judge": ("experiment=pica100k_kontext",)}
"""Verbs whose overrides are laid over the settings of a run."""


def test_the_readme_has_its_commands():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_physedit_command_names_a_verb_and_composes(command):
    words = shlex.split(command)[1:]
    verbs = {info.name or info.callback.__name__ for info in app.registered_commands}
    groups = {info.name: info.typer_instance for info in app.registered_groups}
    if words[0] in groups:
        assert words[1] in {info.name for info in groups[words[0]].registered_commands}
    else:
        assert words[0] in verbs
    overrides = [word for word in words if re.match(r"[\w.]+=", word)]
    if overrides:
        compose_config([*_RECIPE_OF.get(words[0], ()), *overrides])


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^\s*`?(?:make) (\w+)", README, flags=re.MULTILINE)) | {"demo", "test", "check"}
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_ci_runs_the_readmes_test_command():
    assert "\nmake test" in README
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_path_the_readme_names_exists():
    named = set(
        re.findall(r"`((?:benchmarks|conf|docs|launch|models|train|tests|data_loaders|eval_hooks)/[\w./-]*)`", README)
    )
    named |= set(re.findall(r"\]\(([\w./-]+)\)", README))
    assert len(named) >= 5
    for path in named:
        assert (ROOT / path).exists(), path
