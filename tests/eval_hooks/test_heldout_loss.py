import json
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.memory_pairs import MemoryPairs
from tests.support.stand_ins import PaintingEditor, context_for
from torch import Tensor, nn

from physedit.data_loaders.sample import PromptLevel
from physedit.eval_hooks.heldout_loss import HeldOutLoss, HeldOutRowsUnusable
from physedit.eval_hooks.hook import Cadence
from physedit.eval_hooks.row_losses import RowLosses, changes_of_losses, draw
from physedit.models.backbone import Conditioning


class LearningEditor(PaintingEditor):
    """Predicts the velocity but for an error: ``off`` as the base, ``on`` with the adapter. ``passes`` are counted."""

    def __init__(self, off: float = 2.0, on: float = 1.0) -> None:
        super().__init__()
        self.off, self.on, self.passes = off, on, 0

    def velocity(self, denoiser: nn.Module, noisy: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        self.passes += 1
        assert not denoiser.training
        assert not torch.is_grad_enabled()
        torch.rand(1)
        level = sigma.view(-1, 1, 1, 1)
        noise = (noisy - (1 - level) * conditioning.target) / level
        error = self.on if self.denoiser.is_adapter_on else self.off
        return noise - conditioning.target + error * (1 + level)


def hook_of(data: MemoryPairs | None = None, **settings: object) -> HeldOutLoss:
    rows = MemoryPairs() if data is None else data
    return HeldOutLoss(name="heldout_loss", data=rows, cadence=Cadence(), **settings)  # type: ignore[arg-type]


def test_the_loss_is_that_of_flow_matching_by_quantile_and_law(tmp_path: Path) -> None:
    editor = LearningEditor()
    report = hook_of().run(context_for(editor, tmp_path / "run", step=400))
    keys = ["all", "q1", "q2", "q3", "q4", "all/Reflection", "all/Causality"]
    assert list(report.metrics) == [f"heldout_loss/{key}" for key in keys]
    assert editor.passes == 2 * 8 * 4
    expected = []
    for row in range(8):
        _, sigmas = draw(0, f"pair-{row}", torch.zeros(1, 3, 16, 16), 4, 0.0)
        expected.append(((1 + sigmas) ** 2).tolist())
    for quantile in range(4):
        change = report.metrics[f"heldout_loss/q{quantile + 1}"]
        mean = sum(row[quantile] for row in expected) / 8
        # float32: the noise is divided out of x_t again, most of all at low noise
        assert change.tuned == pytest.approx(mean, rel=1e-4)
        assert change.base == pytest.approx(4 * mean, rel=1e-4)
        assert change.n == 8
        assert change.ci95 is not None
        assert change.ci95[0] < change.change < change.ci95[1] < 0  # type: ignore[operator]
    overall = report.metrics["heldout_loss/all"]
    assert overall.tuned == pytest.approx(sum(map(sum, expected)) / 32, rel=1e-4)
    assert report.metrics["heldout_loss/all/Causality"].n == 4
    assert report.lower_is_better == set(report.metrics)
    assert any("Lower is better" in note for note in report.notes)


def test_step_0_and_an_adapter_that_changes_nothing_have_a_change_of_exactly_0(tmp_path: Path) -> None:
    editor = LearningEditor(off=1.0)
    for step in (0, 400):
        report = hook_of().run(context_for(editor, tmp_path / "run", step=step))
        assert {(each.change, each.ci95) for each in report.metrics.values()} == {(0.0, (0.0, 0.0))}


def test_noise_and_levels_are_of_the_seed_and_the_row_alone() -> None:
    like = torch.zeros(1, 4, 8, 8)
    noise, sigmas = draw(3, "row", like, 4, 0.5)
    again, levels = draw(3, "row", like, 4, 0.5)
    assert torch.equal(noise, again)
    assert torch.equal(sigmas, levels)
    assert not torch.equal(noise, draw(4, "row", like, 4, 0.5)[0])
    assert not torch.equal(noise, draw(3, "other", like, 4, 0.5)[0])


def test_each_level_lies_in_its_quantile_of_the_shifted_logit_normal() -> None:
    like, shift = torch.zeros(1), 0.7
    edges = [0.0, *torch.sigmoid(torch.special.ndtri(torch.tensor([0.25, 0.5, 0.75]))).tolist(), 1.0]
    shifted = [math.exp(shift) * e / (1 + (math.exp(shift) - 1) * e) for e in edges]
    for row in range(50):
        _, sigmas = draw(0, str(row), like, 4, shift)
        for quantile, sigma in enumerate(sigmas.tolist()):
            assert shifted[quantile] <= sigma <= shifted[quantile + 1]


def test_training_is_as_it_was(tmp_path: Path) -> None:
    editor = LearningEditor()
    editor.denoiser.train()
    editor.denoiser.dropout.eval()
    before = torch.random.get_rng_state()
    hook_of().run(context_for(editor, tmp_path / "run", step=400))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert editor.denoiser.training
    assert not editor.denoiser.dropout.training
    assert editor.denoiser.adapter.grad is None
    assert torch.is_grad_enabled()


def test_rows_that_cannot_be_used_are_left_out_on_both_sides_and_named(tmp_path: Path) -> None:
    hook = hook_of(MemoryPairs(broken=(0,), lost=(5,)))
    hook.check()
    report = hook.run(context_for(LearningEditor(), tmp_path / "run", step=400))
    assert report.metrics["heldout_loss/all"].n == 6
    assert any("2 of 8" in note for note in report.notes)
    rows = json.loads((report.folder / "losses.json").read_text())["rows"]
    assert [row["sample_id"] for row in rows if row["problem"]] == ["pair-0", "pair-5"]


def test_no_usable_row_and_no_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeldOutRowsUnusable, match="no target picture"):
        hook_of(MemoryPairs(2, lost=(0, 1))).check()
    with pytest.raises(HeldOutRowsUnusable, match="row 0 cannot be decoded"):
        hook_of(MemoryPairs(2, broken=(0, 1))).run(context_for(LearningEditor(), tmp_path / "a", step=4))
    with pytest.raises(HeldOutRowsUnusable, match=r"pair-0 is nan at noise level 0\.\d+, step 4"):
        hook_of().run(context_for(LearningEditor(on=float("nan")), tmp_path / "b", step=4))
    with pytest.raises(HeldOutRowsUnusable, match="only superficial"):
        hook_of(level=PromptLevel.EXPLICIT).check()


@pytest.mark.parametrize("settings", [{"num_items": 0}, {"num_quantiles": 0}, {"level": "shallow"}])
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        hook_of(**settings)


def test_a_limit_takes_rows_from_all_of_the_data(tmp_path: Path) -> None:
    report = hook_of(num_items=3).run(context_for(LearningEditor(), tmp_path / "run", step=0))
    rows = json.loads((report.folder / "losses.json").read_text())["rows"]
    assert [row["sample_id"] for row in rows] == ["pair-0", "pair-2", "pair-5"]


def test_the_base_is_measured_once_for_all_runs_of_the_same_rows(tmp_path: Path) -> None:
    editor = LearningEditor()
    first = hook_of().run(context_for(editor, tmp_path / "one", step=400))
    assert editor.passes == 64
    second = hook_of().run(context_for(editor, tmp_path / "two", step=400))
    assert editor.passes == 96
    assert second.metrics == first.metrics
    hook_of().run(context_for(editor, tmp_path / "two", step=400))
    assert editor.passes == 96
    hook_of(seed=1).run(context_for(editor, tmp_path / "two", step=400))
    assert editor.passes == 160
    assert hook_of().finished_reports(tmp_path / "two", 400) == ()
    assert [each.step for each in hook_of(seed=1).finished_reports(tmp_path / "two", 400)] == [400]
    assert hook_of(seed=1).finished_reports(tmp_path / "two", 399) == ()


def test_damaged_losses_are_measured_anew(tmp_path: Path) -> None:
    editor = LearningEditor()
    context = context_for(editor, tmp_path / "run", step=400)
    report = hook_of().run(context)
    (report.folder / "losses.json").write_text("{")
    assert hook_of().run(context) == report
    assert editor.passes == 96


@pytest.fixture
def run_on_ranks(tmp_path: Path) -> Callable[..., list[tuple[object, int]]]:
    """Runs the hook on so many ranks, each in a thread; returns report and number of passes of each."""

    def run(world_size: int, data: MemoryPairs) -> list[tuple[object, int]]:
        barrier = threading.Barrier(world_size, timeout=60)

        def one(rank: int) -> tuple[object, int]:
            editor = LearningEditor()
            ranks = {"rank": rank, "world_size": world_size, "barrier": lambda: barrier.wait() and None}
            context = context_for(editor, tmp_path / f"of_{world_size}", step=400, **ranks)
            return hook_of(data).run(replace(context, base_cache=tmp_path / f"cache_{world_size}")), editor.passes

        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(one, range(world_size)))

    return run


def test_ranks_share_the_rows_and_all_make_the_same_number_of_passes(
    run_on_ranks: Callable[..., list[tuple[object, int]]],
) -> None:
    data = MemoryPairs(7, broken=(2, 5))
    ((alone, _),) = run_on_ranks(1, data)
    shared = run_on_ranks(3, data)
    assert [passes for _, passes in shared] == [2 * 3 * 4] * 3
    for report, _ in shared:
        assert report.metrics == alone.metrics  # type: ignore[attr-defined]
        assert report.notes == alone.notes  # type: ignore[attr-defined]


def test_rows_of_one_side_are_no_part_of_a_change() -> None:
    before = [RowLosses("a", "L", (1.0, 3.0)), RowLosses("b", None, (), "broken"), RowLosses("c", "L", (9.0, 9.0))]
    after = [RowLosses("a", "L", (1.0, 2.0)), RowLosses("b", None, (5.0, 5.0))]
    changes = changes_of_losses("h", before, after)
    assert (changes["h/all"].base, changes["h/all"].tuned, changes["h/all"].n) == (2.0, 1.5, 1)
    assert changes["h/q2"].change == -1.0
    assert changes_of_losses("h", [], [])["h/all"].n == 0
