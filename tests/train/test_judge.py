"""``physedit judge FOLDER``: outputs of any editor, judged into a place of choice."""

import errno
import json
import logging
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from tests.support.judge_server import Reply, failing, judge_server
from tests.support.plain_outputs import files_of, judge_at, verb, write_outputs, wrong_about
from tests.support.runs import physedit

from physedit.eval_hooks.report_file import load_report, report_schema
from physedit.train.guarded import guarded
from physedit.train.judge import outputs_of

RESULTS = {
    "analysis.json", "consistency.jsonl", "items.jsonl", "judging.json", "output.json", "psnr_analysis.json",
    "psnr_analysis_512.json", "report.html", "report.json", "timing.json",
}  # fmt: skip


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return write_outputs(tmp_path / "outputs")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_folder_is_judged_elsewhere_and_is_not_touched(outputs: Path, tmp_path: Path, api: str) -> None:
    before, out = files_of(outputs), tmp_path / "results"
    with judge_server(always=wrong_about("0.0", "0.1", "3.0")) as server:
        assert verb(outputs, f"out={out}", *judge_at(server, f"judge.api={api}")) == 0
    assert files_of(outputs) == before
    assert {path.name for path in out.iterdir()} == RESULTS
    assert {asked.path for asked in server.asked} == {"/v1/responses" if api == "responses" else "/v1/chat/completions"}
    analysis = read(out / "analysis.json")
    assert analysis["qa_total"] == 12
    assert analysis["overall_accuracy"] == pytest.approx(100 * (0 + 1 + 1 + 0.5 + 1 + 1) / 6)
    assert analysis["by_law"]["Reflection"] == {"accuracy": 50.0, "sample_count": 2, "qa_total": 4}
    report = load_report(out)
    assert report.metrics["picabench/acc"].tuned == pytest.approx(9 / 12)
    assert report.metrics["picabench/acc_item"].tuned == pytest.approx(4.5 / 6)
    assert (report.num_questions, report.num_unscored) == (12, 0)
    record = read(out / "report.json")
    assert not list(Draft202012Validator(report_schema()).iter_errors(record))
    assert read(out / "psnr_analysis.json")["overall_statistics"]["count"] == 6


def test_a_place_in_ones_home_is_found_there(outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with judge_server() as server:
        assert verb(outputs, "out=~/results", *judge_at(server)) == 0
    assert (tmp_path / "results" / "report.json").is_file()


def test_a_folder_at_the_root_of_the_file_system_is_a_folder_as_any_other() -> None:
    told = ["judge.model=seer", "judge.base_url=http://localhost:1/v1"]
    with pytest.raises(ValueError, match=r"has no meta_info\.json|cannot be written"):
        outputs_of(Path("/no-such-outputs"), told, None, None)


def test_the_papers_rows_are_found_by_the_editor_and_the_level_that_are_told(outputs: Path, tmp_path: Path) -> None:
    told = ("judge.model=gpt-5", "editor=Qwen/Qwen-Image-Edit", "level=explicit")
    with judge_server(always=wrong_about()) as server:
        assert verb(outputs, f"out={tmp_path / 'told'}", *judge_at(server), *told) == 0
        assert verb(outputs, f"out={tmp_path / 'not'}", *judge_at(server), told[0]) == 0
    published = read(tmp_path / "told/report.json")["published"]
    assert [row["model"] for row in published["rows"]] == ["Qwen-Image-Edit", "Qwen-Image-Edit + PICA-100K SFT"]
    assert "whose weights are not named" in read(tmp_path / "not/report.json")["published"]["notes"][0]


def test_strict_and_official_differ_in_what_a_reply_without_yes_or_no_counts(outputs: Path, tmp_path: Path) -> None:
    found = {}
    for protocol in ("official", "strict"):
        with judge_server([Reply(text="It is hard to say from this angle.")]) as server:
            out = tmp_path / protocol
            assert verb(outputs, f"out={out}", *judge_at(server, f"judge.protocol={protocol}")) == 0
        found[protocol] = load_report(out).metrics["picabench/acc"]
    assert found["official"].tuned == pytest.approx(11 / 12)
    assert found["strict"].tuned == 1.0


def test_an_outage_keeps_what_was_answered_and_the_next_call_asks_for_the_rest(
    outputs: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with judge_server([Reply()] * 5, failing(503, "restarting")) as server:
        more = judge_at(server, "judge.concurrency=1", "judge.cache_folder=null")
        assert verb(outputs, *more) == 1
        said = capsys.readouterr().err
        assert "5 of 12 questions are scored" in said
        assert "run the same command again" in said
        assert "5 of 12 questions: judging" in caplog.text
        assert "12 of 12 questions" not in caplog.text
        assert (said.count("restarting"), caplog.text.count("are scored")) == (1, 0)
        report = load_report(outputs)
        assert (report.num_questions, report.num_unscored) == (12, 7)
        assert any("Questions scored: 5 of 12" in note for note in report.notes)
        assert read(outputs / "analysis.json")["qa_total"] == 5
        server.always = Reply()
        server.asked.clear()
        assert verb(outputs, *more) == 0
        assert len(server.asked) == 7
        server.asked.clear()
        once = files_of(outputs)
        assert verb(outputs, *more) == 0
    assert not server.asked
    assert {name: content for name, content in files_of(outputs).items() if name != "timing.json"} == {
        name: content for name, content in once.items() if name != "timing.json"
    }
    assert load_report(outputs).is_whole


def test_a_refused_request_is_said_once(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with judge_server(always=failing(400, "At most 0 image(s)")) as server:
        assert verb(outputs, *judge_at(server, "judge.concurrency=1")) == 1
    assert capsys.readouterr().err.count("At most 0 image(s)") >= 1
    assert len(server.asked) == 1
    assert load_report(outputs).num_unscored == 11  # the refused one is an error


def test_a_time_budget_leaves_the_rest_for_later(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with judge_server(always=Reply(delay_s=0.4)) as server:
        more = judge_at(server, "judge.concurrency=1")
        assert verb(outputs, "judge_time_budget_s=0.2", *more) == 1
        assert "the time budget for judging, 0.2 s, is used up" in capsys.readouterr().err
        assert 0 < load_report(outputs).num_unscored < 12


def test_a_dry_run_counts_and_writes_and_asks_nothing(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = ("judge.usd_per_million_input=1000", "judge.usd_per_million_output=10000")
    with judge_server([Reply()] * 5, failing(503)) as server:
        more = judge_at(server, "judge.concurrency=1", *prices)
        before = files_of(outputs.parent)
        assert verb(outputs, *more, "--dry-run", "--json") == 0
        plan = json.loads(capsys.readouterr().out)
        assert files_of(outputs.parent) == before
        assert not server.asked
        assert [plan[key] for key in ("num_items", "num_questions", "num_answered", "num_cached", "num_to_ask")] == [
            6, 12, 0, 0, 12,
        ]  # fmt: skip
        assert plan["cost_usd"] == pytest.approx(12 * (1300 * 1000 + 100 * 10000) / 1e6)
        assert verb(outputs, *more, f"out={outputs.parent / 'first'}") == 1
        capsys.readouterr()
        assert verb(outputs, *more, "--dry-run", "--json") == 0
        assert json.loads(capsys.readouterr().out)["num_cached"] == 5
        assert verb(outputs, *more, f"out={outputs.parent / 'first'}", "--dry-run", "--json") == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["num_answered"], plan["num_cached"], plan["num_to_ask"]) == (5, 0, 7)
        assert plan["cost_usd"] == pytest.approx(7 * (1000 * 1000 + 100 * 10000) / 1e6), "as measured: 1000 in, 100 out"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "judge.model=x"), "nowhere does not exist"),
        ((".", "judge.model=x"), "Did you mean outputs?"),
        (("outputs",), "No judge was chosen"),
        (("outputs", "judge=gpt6"), "judge=gpt6 is not an option of judge. Did you mean gpt5"),
        (("outputs", "judge.model=x", "optimizer.lr=1"), "optimizer.lr=1 has no effect on judging a folder"),
        (("outputs", "judge.model=x", "judge.base_url=http://localhost:1/v1", "judge.api=chats"), "judge.api"),
        (("outputs", "judge.model=x", "out=a", "--out", "b"), "Leave one out"),
        (("outputs", "judge.model=x", "judge_time_budget_s=soon"), "judge_time_budget_s=soon must be seconds"),
        (("outputs", "judge=pixel_rules", "area_frame=other"), "area_frame=other is not known"),
        (("outputs", "judge=pixel_rules", "level=short"), "level=short is not known. Use superficial, intermediate"),
        (("outputs", "judge.model=x"), "OPENAI_API_KEY"),
    ],
)
def test_what_cannot_be_used_ends_in_one_paragraph(
    arguments: tuple[str, ...], said: str, outputs: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    before = files_of(outputs)
    assert verb(*arguments) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert files_of(outputs) == before


@pytest.mark.parametrize("content", ["{", '{"a": 1}', "[]", "[1]"])
def test_a_folder_without_readable_items_is_refused(
    content: str, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (outputs / "meta_info.json").write_text(content)
    assert verb(outputs, "judge.model=x", "judge.base_url=http://localhost:1/v1") == 2
    assert "meta_info.json" in capsys.readouterr().err


def test_an_evaluation_of_a_run_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run/eval/picabench/step_00000004"
    folder.mkdir(parents=True)
    (folder / "meta_info.json").write_text("[]")
    for name in ("config.yaml", "overrides.txt"):
        (tmp_path / "run" / name).write_text("")
    assert verb(folder, "judge.model=x", "judge.base_url=http://localhost:1/v1") == 2
    assert "is an evaluation of the run" in capsys.readouterr().err


def test_the_command_prints_the_report_and_leaves_no_key(outputs: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "sk-SECRET")
    with judge_server() as server:
        done = physedit(
            "judge", str(outputs), f"out={tmp_path / 'out'}", "--json",
            *judge_at(server, "judge.api_key_env=SECRET_KEY"), cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == read(tmp_path / "out" / "report.json")
    assert "12 of 12 questions" in done.stderr
    assert "sk-SECRET" not in done.stderr
    assert not [name for name, content in files_of(tmp_path).items() if b"sk-SECRET" in content]


def test_half_a_character_counts_as_the_published_script_counts_it(outputs: Path, tmp_path: Path) -> None:
    meta = json.loads((outputs / "meta_info.json").read_text())
    half = json.loads('"bad \\ud83d"')
    meta[0]["annotated_qa_pairs"][0]["question"] = half
    (outputs / "meta_info.json").write_text(json.dumps(meta))
    text = json.dumps({"answer": "No", "explanation": half}, ensure_ascii=False)
    out = tmp_path / "results"
    with judge_server(always=Reply(text=text)) as server:
        assert verb(outputs, f"out={out}", *judge_at(server)) == 0
    pairs = [pair for item in json.loads((out / "output.json").read_text()) for pair in item["annotated_qa_pairs"]]
    assert {pair["is_correct"] for pair in pairs} == {False}
    assert [pair.get("model_explanation") for pair in pairs] == ["", *[half] * 11]
    assert "error" in pairs[0]
    assert load_report(out).num_unscored == 0


def test_the_client_says_nothing_about_each_request() -> None:
    guarded(lambda: None)
    assert {logging.getLogger(name).getEffectiveLevel() for name in ("httpx", "httpx2")} == {logging.WARNING}


def test_what_is_left_out_of_a_strict_accuracy_is_told(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with judge_server([Reply(text="Hard to say."), Reply(refusal="I cannot.")]) as server:
        told = judge_at(server, "judge.protocol=strict", "judge.concurrency=1")
        assert verb(outputs, f"out={tmp_path / 'results'}", *told) == 0
    sentence = "2 of 12 questions have no yes or no and are left out of the accuracy: 1 unparsed, 1 refused."
    assert sentence in load_report(tmp_path / "results").notes
    assert sentence in " ".join(capsys.readouterr().out.split())


def test_damaged_annotations_of_ones_own_are_not_to_be_deleted(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (outputs / "meta_info.json").write_text("[{")
    with judge_server() as server:
        assert verb(outputs, *judge_at(server)) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Mend the file, or have it written again by what made the folder" in said
    assert "Delete" not in said


def test_a_refusal_has_no_words_in_the_published_form(outputs: Path, tmp_path: Path) -> None:
    with judge_server(always=Reply(refusal="I cannot.")) as server:
        assert verb(outputs, f"out={tmp_path / 'results'}", *judge_at(server)) == 0
    items = json.loads((tmp_path / "results" / "output.json").read_text())
    pairs = [pair for item in items for pair in item["annotated_qa_pairs"]]
    said = ("model_answer", "model_response", "model_explanation", "is_correct")
    assert {tuple(pair[key] for key in said) for pair in pairs} == {("Unknown", "", "", False)}


def test_an_output_path_with_a_slash_at_its_end_has_no_psnr(outputs: Path, tmp_path: Path) -> None:
    meta = json.loads((outputs / "meta_info.json").read_text())
    meta[0]["output_path"] += "/"
    (outputs / "meta_info.json").write_text(json.dumps(meta))
    with judge_server() as server:
        assert verb(outputs, f"out={tmp_path / 'results'}", *judge_at(server)) == 0
    assert load_report(tmp_path / "results").num_unscored == 0
    psnr = read(tmp_path / "results" / "psnr_analysis.json")["overall_statistics"]
    assert isinstance(psnr, dict)
    assert psnr["count"] == 5


def test_a_place_that_takes_no_file_is_refused_before_anyone_is_asked(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with judge_server() as server:
        assert verb(outputs, "out=/proc/x", *judge_at(server)) == 2
        assert verb(outputs, "out=", *judge_at(server)) == 2
    assert not server.asked
    said = " ".join(capsys.readouterr().err.split())
    assert "/proc/x cannot be written" in said
    assert "out= names no folder" in said
    assert not (outputs / "report.json").exists()


def test_a_full_disk_speaks_of_answers(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr("physedit.eval_hooks.picabench.outputs.judge_folder", full)
    with judge_server() as server:
        assert verb(outputs, *judge_at(server)) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "MiB are free" in said
    assert "What was answered is kept" in said
    assert "checkpoints" not in said


def test_a_folder_of_which_no_item_has_an_output_is_refused(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = json.loads((outputs / "meta_info.json").read_text())[:1]
    meta[0]["output_path"] = None
    (outputs / "meta_info.json").write_text(json.dumps(meta))
    with judge_server() as server:
        assert verb(outputs, *judge_at(server)) == 2
    assert "has an output, so there is nothing to judge" in " ".join(capsys.readouterr().err.split())


def test_a_misspelled_model_is_suggested(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(outputs, "judge.modle=seer", "judge.base_url=http://127.0.0.1:1/v1") == 2
    assert "Did you mean judge.model?" in " ".join(capsys.readouterr().err.split())


def test_a_run_without_a_judge_is_to_be_given_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("{}")
    (run / "overrides.txt").write_text("eval=picabench\njudge=none\n")
    assert verb(run, "judge.base_url=http://127.0.0.1:1/v1") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "has no judge (judge=none). Choose one beside it: judge=NAME (gpt5" in said
