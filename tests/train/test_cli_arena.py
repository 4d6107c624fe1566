"""``physedit arena`` on the command line."""

import json
from pathlib import Path

import pytest
from tests.support.arena_folders import write_edits
from typer.testing import CliRunner

from physedit.eval_hooks.arena.contestants import accuracies_of, parse_folders
from physedit.eval_hooks.arena.votes import ArenaError
from physedit.train.cli import app


@pytest.fixture
def votes(tmp_path: Path) -> Path:
    """Good beats middle beats bad, on 12 items."""
    path = tmp_path / "votes.csv"
    lines = [f"{n},good,middle,a,Reflection\n{n},bad,middle,b,Reflection\n{n},bad,good,b,Global\n" for n in range(12)]
    path.write_text("item,model_a,model_b,winner,law\n" + "".join(lines))
    return path


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    accuracies = {"good": 0.6, "middle": 0.5, "bad": 0.3}
    return [f"{name}={write_edits(tmp_path / f'f_{name}', 9, accuracy=acc)}" for name, acc in accuracies.items()]


def run(*words: object) -> str:
    result = CliRunner().invoke(app, ["arena", *map(str, words)], catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return result.stdout


def test_votes_and_folders_give_ratings_and_correlations(votes: Path, folders: list[str], tmp_path: Path) -> None:
    found = json.loads(run(votes, *folders, "--json", "--resamples", 20, "--out", tmp_path / "arena.json"))
    assert [each["model"] for each in found["ratings"]] == ["good", "middle", "bad"]
    assert (found["num_votes"], found["num_items"]) == (36, 12)
    assert found["votes_by_law"] == {"Global": 12, "Reflection": 24}
    assert found["accuracy"] == {"good": 0.6, "middle": 0.5, "bad": 0.3}
    assert found["correlation"]["spearman"] == pytest.approx(1.0)
    assert 0.9 < found["correlation"]["pearson"] <= 1.0
    assert json.loads((tmp_path / "arena.json").read_text()) == found
    table = run("rate", votes, *folders, "--resamples", 20)
    assert "60.00 %" in table
    assert "Spearman +1.000" in table


def test_votes_alone_give_ratings(votes: Path) -> None:
    found = json.loads(run("--json", "--resamples", 20, votes))
    assert (found["accuracy"], found["correlation"]) == ({}, None)


def test_models_without_votes_and_votes_without_a_folder_are_named(
    votes: Path, folders: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ArenaError, match=r"no known model.*Known are"):
        run(votes, *folders[:2])
    with pytest.raises(ArenaError, match="no vote on other"):
        run(votes, *folders, f"other={write_edits(tmp_path / 'o', 9, accuracy=0.1)}")


def test_accuracies_come_from_one_kind_of_file(folders: list[str]) -> None:
    named = parse_folders(folders)
    assert accuracies_of(named).source == "report.json"
    (named["bad"] / "report.json").unlink()
    found = accuracies_of(named)
    assert (found.source, found.by_model["good"]) == ("analysis.json", pytest.approx(0.59))
    (named["good"] / "analysis.json").unlink()
    with pytest.raises(ArenaError, match=r"good .* has report\.json; middle .* has report\.json and analysis"):
        accuracies_of(named)
    (named["good"] / "analysis.json").write_text('{"overall_accuracy": null}')
    with pytest.raises(ArenaError, match="tells no accuracy"):
        accuracies_of(named)


def test_folders_are_named_by_themselves_or_by_a_word(tmp_path: Path) -> None:
    (tmp_path / "a=b" / "step_4").mkdir(parents=True)
    (tmp_path / "step_4").mkdir()
    assert parse_folders([str(tmp_path / "step_4"), f"x={tmp_path / 'step_4'}", str(tmp_path / "a=b")]) == {
        "step_4": tmp_path / "step_4", "x": tmp_path / "step_4", "a=b": tmp_path / "a=b",
    }  # fmt: skip
    with pytest.raises(ArenaError, match=r"both named step_4.*step_4_1="):
        parse_folders([str(tmp_path / "step_4"), str(tmp_path / "a=b" / "step_4")])
    with pytest.raises(ArenaError, match="no folder"):
        parse_folders(["x=nowhere"])
