import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.judge_server import judge_server
from tests.support.stand_ins import IS_RED, PaintingEditor, RedJudge, context_for, png
from torch import Tensor

from physedit.eval_hooks.judges.judge import (
    JudgeQuestion,
    JudgeUnavailable,
    Verdict,
    VerdictKind,
    asked_anew,
)
from physedit.eval_hooks.judges.openai_compatible import OpenAICompatibleJudge
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.repeats import measure_repeatability


@pytest.fixture
def folder(make_hook: Callable[..., PicaBenchHook], tmp_path: Path) -> Path:
    return make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=400)).folder


class FickleJudge(RedJudge):
    """Turns every fifth answer round."""

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        verdict = super().answer(image, question)
        if len(self.asked) % 5:
            return verdict
        other = VerdictKind.NO if verdict.kind is VerdictKind.YES else VerdictKind.YES
        return Verdict(other, verdict.raw, verdict.explanation)


class LeavingJudge(RedJudge):
    """Leaves before its ``leaves_at``-th question."""

    leaves_at = 20

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        if len(self.asked) >= self.leaves_at:
            raise JudgeUnavailable("gone")
        return super().answer(image, question)


def test_every_question_is_asked_in_every_repeat_though_it_is_answered_already(folder: Path) -> None:
    before, judge = (folder / "items.jsonl").read_bytes(), RedJudge()
    report = measure_repeatability(folder, judge, 3)
    assert len(judge.asked) == 3 * 14
    assert (report.overall.share, report.overall.share_always_equal) == (1.0, 1.0)
    assert (report.overall.num_questions, report.overall.num_unanswered) == (14, 0)
    assert {law: each.num_questions for law, each in report.by_law.items()} == {
        "Reflection": 6, "Causality": 4, "Global": 4,
    }  # fmt: skip
    assert (folder / "items.jsonl").read_bytes() == before
    assert json.loads((folder / "agreement.json").read_text())["with_itself"]["num_repeats"] == 3


def test_a_fickle_judge_disagrees_with_itself_where_it_turned_round(folder: Path) -> None:
    report = measure_repeatability(folder, FickleJudge(), 2)
    # Turned: questions 5 and 10 of the first 14, and 1, 6 and 11 of the second.
    assert report.overall.share == 9 / 14


def test_a_repeat_that_was_left_goes_on_where_it_stopped(folder: Path) -> None:
    judge = LeavingJudge()
    with pytest.raises(JudgeUnavailable):
        measure_repeatability(folder, judge, 2)
    judge.leaves_at = 10**6
    report = measure_repeatability(folder, judge, 2)
    assert len(judge.asked) == 2 * 14
    assert report.overall.num_unanswered == 0
    assert not list((folder / "repeats").rglob("*.journal"))
    measure_repeatability(folder, judge, 2)
    assert len(judge.asked) == 2 * 14


def test_another_judge_and_another_picture_are_asked_about_anew(folder: Path, tmp_path: Path) -> None:
    first, second, out = RedJudge(), RedJudge("other"), tmp_path / "out"
    before = sorted(folder.rglob("*"))
    measure_repeatability(folder, first, 2, out=out)
    measure_repeatability(folder, second, 2, out=out)
    assert (len(first.asked), len(second.asked)) == (2 * 14, 2 * 14)
    measure_repeatability(folder, first, 3, out=out)
    assert len(first.asked) == 3 * 14, "what the first was asked twice is kept beside the second's"
    assert json.loads((out / "agreement.json").read_text())["judges"] == [first.judge_id]
    assert sorted(folder.rglob("*")) == before
    (folder / "manifest.json").unlink()
    picture = next((folder / "output_img").glob("*.png"))
    picture.write_bytes(png(7, 8, 8))
    measure_repeatability(folder, first, 3, out=out)
    assert 3 * 14 < len(first.asked) < 6 * 14


def test_the_network_judge_asks_anew_in_spite_of_its_cache(tmp_path: Path) -> None:
    picture, question = torch.full((3, 64, 96), 128, dtype=torch.uint8), JudgeQuestion(IS_RED, None)
    with judge_server() as server:
        judge = OpenAICompatibleJudge(
            model="seer", base_url=server.base_url, protocol="strict", cache_folder=str(tmp_path)
        )
        judge.answer(picture, question)
        judge.answer(picture, question)
        assert len(server.asked) == 1
        asked_anew(judge).answer(picture, question)
        asked_anew(judge).answer(picture, question)
        assert len(server.asked) == 3
        judge.answer(picture, question)
    assert len(server.asked) == 3
    assert asked_anew(judge).judge_id == judge.judge_id
    assert judge.usage == asked_anew(judge).usage


def test_a_judge_without_a_memory_is_asked_as_it_is() -> None:
    judge = RedJudge()
    assert asked_anew(judge) is judge
