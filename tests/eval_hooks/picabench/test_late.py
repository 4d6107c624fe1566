"""Pictures made on every rank, judged later by one process alone."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, read_items

from physedit.eval_hooks.hook import EvalReport, LateContext, LateHook
from physedit.eval_hooks.judges.judge import JudgeQuestion, JudgeUnavailable, Verdict
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.manifest import OutputsMismatch

Make = Callable[..., PicaBenchHook]
STEP = 400


class LeavingJudge(RedJudge):
    """Leaves after so many answers."""

    patience = 5

    def answer(self, image, question: JudgeQuestion) -> Verdict:
        if len(self.asked) >= self.patience:
            raise JudgeUnavailable("gone home")
        return super().answer(image, question)


def late(run: Path, step: int = STEP) -> LateContext:
    return LateContext(step, run, run.parent / "base_cache")


def generate_on_two_ranks(make_hook: Make, run: Path, **settings: object) -> None:
    barrier = threading.Barrier(2, timeout=20)
    errors: list[Exception] = []

    def work(rank: int) -> None:
        try:
            make_hook(**settings).generate(
                context_for(
                    PaintingEditor(), run, step=STEP, rank=rank, world_size=2, barrier=lambda: barrier.wait() and None
                )
            )
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def same(first: EvalReport, second: EvalReport) -> bool:
    names = ("report.json", "items.jsonl", "consistency.jsonl", "analysis.json", "psnr_analysis.json")
    return all((first.folder / name).read_bytes() == (second.folder / name).read_bytes() for name in names)


@pytest.mark.parametrize("reference", [False, True])
def test_pictures_of_two_ranks_judged_by_one_give_the_report_of_a_run(
    make_hook: Make, tmp_path: Path, reference: bool
) -> None:
    plain = make_hook(reference=reference).run(context_for(PaintingEditor(), tmp_path / "one/run", step=STEP))
    run = tmp_path / "two/run"
    generate_on_two_ranks(make_hook, run, reference=reference)
    assert not list(run.rglob("report.json"))
    hook = make_hook(reference=reference)
    assert hook.pending(run, STEP) == (0, STEP)
    assert hook.pending(run, STEP - 1) == (0,)
    report = hook.finish(late(run))
    assert same(report, plain)
    assert report.is_whole
    assert (report.num_questions, report.num_unscored) == (14 * (3 if reference else 2), 0)
    assert hook.finish(late(run)) == report
    hook.finish(late(run, 0))
    assert hook.pending(run, STEP) == ()


def test_a_judge_that_leaves_makes_a_report_that_is_finished_later(make_hook: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    whole = make_hook().run(context_for(PaintingEditor(), tmp_path / "other/run", step=STEP))
    report = make_hook(LeavingJudge()).run(context_for(PaintingEditor(), run, step=STEP))
    assert (report.num_questions, report.num_unscored, report.is_whole) == (28, 23, False)
    hook = make_hook()
    assert hook.pending(run, STEP) == (0, STEP)
    assert same(hook.finish(late(run)), whole)


def test_what_another_judge_has_reported_is_pending_for_this_one(make_hook: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_hook().run(context_for(PaintingEditor(), run, step=STEP))
    other = make_hook(RedJudge(judge_id="other"))
    assert make_hook().pending(run, STEP) == (0,), "step 0 was not reported on"
    assert other.pending(run, STEP) == (0, STEP)
    report = other.finish(late(run))
    assert {line["judge_id"] for line in read_items(report.folder)} == {"other"}


def test_pictures_of_other_settings_or_half_made_ones_are_no_ones_to_judge(make_hook: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_hook().generate(context_for(PaintingEditor(), run, step=STEP))
    other = make_hook(seed=1)
    assert other.pending(run, STEP) == ()
    with pytest.raises(OutputsMismatch, match="edited with other settings"):
        other.finish(late(run))
    (run / f"eval/picabench/step_{STEP:08d}/manifest.json").unlink()
    assert make_hook().pending(run, STEP) == (0,)
    with pytest.raises(OutputsMismatch, match="no finished edits"):
        make_hook().finish(late(run))
    shutil.rmtree(run)
    assert make_hook().pending(run, STEP) == ()


def test_a_base_judged_later_is_shared_with_the_next_run(make_hook: Make, tmp_path: Path) -> None:
    hook, judge, editor = make_hook(), RedJudge(), PaintingEditor()
    hook.generate(context_for(PaintingEditor(), tmp_path / "first", step=0))
    hook.finish(late(tmp_path / "first", 0))
    make_hook(judge).run(context_for(editor, tmp_path / "second", step=0))
    assert (judge.asked, editor.calls) == ([], [])


def test_a_time_budget_for_judging_leaves_questions_open(make_hook: Make, tmp_path: Path) -> None:
    report = make_hook(judge_time_budget_s=1e-9).run(context_for(PaintingEditor(), tmp_path / "run", step=STEP))
    assert report.num_unscored == report.num_questions == 28
    assert any("Questions scored: 0 of 14" in note for note in report.notes)
    with pytest.raises(ValueError, match="judge_time_budget_s is 0"):
        make_hook(judge_time_budget_s=0)


def test_the_hook_is_one_that_can_judge_later(make_hook: Make) -> None:
    hook = make_hook(background=True)
    assert isinstance(hook, LateHook)
    assert (hook.is_background, make_hook().is_background) == (True, False)
