import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, read_items
from torch import Tensor

from physedit.eval_hooks.judges.judge import JudgeQuestion, JudgeUnavailable, Verdict
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.judging import JudgeSettings, JudgingOutcome, count_verdicts, judge_folder
from physedit.eval_hooks.picabench.manifest import OutputsMismatch
from physedit.eval_hooks.picabench.measure import measure_folder, read_records


@pytest.fixture
def folder(make_hook: Callable[..., PicaBenchHook], tmp_path: Path) -> Path:
    """A folder of finished edits that another judge has seen."""
    return make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=400)).folder


def test_renamed_and_stale_outputs_are_reported(folder: Path) -> None:
    outputs = folder / "output_img"
    (outputs / "00003.png").rename(outputs / "3.png")
    with pytest.raises(OutputsMismatch, match="1 missing and 1 unknown") as error:
        judge_folder(folder, RedJudge())
    assert "output_img/00003.png" in str(error.value)
    assert "output_img/3.png" in str(error.value)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_corrupt_picture_is_an_error_and_nothing_is_sent(folder: Path, has_manifest: bool) -> None:
    (folder / "output_img/00003.png").write_bytes(b"no picture")
    if not has_manifest:
        (folder / "manifest.json").unlink()
    judge = RedJudge(judge_id="fresh")
    judge_folder(folder, judge, settings=JudgeSettings(max_unanswered_share=0.5))
    measure_folder(folder)
    assert len(judge.asked) == 12
    assert count_verdicts(folder)["error"] == 2
    damaged = [line for line in read_items(folder) if line["index"] == 3]
    assert [(line["verdict"], line["correct"]) for line in damaged] == [("error", None)] * 2
    assert read_records(folder)[3].psnr_db is None


def test_an_exchanged_picture_is_an_error(folder: Path) -> None:
    outputs = folder / "output_img"
    (outputs / "00003.png").write_bytes((outputs / "00002.png").read_bytes())
    judge_folder(folder, RedJudge(), settings=JudgeSettings(max_unanswered_share=0.5))
    assert count_verdicts(folder)["error"] == 2


def test_many_workers_give_the_same_lines(folder: Path) -> None:
    before = (folder / "items.jsonl").read_bytes()
    (folder / "items.jsonl").unlink()
    judge = RedJudge()
    judge_folder(folder, judge, settings=JudgeSettings(workers=4))
    assert len(judge.asked) == 14
    assert (folder / "items.jsonl").read_bytes() == before


class LeavingJudge(RedJudge):
    """Cannot be reached any more after six answers."""

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        if len(self.asked) == 6:
            raise JudgeUnavailable("the judge has left")
        return super().answer(image, question)


def test_answers_given_before_the_judge_left_are_not_asked_again(folder: Path) -> None:
    outcome = judge_folder(folder, LeavingJudge(judge_id="fresh"))
    assert outcome == JudgingOutcome(num_questions=14, num_scored=6, stopped="the judge has left")
    assert count_verdicts(folder)["unscored"] == 14 - 6
    assert {line["correct"] for line in read_items(folder) if line["verdict"] == "unscored"} == {None}
    judge = RedJudge(judge_id="fresh")
    assert judge_folder(folder, judge) == JudgingOutcome(num_questions=14, num_scored=14, stopped=None)
    assert len(judge.asked) == 14 - 6
    assert {line["judge_id"] for line in read_items(folder)} == {"fresh"}


def test_an_evaluation_whose_judge_left_is_continued_without_editing_anew(
    make_hook: Callable[..., PicaBenchHook], tmp_path: Path
) -> None:
    cut = make_hook(LeavingJudge()).run(context_for(PaintingEditor(), tmp_path / "new/run", step=400))
    assert "The judge left. Questions scored: 6 of 14 of the base, 0 of 14 of the checkpoint." in cut.notes
    editor, judge = PaintingEditor(), RedJudge()
    report = make_hook(judge).run(context_for(editor, tmp_path / "new/run", step=400))
    assert report.metrics["picabench/acc"].n == 7
    assert not editor.calls
    assert not any("The judge left" in note for note in report.notes)
    assert len(judge.asked) == 28 - 6


def test_a_folder_of_another_tool_is_judged(folder: Path) -> None:
    items = json.loads((folder / "meta_info.json").read_text())
    for item in items:
        item["output_image_path"] = item.pop("output_path")
        item["edit_area"] = item["edit_area"] or "unknown"
        del item["prompt_level"]
    (folder / "meta_info.json").write_text(json.dumps(items))
    (folder / "manifest.json").unlink()
    judge_folder(folder, RedJudge(), kind_of=lambda text: "red" if "red" in text else "other")
    measure_folder(folder)
    records = read_records(folder)
    assert [answer.kind for answer in records[0].answers] == ["red", "other"]
    assert all(answer.correct for record in records for answer in record.answers)
    assert records[0].level == "unknown"
