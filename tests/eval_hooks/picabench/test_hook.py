import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, read_items, write_benchmark

from physedit.data_loaders.images import read_rgb
from physedit.data_loaders.sample import DatasetLayoutError
from physedit.eval_hooks.hook import EvalReport, Flips
from physedit.eval_hooks.judges.judge import VerdictKind
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.judging import TooManyUnanswered
from physedit.eval_hooks.picabench.measures import PicaBenchMeasures
from physedit.eval_hooks.picabench.scene_measures import SceneMeasures
from physedit.eval_hooks.ranks import FailedElsewhere
from physedit.models.sizes import PictureSizes

Make = Callable[..., PicaBenchHook]


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "timing.json"
    }


def test_a_painting_adapter_turns_every_red_question_right(make_hook: Make, tmp_path: Path) -> None:
    report = make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=400))
    change = report.metrics["picabench/acc"]
    assert (change.base, change.tuned, change.change, change.n) == (0.5, 1.0, 0.5, 7)
    assert report.metrics["picabench/acc_item"].tuned == 1.0
    assert report.metrics["picabench/acc/Reflection"].n == 3
    assert report.metrics["picabench/acc/category/State"].n == 2
    assert report.metrics["picabench/acc/operation/add"].n == 3
    assert report.metrics["picabench/acc/level/superficial"].n == 7
    assert report.flips["picabench/acc"] == Flips(gained=7, lost=0)
    assert report.notes[0] == "Judge: A stand-in that compares colours."
    assert report.folder == tmp_path / "run/eval/picabench/step_00000400"


def test_the_folder_can_be_scored_by_the_published_scripts(make_hook: Make, tmp_path: Path) -> None:
    folder = make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=400)).folder
    items = json.loads((folder / "meta_info.json").read_text())
    assert [item["index"] for item in items] == list(range(7))
    for item in items:
        assert (folder / item["input_path"]).exists()
        assert (folder / item["output_path"]).exists()
        assert {"physics_category", "physics_law", "edit_operation", "edit_instruction"} <= item.keys()
        assert {"question", "answer", "box"} == item["annotated_qa_pairs"][0].keys()
    assert items[2]["edit_area"] is None
    assert items[0]["edit_area"] == [{"x": 4.0, "y": 4.0, "width": 3.0, "height": 3.0}]
    lines = read_items(folder)
    assert len(lines) == 14
    assert {"index", "law", "category", "operation", "level", "question", "reference", "verdict"} <= lines[0].keys()
    assert {"correct", "raw", "explanation", "judge_id", "kind"} <= lines[0].keys()


def test_step_0_changes_exactly_nothing(make_hook: Make, tmp_path: Path) -> None:
    report = make_hook().run(context_for(PaintingEditor(), tmp_path / "run"))
    assert {change.change for change in report.metrics.values()} == {0.0}
    assert {change.ci95 for change in report.metrics.values()} == {(0.0, 0.0)}
    assert report.folder.name == "base"


def test_an_adapter_without_effect_changes_exactly_nothing_even_under_a_fickle_judge(
    make_hook: Make, tmp_path: Path
) -> None:
    editor, judge = PaintingEditor(), RedJudge(replies=[VerdictKind.UNPARSED] * 2)
    context = context_for(editor, tmp_path / "run", step=400)

    def paint_nothing() -> None:
        editor.denoiser.is_adapter_on = False

    paint_nothing()
    context = replace(context, without_adapter=lambda: torch.no_grad())
    report = make_hook(judge, max_unanswered_share=0.2).run(context)
    assert {change.change for change in report.metrics.values()} == {0.0}
    # 14 questions about the base; of the equal pictures only the two that were left open are asked again
    assert len(judge.asked) == 16


def test_the_base_is_made_once_for_all_runs(make_hook: Make, tmp_path: Path) -> None:
    first, second, judge = PaintingEditor(), PaintingEditor(), RedJudge()
    make_hook().run(context_for(first, tmp_path / "a"))
    report = make_hook(judge).run(context_for(second, tmp_path / "b"))
    assert sum(first.calls) == 7
    assert second.calls == []
    assert judge.asked == []
    assert _files(tmp_path / "a/eval") == _files(report.folder.parents[1])


def test_another_judge_finds_the_base_pictures_and_answers_anew(make_hook: Make, tmp_path: Path) -> None:
    make_hook().run(context_for(PaintingEditor(), tmp_path / "a"))
    editor, judge = PaintingEditor(), RedJudge(judge_id="another")
    make_hook(judge).run(context_for(editor, tmp_path / "b"))
    assert editor.calls == []
    assert len(judge.asked) == 14


def test_other_settings_make_another_base(make_hook: Make, tmp_path: Path) -> None:
    make_hook().run(context_for(PaintingEditor(), tmp_path / "a"))
    editor = PaintingEditor()
    make_hook(seed=1).run(context_for(editor, tmp_path / "b"))
    assert sum(editor.calls) == 7


def test_a_finished_evaluation_is_only_read(make_hook: Make, tmp_path: Path) -> None:
    first = make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=400))
    editor, judge = PaintingEditor(), RedJudge()
    again = make_hook(judge).run(context_for(editor, tmp_path / "run", step=400))
    assert again == first
    assert editor.calls == []
    assert judge.asked == []


def test_other_weights_at_the_same_step_are_evaluated_anew(make_hook: Make, tmp_path: Path) -> None:
    make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=400))
    for adapter_id in ("others", ""):
        editor = PaintingEditor(only_even=True)
        context = replace(context_for(editor, tmp_path / "run", step=400), adapter_id=adapter_id)
        report = make_hook().run(context)
        assert sum(editor.calls) == 7
        assert report.flips["picabench/acc"].gained == 4


def test_evaluations_are_the_same_bytes_each_time(make_hook: Make, tmp_path: Path) -> None:
    folders = []
    for name in ("a", "b"):
        context = context_for(PaintingEditor(), tmp_path / name / "run", step=400)
        folders.append(make_hook().run(context).folder)
    assert _files(folders[0]) == _files(folders[1])


def test_a_picture_does_not_depend_on_its_batch(make_hook: Make, tmp_path: Path) -> None:
    outputs = []
    for size in (1, 3):
        context = context_for(PaintingEditor(), tmp_path / str(size) / "run")
        outputs.append(_files(make_hook(batch_size=size).run(context).folder / "output_img"))
    assert outputs[0] == outputs[1]


def test_nothing_of_training_is_disturbed(make_hook: Make, tmp_path: Path) -> None:
    editor = PaintingEditor()
    editor.denoiser.train()
    editor.denoiser.dropout.eval()
    torch.manual_seed(11)
    np.random.seed(11)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    flags = {name: p.requires_grad for name, p in editor.denoiser.named_parameters()}
    make_hook().run(context_for(editor, tmp_path / "run", step=400))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert {name: p.requires_grad for name, p in editor.denoiser.named_parameters()} == flags
    assert (editor.denoiser.training, editor.denoiser.dropout.training) == (True, False)
    assert torch.is_grad_enabled()


def _run_on_two_ranks(
    make_hook: Make, run: Path, editors: list[PaintingEditor], judges: list[RedJudge], **settings: object
) -> list[object]:
    barrier = threading.Barrier(2, timeout=20)
    results: list[object] = [None, None]

    def work(rank: int) -> None:
        context = context_for(
            editors[rank], run, step=400, rank=rank, world_size=2, barrier=lambda: barrier.wait() and None
        )
        try:
            results[rank] = make_hook(judges[rank], **settings).run(context)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(("batch_size", "num_calls"), [(1, 8), (2, 4)])
def test_two_ranks_give_each_item_once_and_the_numbers_of_one(
    make_hook: Make, tmp_path: Path, batch_size: int, num_calls: int
) -> None:
    alone = make_hook(batch_size=batch_size).run(context_for(PaintingEditor(), tmp_path / "one/run", step=400))
    editors, judges = [PaintingEditor(), PaintingEditor()], [RedJudge(), RedJudge()]
    first, second = _run_on_two_ranks(make_hook, tmp_path / "two/run", editors, judges, batch_size=batch_size)
    assert isinstance(first, EvalReport)
    assert first == second
    assert first.metrics == alone.metrics
    assert _files(first.folder) == _files(alone.folder)
    assert [line["index"] for line in read_items(first.folder)] == [i for i in range(7) for _ in range(2)]
    # a sharded denoiser is a collective: both ranks call it equally often
    assert len(editors[0].calls) == len(editors[1].calls) == num_calls
    assert sum(len(judge.asked) for judge in judges) == 28


def test_a_failure_on_one_rank_ends_the_evaluation_on_both(make_hook: Make, tmp_path: Path) -> None:
    editors = [PaintingEditor(), PaintingEditor(fail_after=1)]
    first, second = _run_on_two_ranks(make_hook, tmp_path / "run", editors, [RedJudge(), RedJudge()])
    assert isinstance(first, FailedElsewhere)
    assert "rank 1: RuntimeError: the process was killed" in str(first)
    assert isinstance(second, RuntimeError)


def test_unparsed_refused_and_failed_answers_are_counted_apart(make_hook: Make, tmp_path: Path) -> None:
    replies = [VerdictKind.UNPARSED, VerdictKind.YES, VerdictKind.REFUSED, VerdictKind.YES, VerdictKind.ERROR]
    report = make_hook(RedJudge(replies=replies), max_unanswered_share=0.5).run(
        context_for(PaintingEditor(), tmp_path / "run", step=400)
    )
    record = json.loads((report.folder / "report.json").read_text())
    assert record["verdicts"]["base"] == {"yes": 0, "no": 11, "unparsed": 1, "refused": 1, "error": 1}
    assert record["left_out_of_pairs"] == 3
    # of the base's red questions three stayed open: 11 answered, of them 7 blue ones right
    assert report.metrics["picabench/acc"].base == pytest.approx(7 / 11)
    assert report.metrics["picabench/acc"].n == 7
    assert any("3 of the base, 0 of the checkpoint" in note for note in report.notes)


def test_too_many_unanswered_fail_and_only_those_are_asked_again(make_hook: Make, tmp_path: Path) -> None:
    judge = RedJudge(replies=[VerdictKind.UNPARSED] * 2)
    with pytest.raises(TooManyUnanswered, match=r"2 of 14 questions .*2 unparsed.*well, hard to say"):
        make_hook(judge).run(context_for(PaintingEditor(), tmp_path / "run"))
    editor, judge = PaintingEditor(), RedJudge()
    report = make_hook(judge).run(context_for(editor, tmp_path / "run"))
    assert editor.calls == []
    assert len(judge.asked) == 2
    assert report.metrics["picabench/acc"].base == 0.5


def test_a_killed_evaluation_goes_on_where_it_stopped(make_hook: Make, tmp_path: Path) -> None:
    whole = make_hook().run(context_for(PaintingEditor(), tmp_path / "whole/run", step=400))
    with pytest.raises(RuntimeError, match="killed"):
        make_hook().run(context_for(PaintingEditor(fail_after=2), tmp_path / "cut/run", step=400))
    cut = tmp_path / "cut/run/eval/picabench/base"
    with (cut / "generated.0.jsonl").open("a") as journal:
        journal.write('{"key": "half a li')
    (cut / "output_img/00001.png").write_bytes(b"half a picture")
    editor = PaintingEditor()
    report = make_hook().run(context_for(editor, tmp_path / "cut/run", step=400))
    # four base pictures were done, one of them damaged since; the adapter's seven follow
    assert sum(editor.calls) == (3 + 1) + 7
    assert _files(report.folder) == _files(whole.folder)
    assert _files(cut) == _files(whole.folder.parent / "base")


class DoublingEditor(PaintingEditor):
    def sizes_of(self, height: int, width: int) -> PictureSizes:
        size = 2 * height, 2 * width
        return PictureSizes(source=size, output=size)


def test_another_output_size_is_stored_as_edited_and_counted(make_hook: Make, tmp_path: Path) -> None:
    report = make_hook().run(context_for(DoublingEditor(), tmp_path / "run", step=400))
    assert tuple(read_rgb(report.folder / "output_img/00000.png").shape) == (3, 32, 32)
    assert tuple(read_rgb(report.folder / "input_img/00000.png").shape) == (3, 16, 16)
    assert any("7 edited pictures had another size" in note for note in report.notes)


def test_a_limit_is_stated(make_hook: Make, tmp_path: Path) -> None:
    report = make_hook(limit=3).run(context_for(PaintingEditor(), tmp_path / "run", step=400))
    assert report.metrics["picabench/acc"].n == 3
    assert "Only 3 items, spread over the benchmark." in report.notes


@dataclass(frozen=True)
class OtherMeasures(PicaBenchMeasures):
    measures_id: str = "other"


OTHER_SETTINGS: dict[str, object] = {
    "judge": RedJudge(judge_id="another"),
    "measures": OtherMeasures(),
    "level": "explicit",
    "seed": 1,
    "num_steps": 2,
    "guidance": 1.0,
    "batch_size": 1,
    "limit": 3,
}


def test_reports_of_an_earlier_start_are_found_up_to_a_step(make_hook: Make, tmp_path: Path) -> None:
    reports = [make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=step)) for step in (0, 200, 400)]
    hook = make_hook(judge_workers=2, max_unanswered_share=0.5)
    assert hook.finished_reports(tmp_path / "run", 400) == tuple(reports)
    assert hook.finished_reports(tmp_path / "run", 399) == tuple(reports[:2])
    assert hook.finished_reports(tmp_path / "other", 400) == ()


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_reports_made_with_other_settings_are_left_out(make_hook: Make, tmp_path: Path, name: str) -> None:
    make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=400))
    other = make_hook(**{name: OTHER_SETTINGS[name]})
    assert other.finished_reports(tmp_path / "run", 400) == ()


def test_reports_about_another_benchmark_are_left_out(make_hook: Make, tmp_path: Path) -> None:
    make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=400))
    write_benchmark(tmp_path / "bench", 6)
    assert make_hook().finished_reports(tmp_path / "run", 400) == ()


def test_check_refuses_questions_that_the_measures_do_not_know(make_hook: Make) -> None:
    with pytest.raises(DatasetLayoutError, match=r"row 0.*'Is there red in the box\?'.*measures: null"):
        make_hook(measures=SceneMeasures()).check()


def test_check_refuses_a_missing_benchmark(make_hook: Make, tmp_path: Path) -> None:
    make_hook().check()
    with pytest.raises(DatasetLayoutError, match="does not exist"):
        PicaBenchHook(
            name="picabench", benchmark=str(tmp_path / "no"), judge=RedJudge(), cadence=make_hook().cadence
        ).check()


@pytest.mark.parametrize("setting", [{"num_steps": 0}, {"limit": 0}, {"max_unanswered_share": 1.0}, {"level": "loud"}])
def test_a_setting_out_of_range_is_named(make_hook: Make, setting: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        make_hook(**setting)
