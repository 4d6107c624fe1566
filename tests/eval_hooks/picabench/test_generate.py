"""Editing a benchmark: sizes, the adapter, what is encoded when, the time budget, names, and the unchanged inputs."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
from diffusers import DiffusionPipeline, ModelMixin
from pyarrow import parquet
from tests.eval_hooks.picabench.test_hook import _run_on_two_ranks
from tests.support.memory_editors import EDITORS, Editor, flux, with_adapter
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, png, read_items, write_benchmark
from torch import Tensor
from transformers import PreTrainedModel

from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.images import read_rgb
from physedit.data_loaders.sample import PromptLevel
from physedit.eval_hooks.hook import EvalContext, EvalReport, weights_digest
from physedit.eval_hooks.metrics.consistency import psnr_outside
from physedit.eval_hooks.panel import choose_panel
from physedit.eval_hooks.picabench import generate
from physedit.eval_hooks.picabench.benchmark import load_benchmark
from physedit.eval_hooks.picabench.folder import read_meta_info
from physedit.eval_hooks.picabench.generate import item_generator
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.inputs import LONG_SIDE_PX, input_picture
from physedit.eval_hooks.picabench.judging import judge_folder
from physedit.eval_hooks.picabench.manifest import OutputsMismatch, read_manifest
from physedit.eval_hooks.report import write_html_report
from physedit.eval_hooks.report_file import load_report
from physedit.models.flux_pipeline import load_pipeline
from physedit.models.lora import LoraSettings, adapter_state, load_state, without_adapter

Make = Callable[..., PicaBenchHook]


def real_context(editor: Editor, run: Path, step: int) -> EvalContext:
    return EvalContext(
        step=step,
        backbone=editor,
        denoiser=editor.denoiser,
        without_adapter=lambda: without_adapter(editor.denoiser),
        run_folder=run,
        base_cache=run.parent / "base_cache",
        adapter_id=weights_digest(adapter_state(editor.denoiser)),
    )


def with_pictures(folder: Path, *sizes: tuple[int, int]) -> Path:
    """Rewrites a benchmark's pictures at these heights and widths, each of another grey."""
    (file,) = folder.glob("*.parquet")
    rows = parquet.read_table(file).to_pylist()
    for number, (row, (height, width)) in enumerate(zip(rows, sizes, strict=True)):
        row["input_image"] = {"bytes": png(90 + number, height, width), "path": "a.png"}
    parquet.write_table(pa.Table.from_pylist(rows), file)
    return folder


def test_inputs_are_brought_down_to_the_published_long_side_and_no_other_is_touched(tmp_path: Path) -> None:
    sizes = [(2048, 1366), (700, 1400), (1024, 683), (16, 16)]
    items = load_benchmark(with_pictures(write_benchmark(tmp_path, 4), *sizes))
    found = [tuple(input_picture(item).shape[-2:]) for item in items]
    assert found == [(1024, 683), (512, 1024), (1024, 683), (16, 16)]
    assert torch.equal(input_picture(items[2]), items[2].source)
    assert max(map(max, found)) == LONG_SIDE_PX


@dataclass
class Seen:
    """What a stock pipeline got: sizes of the pictures its VAE encoded, and of those it was asked to draw."""

    conditions: list[tuple[int, ...]] = field(default_factory=list)
    drawn: list[tuple[int, int]] = field(default_factory=list)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> tuple[Editor, Seen]:
    editor, seen = with_adapter(flux(area_px=32 * 32), is_filled=True), Seen()
    vae: Any = editor._pipeline.vae
    encode = vae.encode
    monkeypatch.setattr(vae, "encode", lambda x: seen.conditions.append(tuple(x.shape[-2:])) or encode(x))
    call = type(editor._pipeline).__call__

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.drawn.append((kwargs["height"], kwargs["width"]))
        return call(self, *args, **kwargs)

    monkeypatch.setattr(type(editor._pipeline), "__call__", watched)
    return editor, seen


def test_e15_condition_and_output_have_the_evaluations_size_and_pictures_side_by_side_equal_ones(
    make_hook: Make, tmp_path: Path, seen: tuple[Editor, Seen]
) -> None:
    """Pictures of 64 and 48 pixels, an editor that works at 32."""
    editor, found = seen
    folder = with_pictures(write_benchmark(tmp_path / "small", 2), (64, 64), (48, 64))
    report = make_hook(benchmark=str(folder), num_steps=2, batch_size=1).run(real_context(editor, tmp_path / "run", 5))
    sizes = [editor.sizes_of(64, 64), editor.sizes_of(48, 64)]
    assert found.conditions == [each.source for each in sizes]  # once, though base and adapter edit them
    assert found.drawn == [each.output for each in sizes] * 2
    for item in choose_panel(report):
        assert item.pictures["base"].shape == item.pictures["tuned"].shape
    manifest = read_manifest(report.folder)
    assert manifest is not None
    assert manifest.settings["sizes"] == {
        "64x64": "seen at 32x32, drawn at 32x32",
        "64x48": "seen at {1}x{0}, drawn at {3}x{2}".format(*sizes[1].source, *sizes[1].output),
    }


def test_e16_the_hooks_picture_is_the_stock_pipelines_with_the_saved_file_and_not_the_bases(
    make_hook: Make, tmp_path: Path
) -> None:
    editor = with_adapter(flux(), is_filled=True)
    folder = with_pictures(write_benchmark(tmp_path / "one", 1), (64, 64))
    hook = make_hook(benchmark=str(folder), num_steps=3, guidance=2.5, batch_size=1, seed=7)
    report = hook.run(real_context(editor, tmp_path / "run", 5))
    editor.save_adapter(adapter_state(editor.denoiser), str(tmp_path / "adapter"), LoraSettings(4, 8.0).format)

    stock = load_pipeline("random_tiny", torch.float32)
    stock.load_lora_weights(str(tmp_path / "adapter"))
    (item,) = load_benchmark(folder)
    picture = stock(
        image=as_image(item.source),
        prompt=[item.instruction(PromptLevel.SUPERFICIAL)],
        height=64,
        width=64,
        max_area=64 * 64,
        _auto_resize=False,
        max_sequence_length=24,
        num_inference_steps=3,
        guidance_scale=2.5,
        generator=item_generator(7, "picabench", item.index),
        output_type="pt",
    ).images[0]
    expected = (picture * 255).round().to(torch.uint8)
    name = "output_img/00000.png"
    tuned, base = read_rgb(report.folder / name), read_rgb(report.folder.parent / "base" / name)
    near, far = psnr_outside(expected, tuned, ()), psnr_outside(expected, base, ())
    assert near is not None
    assert far is not None
    assert near > 50 > far


def test_the_noise_of_an_item_is_the_hooks_own_so_that_two_hooks_share_no_picture_of_the_base() -> None:
    seeds = {item_generator(42, hook, 3).initial_seed() for hook in ("picabench", "picabench_quick")}
    assert len(seeds) == 2


@pytest.fixture(params=EDITORS)
def spied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Editor, list[str]]:
    """An editor that keeps next to nothing in memory, and the names of the parts that encode, a name a time."""
    monkeypatch.setattr("physedit.models.picture_latents._MEMO_BYTES", 1)
    monkeypatch.setattr("physedit.models.flux_text._MEMO_BYTES", 1)
    monkeypatch.setattr("physedit.models.qwen_text._MEMO_BYTES", 1)
    editor = with_adapter(EDITORS[request.param](encoders="offload"), is_filled=True)
    runs: list[str] = []
    parts = [name for name in editor._pipeline.components if name.startswith("text_encoder")]
    for part in parts:
        getattr(editor._pipeline, part).register_forward_pre_hook(lambda *_, part=part: runs.append(part))
    editor._pipeline.vae.encoder.register_forward_pre_hook(lambda *_: runs.append("vae"))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was loaded")

    for loader in (DiffusionPipeline, ModelMixin, PreTrainedModel):
        monkeypatch.setattr(loader, "from_pretrained", refuse)
    return editor, runs


def test_g06_the_second_checkpoint_encodes_nothing_and_loads_nothing(
    make_hook: Make, tmp_path: Path, spied: tuple[Editor, list[str]]
) -> None:
    editor, runs = spied
    folder = with_pictures(write_benchmark(tmp_path / "three", 3), *[(64, 64)] * 3)
    hook = make_hook(benchmark=str(folder), num_steps=2, batch_size=1, keep_encoded=True)
    hook.run(real_context(editor, tmp_path / "run", 0))
    assert runs.count("vae") == 3
    assert set(runs) > {"vae"}
    runs.clear()
    for step in (5, 10):
        changed = {name: value + 0.01 * step for name, value in adapter_state(editor.denoiser).items()}
        load_state(editor.denoiser, changed)
        report = hook.run(real_context(editor, tmp_path / "run", step))
        assert len(read_meta_info(report.folder)) == 3
    assert runs == []
    again = make_hook(benchmark=str(folder), num_steps=2, batch_size=1, keep_encoded=True, seed=1)
    editor.forget()
    again.run(replace(real_context(editor, tmp_path / "other/run", 5), base_cache=tmp_path / "base_cache"))
    assert runs == [], "another run of the same editor finds what the first has encoded"


def test_e12_seven_items_on_two_ranks_in_twos_give_seven_results_and_the_mean_of_one_rank(
    make_hook: Make, tmp_path: Path
) -> None:
    alone = make_hook(batch_size=2).run(context_for(PaintingEditor(), tmp_path / "one/run", step=400))
    editors, judges = [PaintingEditor(), PaintingEditor()], [RedJudge(), RedJudge()]
    report, _ = _run_on_two_ranks(make_hook, tmp_path / "two/run", editors, judges, batch_size=2)
    assert isinstance(report, EvalReport)
    indices = [item.index for item in read_meta_info(report.folder)]
    assert indices == list(range(7))
    lines = read_items(report.folder)
    assert len({(line["index"], line["number"]) for line in lines}) == len(lines) == 14
    assert report.metrics == alone.metrics


def test_e06_a_renamed_output_and_a_stale_one_stop_the_evaluation_and_are_counted(
    make_hook: Make, tmp_path: Path
) -> None:
    folder = make_hook().run(context_for(PaintingEditor(), tmp_path / "run", step=400)).folder
    (folder / "output_img/00002.png").rename(folder / "output_img/2.png")
    with pytest.raises(OutputsMismatch, match=r"1 missing and 1 unknown outputs. Missing: output_img/00002\.png"):
        judge_folder(folder, RedJudge())
    manifest = read_manifest(folder)
    assert manifest is not None
    assert {"adapter", "step", "backbone", "num_steps", "guidance", "seed", "dtype", "torch", "diffusers", "device",
            "level", "protocol", "inputs", "sizes", "source"} <= manifest.settings.keys()  # fmt: skip
    assert manifest.settings["adapter"] == "adapter at 400"


def test_steps_and_guidance_are_the_editors_own_unless_given(make_hook: Make, tmp_path: Path) -> None:
    own = make_hook(num_steps=None).run(context_for(PaintingEditor(), tmp_path / "a/run", step=400))
    given = make_hook(num_steps=3, guidance=2.5).run(context_for(PaintingEditor(), tmp_path / "b/run", step=400))
    manifests = [read_manifest(report.folder) for report in (own, given)]
    assert manifests[0] == manifests[1]
    assert manifests[0] is not None
    assert (manifests[0].settings["num_steps"], manifests[0].settings["guidance"]) == (3, 2.5)


class SlowEditor(PaintingEditor):
    """Takes ten seconds of a clock that only it moves."""

    now_s = 0.0

    def edit(self, *arguments: Any, **settings: Any) -> Tensor:
        SlowEditor.now_s += 10
        return super().edit(*arguments, **settings)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    SlowEditor.now_s = 0.0
    monkeypatch.setattr(generate, "time", SimpleNamespace(monotonic=lambda: SlowEditor.now_s))


def test_a_time_budget_leaves_items_unedited_which_are_counted_and_a_later_call_edits_them(
    make_hook: Make, tmp_path: Path, clock: None
) -> None:
    whole = make_hook().run(context_for(PaintingEditor(), tmp_path / "whole/run", step=400))
    editor = SlowEditor()
    context = context_for(editor, tmp_path / "run", step=400)
    report = make_hook(time_budget_s=15.0).run(context)
    assert editor.calls == [2, 2, 2, 2]  # two batches of the base, two of the adapter
    assert report.metrics["picabench/acc"].n == 4
    record = json.loads((report.folder / "report.json").read_text())
    assert record["items"] == {"in_use": 7, "edited": {"base": 4, "tuned": 4}, "compared": 4}
    assert any("4 of 7 items of the base and 4 of the checkpoint" in note for note in report.notes)
    manifest = read_manifest(report.folder)
    assert manifest is not None
    assert len(manifest.not_edited) == 3
    assert not set(manifest.not_edited) & {item.index for item in read_meta_info(report.folder)}

    again = make_hook(time_budget_s=15.0).run(context)
    assert (again, len(editor.calls)) == (report, 4), "what a budget has left out is not edited under another budget"
    complete = make_hook().run(context)
    assert sum(editor.calls) == 14
    assert complete.metrics == whole.metrics
    assert not any("time budget" in note for note in complete.notes)


def test_a_base_that_the_time_was_too_short_for_is_not_shared_with_other_runs(
    make_hook: Make, tmp_path: Path, clock: None
) -> None:
    make_hook(time_budget_s=5.0).run(context_for(SlowEditor(), tmp_path / "a", step=400))
    editor = PaintingEditor()
    make_hook().run(context_for(editor, tmp_path / "b"))
    assert sum(editor.calls) == 7


def test_a_time_budget_ends_both_ranks_after_the_same_round(make_hook: Make, tmp_path: Path, clock: None) -> None:
    editors = [SlowEditor(), SlowEditor()]
    first, second = _run_on_two_ranks(
        make_hook, tmp_path / "run", editors, [RedJudge(), RedJudge()], batch_size=1, time_budget_s=15.0
    )
    assert isinstance(first, EvalReport)
    assert first == second
    assert len(editors[0].calls) == len(editors[1].calls) == 2  # a round of the base, a round of the adapter
    assert first.metrics["picabench/acc"].n == 2


def test_a_failure_under_a_time_budget_ends_both_ranks(make_hook: Make, tmp_path: Path) -> None:
    editors = [PaintingEditor(), PaintingEditor(fail_after=2)]
    first, second = _run_on_two_ranks(
        make_hook, tmp_path / "run", editors, [RedJudge(), RedJudge()], batch_size=1, time_budget_s=1000.0
    )
    assert "rank 1: RuntimeError: the process was killed" in str(first)
    assert isinstance(second, RuntimeError)


def test_the_unchanged_inputs_are_scored_once_for_all_runs_and_stand_in_the_report(
    make_hook: Make, tmp_path: Path
) -> None:
    judge = RedJudge()
    report = make_hook(judge, reference=True).run(context_for(PaintingEditor(), tmp_path / "a", step=400))
    # Grey inputs: every red question is wrong and every blue one right, and nothing has changed.
    assert report.input_copy["picabench/acc"].value == 0.5
    assert report.input_copy["picabench/psnr"].value == 100.0
    assert report.input_copy["picabench/acc_item/Reflection"].n == 3
    assert load_report(report.folder) == report
    record = json.loads((report.folder / "report.json").read_text())
    assert record["input_copy"]["picabench/acc"] == {"value": 0.5, "standard_error": 0.0, "n": 7}
    copies = report.folder.parent / "input_copy"
    for item in read_meta_info(copies):
        assert (copies / item.input_path).read_bytes() == (copies / item.output_path).read_bytes()
    assert len(judge.asked) == 3 * 14

    other = RedJudge()
    again = make_hook(other, reference=True, seed=3).run(context_for(PaintingEditor(), tmp_path / "b", step=400))
    assert again.input_copy == report.input_copy
    assert len(other.asked) == 2 * 14, "the inputs are on the shelf; base and adapter are others with this seed"
    html = write_html_report(tmp_path / "a", [report], title="run").read_text(encoding="utf-8")
    assert "input copy" in html
    assert "the unchanged input: 100.00 dB" in html


def test_without_a_reference_nothing_of_it_is_made(make_hook: Make, tmp_path: Path) -> None:
    report = make_hook().run(context_for(PaintingEditor(), tmp_path / "a", step=400))
    assert report.input_copy == {}
    assert not (report.folder.parent / "input_copy").exists()
    html = write_html_report(tmp_path / "a", [report], title="run").read_text(encoding="utf-8")
    assert "input copy" not in html


def test_accuracies_are_there_per_question_and_per_item_for_every_group(make_hook: Make, tmp_path: Path) -> None:
    report = make_hook(per_law=2).run(context_for(PaintingEditor(), tmp_path / "a", step=400))
    for kind in ("acc", "acc_item"):
        found = {key for key in report.metrics if key.startswith(f"picabench/{kind}/")}
        assert found >= {
            f"picabench/{kind}/Reflection", f"picabench/{kind}/category/Optics", f"picabench/{kind}/operation/add",
            f"picabench/{kind}/level/superficial",
        }  # fmt: skip
    assert report.metrics["picabench/psnr_512"].n == 6
    assert "Only 6 items, up to 2 of every law." in report.notes


def test_items_are_chosen_by_one_setting(make_hook: Make) -> None:
    with pytest.raises(ValueError, match=r"limit=3 and picabench\.per_law=2 both choose items"):
        make_hook(limit=3, per_law=2)
