"""``physedit judge FOLDER --repeat N`` and ``--agree-with OTHER``."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.judge_server import failing, judge_server
from tests.support.plain_outputs import files_of, judge_at, verb, write_outputs, wrong_about
from tests.support.stand_ins import png


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return write_outputs(tmp_path / "outputs")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def agreement(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "agreement.json").read_text())
    return found


def test_repeats_ask_every_question_in_spite_of_cache_and_answers_on_file(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with judge_server(always=wrong_about("0.0")) as server:
        assert verb(outputs, "out=out", *judge_at(server)) == 0
        before, judged = files_of(outputs), (tmp_path / "out/items.jsonl").read_bytes()
        assert len(server.asked) == 12
        server.always = wrong_about("0.0", "3.1")
        capsys.readouterr()
        assert verb(outputs, "out=out", "--repeat", 2, *judge_at(server)) == 0
        assert len(server.asked) == 12 + 2 * 12
        said = capsys.readouterr().out
        assert verb(outputs, "out=out", "--repeat", 2, *judge_at(server)) == 0
        assert len(server.asked) == 12 + 2 * 12, "repeats that are on file are kept"
        server.always = wrong_about("3.1")
        assert verb(outputs, "out=out", "--repeat", 3, *judge_at(server), "--json") == 0
        assert len(server.asked) == 12 + 3 * 12
    for row in ("all laws", "Reflection", "Causality"):
        assert "100.0 %" in next(line for line in said.splitlines() if row in line)
    found = agreement(tmp_path / "out")["with_itself"]
    assert (found["num_repeats"], found["overall"]["num_questions"]) == (3, 12)
    # One question of 12 was turned round in the third repeat: two of its three pairs differ.
    assert found["overall"]["share"] == pytest.approx(34 / 36)
    assert found["by_law"]["Reflection"]["share_always_equal"] == pytest.approx(3 / 4)
    assert found["by_law"]["Causality"]["share"] == 1.0
    assert files_of(outputs) == before
    assert (tmp_path / "out/items.jsonl").read_bytes() == judged


def test_a_judge_that_leaves_between_repeats_is_asked_for_the_rest_by_the_same_command(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with judge_server(always=failing(503)) as server:
        more = (*judge_at(server, "judge.concurrency=1"), "--repeat", "2")
        assert verb(outputs, *more) == 1
        assert "run the same command again" in capsys.readouterr().err
        assert not (outputs / "agreement.json").exists()
        server.always = wrong_about()
        assert verb(outputs, *more) == 0
    assert agreement(outputs)["with_itself"]["overall"]["share"] == 1.0


def test_two_judges_agree_beyond_chance_or_do_not(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with judge_server(always=wrong_about("0.0", "0.1", "2.0", "2.1")) as server:
        assert verb(outputs, "out=first", *judge_at(server)) == 0
        server.always = wrong_about("0.0", "0.1", "2.0", "5.1")
        second = (*judge_at(server), "judge.model=looker", "out=second", "--agree-with", "first")
        assert verb(outputs, *second, "--dry-run") == 0
        assert len(server.asked) == 12
        capsys.readouterr()
        assert verb(outputs, *second) == 0
        assert len(server.asked) == 24
        said = capsys.readouterr().out
        assert verb(outputs, *second, "--repeat", 2, "--json") == 0
        assert len(server.asked) == 24 + 24
        printed = json.loads(capsys.readouterr().out)
    found = agreement(tmp_path / "second")
    assert found == printed
    assert (found["with_itself"]["num_repeats"], len(found["judges"])) == (2, 2)
    between = found["between_judges"]["overall"]
    assert (between["num_answered"], between["num_equal"]) == (12, 10)
    # 3 both no, 7 both yes: p_o 10/12, p_e (4 * 4 + 8 * 8) / 144.
    assert between["kappa"] == pytest.approx((10 / 12 - 80 / 144) / (1 - 80 / 144))
    assert found["between_judges"]["by_law"]["Reflection"]["share"] == 1.0
    line = next(line for line in said.splitlines() if "all laws" in line and "83.3 %" in line)
    assert "0.63" in line
    assert (tmp_path / "second/report.json").exists()


def test_agreement_is_not_told_before_all_questions_are_scored(outputs: Path, tmp_path: Path) -> None:
    with judge_server(always=wrong_about()) as server:
        assert verb(outputs, "out=first", *judge_at(server)) == 0
        server.always = failing(503)
        second = (*judge_at(server), "judge.model=looker", "out=second", "--agree-with", "first")
        assert verb(outputs, *second) == 1
    assert not (tmp_path / "second/agreement.json").exists()


HERE = ("judge.model=x", "judge.base_url=http://localhost:1/v1", "out=out")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--repeat", "1"), "--repeat 1: a judge's agreement with itself needs at least 2 repeats"),
        (("--repeat", "2", "--dry-run"), "Leave one of both out"),
        (("--repeat", "2", "judge_time_budget_s=3"), "judge_time_budget_s=3 has no effect on --repeat"),
        (("--agree-with", "nowhere"), "nowhere is not a folder. Give the folder in which another judge's answers lie"),
        (("--agree-with", "outputs"), "outputs has no items.jsonl"),
        (("--agree-with", "out"), "out is where the answers of"),
        (("--agree-with", "broken"), "items.jsonl, line 1 is damaged: judge_id missing"),
        (("--agree-with", "listed"), "items.jsonl, line 1 is damaged: index is [0], expected int"),
        (("--agree-with", "foreign"), "The sides have no question in common"),
        (("--agree-with", "repainted"), "Item 0, question 0 is another picture on one side"),
        (("--agree-with", "same"), "holds answers of the same judge"),
        (("--agree-with", "mixed"), "holds answers of several judges: a, b"),
    ],
)
def test_what_cannot_be_measured_ends_in_one_paragraph_before_anyone_is_asked(
    arguments: tuple[str, ...], said: str, outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments[-1] in ("same", "repainted"):
        with judge_server() as server:
            here = (*judge_at(server, "judge.cache_folder=null"), "out=out")
            assert verb(outputs, *here, f"out={arguments[-1]}") == 0
        if arguments[-1] == "repainted":
            here = HERE
            (outputs / "out/0.png").write_bytes(png(9, 32, 48))
    else:
        here = HERE
    line = {"index": 70, "number": 0, "law": "L", "question": "q", "verdict": "yes", "output_sha256": "h"}
    whole = {**line, "judge_id": "a"}
    for name, lines in {
        "broken": [line], "listed": [{**whole, "index": [0]}], "foreign": [whole],
        "mixed": [whole, {**whole, "judge_id": "b"}],
    }.items():  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "items.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    before = files_of(tmp_path)
    capsys.readouterr()
    assert verb("outputs", *here, *arguments) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("option", [("--repeat", "2"), ("--agree-with", "other")])
def test_a_run_is_pointed_to_its_evaluations(
    option: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    for name in ("config.yaml", "overrides.txt"):
        (tmp_path / "run" / name).write_text("")
    assert verb("run", *HERE[:2], *option) == 2
    assert f"{option[0]} is about a folder of outputs, but run is a run" in capsys.readouterr().err
