"""Filling the encoded cache and reading it: what belongs together stays together, and only what changed is encoded."""

import ast
import gc
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.encoded import (
    Pair,
    contents,
    fill_alone,
    filling,
    same_contents,
    some_pairs,
    write_pairs,
    write_picture,
)
from tests.support.memory_editors import EDITORS, Editor
from tests.support.qwen_editors import PLUS
from tests.support.qwen_editors import build as build_qwen

from physedit.data_loaders import geometry, images
from physedit.data_loaders.encoded_store import StoreWriter
from physedit.data_loaders.loader import PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError, PromptLevel
from physedit.models import (
    flux_kontext,
    flux_text,
    latents,
    picture_latents,
    pictures,
    qwen_image_edit,
    qwen_text,
    sizes,
)
from physedit.models.backbone import conditioning_of
from physedit.models.flux_kontext import FluxKontext
from physedit.models.loading import modules_of
from physedit.models.parts import ENCODING_VERSION, EncodersAbsentError
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.train.config import ConfigError
from physedit.train.encode import _let_go
from physedit.train.loop import Stopped

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def editors() -> dict[str, Editor]:
    torch.set_num_threads(1)
    return {name: build() for name, build in EDITORS.items()}


@pytest.fixture(params=EDITORS)
def editor(request: pytest.FixtureRequest, editors: dict[str, Editor]) -> Iterator[Editor]:
    found = editors[request.param]
    found.forget()
    yield found
    found.forget()


@pytest.fixture
def flux(editors: dict[str, Editor]) -> Editor:
    return editors["flux_kontext"]


def counted(counts: Any) -> tuple[int, int, int]:
    return counts.encoded, counts.reused, sum(counts.dropped.values())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_cached_batches_are_the_live_ones_bit_for_bit_over_shuffled_epochs(
    num_workers: int, editor: Editor, tmp_path: Path
) -> None:
    write_pairs(tmp_path / "data", some_pairs(8))
    task = filling(editor, tmp_path / "data", tmp_path / "cache", micro_batch=2)
    rows, counts = fill_alone(task)
    assert counted(counts) == (8, 0, 0)
    run: dict[str, Any] = {"share": Share(2), "stop_position": 24}
    cached = list(TrainingBatches(task.dataset, task.plan, **run, encoded=rows, num_workers=num_workers))
    live = list(TrainingBatches(task.dataset, task.plan, **run))
    assert len(cached) == len(live) == 12
    padded = [assert_same(editor, one, two) for one, two in zip(cached, live, strict=True)]
    if isinstance(editor, QwenImageEdit):
        assert set(padded) == {False, True}


def assert_same(editor: Editor, one: PositionedBatch, two: PositionedBatch) -> bool:
    """Compares the conditionings of two micro batches bit for bit; True if their text is padded."""
    assert (one.positions, one.batch.sample_ids) == (two.positions, two.batch.sample_ids)
    assert one.batch.weights == two.batch.weights
    assert one.batch.num_targets_of_other_size == two.batch.num_targets_of_other_size
    first, second = conditioning_of(editor, one.batch, CPU), conditioning_of(editor, two.batch, CPU)
    for name in ("target", "change"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert all(torch.equal(*pair) for pair in zip(first.sources, second.sources, strict=True))
    assert first.text.keys() == second.text.keys()
    assert all(torch.equal(first.text[name], second.text[name]) for name in first.text)
    assert first.time_shift == second.time_shift
    assert first.target.stride() == second.target.stride()
    return "mask" in first.text


def test_references_are_cached_with_their_pair_in_bfloat16(tmp_path: Path) -> None:
    editor = build_qwen(PLUS, dtype="bfloat16")
    write_pairs(tmp_path / "data", some_pairs(4))
    task = filling(editor, tmp_path / "data", tmp_path / "cache", micro_batch=2, references=("more",))
    rows, counts = fill_alone(replace(task, num_workers=2))
    assert counted(counts) == (4, 0, 0)
    run: dict[str, Any] = {"share": Share(2), "stop_position": 8}
    for one, two in zip(
        TrainingBatches(task.dataset, task.plan, **run, encoded=rows),
        TrainingBatches(task.dataset, task.plan, **run),
        strict=True,
    ):
        assert_same(editor, one, two)
        assert len(one.batch.latents[0]) == 5  # target, two sources, change, time shift
        assert one.batch.latents[0]["source_1"].dtype == torch.bfloat16
    reference = tmp_path / "data" / "2c.bmp"
    write_picture(reference, seed=77)
    assert counted(fill_alone(task)[1]) == (1, 3, 0)


def test_broken_row_has_the_same_stand_in_as_in_the_live_run(editor: Editor, tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", some_pairs(5))
    broken = tmp_path / "data" / "2a.bmp"
    broken.write_bytes(broken.read_bytes()[:5000])
    task = filling(editor, tmp_path / "data", tmp_path / "cache", micro_batch=5)
    rows, counts = fill_alone(task)
    assert counted(counts) == (4, 0, 1)
    run: dict[str, Any] = {"share": Share(5), "stop_position": 10}
    for one, two in zip(
        TrainingBatches(task.dataset, task.plan, **run, encoded=rows),
        TrainingBatches(task.dataset, task.plan, **run),
        strict=True,
    ):
        assert_same(editor, one, two)
        assert [(row.index, row.reason) for row in one.dropped] == [(row.index, row.reason) for row in two.dropped]
        assert [row.index for row in one.dropped] == [2]


def test_signal_ends_the_filling_and_what_was_encoded_is_kept(
    flux: Editor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pairs(tmp_path / "data", some_pairs(8))
    task = filling(flux, tmp_path / "data", tmp_path / "cache")
    add = StoreWriter.add

    def add_and_signal(self: StoreWriter, key: bytes, tensors: Any) -> int:
        length = add(self, key, tensors)
        task.stop.signal_number = 15
        return length

    monkeypatch.setattr(StoreWriter, "add", add_and_signal)
    with pytest.raises(Stopped, match="what was encoded is kept"):
        fill_alone(task)
    monkeypatch.undo()
    task.stop.signal_number = None
    assert counted(fill_alone(task)[1]) == (4, 4, 0)  # four are encoded before the first is written


def test_two_ranks_over_two_epochs_keep_every_caption_with_its_pictures(editor: Editor, tmp_path: Path) -> None:
    pairs = some_pairs(6)
    write_pairs(tmp_path / "data", pairs)
    task = filling(editor, tmp_path / "data", tmp_path / "cache")
    rows, _ = fill_alone(task)
    samples = [task.dataset.sample(row, PromptLevel.SUPERFICIAL) for row in range(6)]
    captions = {sample.sample_id: pair.caption for sample, pair in zip(samples, pairs, strict=True)}
    alone = {sample.sample_id: sample for sample in samples}
    seen = []
    for rank in (0, 1):
        run: dict[str, Any] = {"share": Share(1, 1, rank, 2), "stop_position": 12, "encoded": rows}
        for micro in TrainingBatches(task.dataset, task.plan, **run):
            (name,), (latents,), (text,) = micro.batch.sample_ids, micro.batch.latents, micro.batch.texts
            sample = alone[name]
            for part, value in editor.encode_text(((sample.source,),), (captions[name],)).items():
                assert torch.equal(text[part], value)
            # Pictures of the size they are worked at.
            assert torch.equal(latents["target"], editor._pictures.of(sample.target[None]))
            assert torch.equal(latents["source_0"], editor._pictures.of(sample.source[None]))
            seen.append(name)
    assert sorted(seen) == sorted([*alone, *alone])


@pytest.fixture
def filled(editor: Editor, tmp_path: Path) -> Path:
    """A folder with a filled cache of five rows in ``data``."""
    write_pairs(tmp_path / "data", some_pairs(5))
    fill_alone(filling(editor, tmp_path / "data", tmp_path / "cache"))
    return tmp_path


def refill(editor: Editor, folder: Path) -> tuple[int, int, int]:
    """Fills again and checks that the rows are those of a cache that is filled from nothing."""
    rows, counts = fill_alone(filling(editor, folder / "data", folder / "cache"))
    task = filling(editor, folder / "data", folder / "fresh")
    fresh, _ = fill_alone(task)
    run: dict[str, Any] = {"share": Share(1), "stop_position": 2 * len(task.dataset)}
    for one, two in zip(
        TrainingBatches(task.dataset, task.plan, **run, encoded=rows),
        TrainingBatches(task.dataset, task.plan, **run, encoded=fresh),
        strict=True,
    ):
        assert one.batch.sample_ids == two.batch.sample_ids
        for first, second in ((one.batch.latents, two.batch.latents), (one.batch.texts, two.batch.texts)):
            assert all(torch.equal(first[0][name], value) for name, value in second[0].items())
    return counted(counts)


def test_nothing_is_encoded_twice(editor: Editor, filled: Path) -> None:
    assert refill(editor, filled) == (0, 5, 0)


def test_reordered_rows_are_reused(editor: Editor, filled: Path) -> None:
    write_pairs(filled / "data", some_pairs(5)[::-1])
    assert refill(editor, filled) == (0, 5, 0)


def test_changed_caption_re_encodes_its_row_alone(editor: Editor, filled: Path) -> None:
    pairs = some_pairs(5)
    write_pairs(filled / "data", [*pairs[:2], Pair(2, "Make it night."), *pairs[3:]])
    assert refill(editor, filled) == (1, 4, 0)


@pytest.mark.parametrize("side", ["a", "b"])
def test_picture_overwritten_with_the_same_size_and_time_re_encodes_its_row_alone(
    side: str, editor: Editor, filled: Path
) -> None:
    picture = filled / "data" / f"3{side}.bmp"
    before = picture.stat()
    write_picture(picture, seed=99)
    os.utime(picture, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = picture.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert refill(editor, filled) == (1, 4, 0)


def test_removed_row_leaves_the_others_as_they_are(editor: Editor, filled: Path) -> None:
    pairs = some_pairs(5)
    write_pairs(filled / "data", [*pairs[:1], *pairs[2:]])
    assert refill(editor, filled) == (0, 4, 0)


def test_added_row_is_encoded_alone(editor: Editor, filled: Path) -> None:
    write_pairs(filled / "data", some_pairs(6))
    assert refill(editor, filled) == (1, 5, 0)


def test_damaged_entry_is_counted_and_re_encodes_its_row_alone(editor: Editor, filled: Path) -> None:
    (file,) = (filled / "cache").glob("*.data")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    _, counts = fill_alone(filling(editor, filled / "data", filled / "cache"))
    assert (*counted(counts), counts.damaged) == (1, 4, 0, 1)
    assert refill(editor, filled) == (0, 5, 0)


def test_entry_damaged_while_training_drops_its_row_by_name(editor: Editor, filled: Path) -> None:
    task = filling(editor, filled / "data", filled / "cache")
    rows, _ = fill_alone(task)
    (file,) = (filled / "cache").glob("*.data")
    os.truncate(file, file.stat().st_size - 1)  # before it is mapped
    read = list(TrainingBatches(task.dataset, task.plan, share=Share(1), stop_position=5, encoded=rows))
    (dropped,) = [row for micro in read for row in micro.dropped]
    assert dropped.reason == RowProblem.DAMAGED_ENTRY
    (stand_in,) = [micro.batch for micro in read if micro.dropped]
    assert stand_in.weights == (0.0,)
    assert stand_in.sample_ids == (f"nothing for {dropped.name.sample_id}",)
    assert conditioning_of(editor, stand_in, CPU).target.isfinite().all()


def test_cache_of_which_nothing_can_be_read_stops_the_run(editor: Editor, filled: Path) -> None:
    task = filling(editor, filled / "data", filled / "cache")
    rows, _ = fill_alone(task)
    (file,) = (filled / "cache").glob("*.data")
    os.truncate(file, 0)
    with pytest.raises(DatasetRowError, match="No entry of the encoded cache can be read"):
        list(TrainingBatches(task.dataset, task.plan, share=Share(1), stop_position=5, encoded=rows))


def test_row_that_cannot_be_decoded_is_dropped_by_name(editor: Editor, filled: Path) -> None:
    picture = filled / "data" / "1b.bmp"
    picture.write_bytes(picture.read_bytes()[:5000])
    rows, counts = fill_alone(filling(editor, filled / "data", filled / "cache"))
    assert counted(counts) == (0, 4, 1)
    assert [(row.index, row.reason) for row in rows.dropped] == [(1, "damaged picture")]


def test_not_a_number_is_dropped_with_the_name_of_its_row(
    editor: Editor, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, bad = editor.encode_pictures, 2

    def broken(batch: Any) -> Any:
        made = encode(batch)
        if batch.sample_ids[0].endswith(f":{bad}"):
            made.target[0, 0, 0, 0] = float("nan")
        return made

    monkeypatch.setattr(editor, "encode_pictures", broken)
    task = filling(editor, filled / "data", filled / "other")
    rows, counts = fill_alone(task)
    assert counted(counts) == (4, 0, 1)
    assert counts.dropped == {"encoded to not-a-number": 1}
    (dropped,) = rows.dropped
    assert dropped.index == bad
    assert "metadata.jsonl, row 2: its encoded target holds NaN" in dropped.message
    assert all(value.isfinite().all() for entry in contents(filled / "other").values() for value in entry.values())
    read = list(TrainingBatches(task.dataset, task.plan, share=Share(1), stop_position=5, encoded=rows))
    assert [row.index for micro in read for row in micro.dropped] == [bad]


def test_need_of_the_disk_is_said_and_compared_with_what_is_free(
    editor: Editor, filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = filling(editor, filled / "data", filled / "other")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"needs about .* MiB more in .*other, but 0\.00 MiB are free.*encode=live"):
        fill_alone(task)
    assert contents(filled / "other") == {}
    monkeypatch.undo()
    with caplog.at_level("INFO"):
        _, counts = fill_alone(task)
    (line,) = [record for record in caplog.records if "are needed" in record.getMessage()]
    needed = line.args[2]
    assert needed.endswith(" MiB")
    # Of text that is unlike in length, four rows tell the fifth's need roughly.
    assert float(needed.split()[0]) == pytest.approx(counts.bytes_written / 2**20, rel=0.25, abs=0.01)


def test_rows_that_lack_an_entry_are_refused_where_none_may_be_written(editor: Editor, filled: Path) -> None:
    write_pairs(filled / "data", some_pairs(7))
    task = filling(editor, filled / "data", filled / "cache")
    with pytest.raises(ConfigError, match=r"2 of 7 rows lack an entry .*encode\.write_missing=false"):
        fill_alone(task, can_write=False)
    fill_alone(task)
    assert counted(fill_alone(task, can_write=False)[1]) == (0, 7, 0)


@pytest.mark.parametrize("name", EDITORS)
def test_without_text_encoders_a_full_cache_is_read_and_a_lacking_one_refused(name: str, tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", some_pairs(3))
    absent = EDITORS[name](encoders="absent")
    task = filling(absent, tmp_path / "data", tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"instructions of 3 of 3 rows .*backbone\.encoders=absent"):
        fill_alone(task, can_encode_text=False)
    fill_alone(filling(EDITORS[name](), tmp_path / "data", tmp_path / "cache"))
    assert counted(fill_alone(task, can_encode_text=False)[1]) == (0, 3, 0)


def test_equal_captions_share_an_entry_where_the_text_sees_no_pictures(editor: Editor, tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", [Pair(number, "Make it night.") for number in range(3)])
    fill_alone(filling(editor, tmp_path / "data", tmp_path / "cache"))
    assert len(contents(tmp_path / "cache")) == (6 if editor.text_sees_pictures else 4)


WITH_TEXT_AND_PICTURES: dict[str, dict[str, Any]] = {
    "flux_kontext": {"max_text_tokens": 20, "area_px": 48 * 64, "dtype": "bfloat16"},
    "qwen_image_edit": {"area_px": 96 * 96, "dtype": "bfloat16"},
}
WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    "flux_kontext": {"train_guidance": 3.0, "edit_guidance": 3.0},
    "qwen_image_edit": {"edit_guidance": 1.0, "negative_prompt": "ugly"},
}


@pytest.mark.parametrize("name", EDITORS)
def test_encoding_key_follows_settings_that_decide_the_encoding_and_no_other(name: str, editors: Any) -> None:
    key = editors[name].encoding_key
    for setting, value in WITH_TEXT_AND_PICTURES[name].items():
        assert EDITORS[name](**{setting: value}).encoding_key != key, setting
    others = {**WITHOUT_EFFECT[name], "encoders": "absent", "gradient_checkpointing": True}
    for setting, value in others.items():
        assert EDITORS[name](**{setting: value}).encoding_key == key, setting


@pytest.mark.parametrize("name", EDITORS)
def test_encoding_key_follows_the_files_that_encode_and_not_the_denoiser(name: str, tmp_path: Path) -> None:
    EDITORS[name]()._pipeline.save_pretrained(tmp_path)

    def key() -> str:
        return str(EDITORS[name](weights=str(tmp_path)).encoding_key)

    before = key()
    with torch.no_grad():
        changed = EDITORS[name](weights=str(tmp_path))._pipeline
        next(changed.transformer.parameters()).add_(1.0)
        changed.transformer.save_pretrained(tmp_path / "transformer")
    assert key() == before
    for part in ("vae", "text_encoder"):
        with torch.no_grad():
            next(getattr(changed, part).parameters()).add_(1.0)
        getattr(changed, part).save_pretrained(tmp_path / part)
        now = key()
        assert now != before, part
        before = now


def test_encoding_key_follows_the_template(editors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = EDITORS["qwen_image_edit"]()
    other._pipeline.prompt_template_encode = other._pipeline.prompt_template_encode.replace("Describe", "Tell")
    assert other.encoding_key != editors["qwen_image_edit"].encoding_key


@pytest.mark.parametrize("kinds", [("pictures", "text"), ("pictures",)])
def test_encoders_that_nothing_needs_are_collected(kinds: Any) -> None:
    for build in EDITORS.values():
        editor = build()
        parts = modules_of(editor._pipeline)
        alive = {name: weakref.ref(part) for name, part in parts.items()}
        keys = editor.encoding_key, editor.fingerprint
        del parts
        _let_go(editor, kinds, is_edited=False)
        gone = {name for name, part in alive.items() if part() is None}
        expected = {name for name in alive if name == "vae" or (name.startswith("text") and "text" in kinds)}
        assert gone == expected
        assert (editor.encoding_key, editor.fingerprint) == keys == (build().encoding_key, build().fingerprint)
        with pytest.raises(EncodersAbsentError, match="vae are needed"):
            editor._parts.fetch_vae()


def test_encoders_that_evaluations_need_wait_on_the_cpu_and_edit_the_same(editor: Editor) -> None:
    from tests.support.memory_editors import batch_of, edit

    source = batch_of(3).sources[0]
    other = EDITORS["flux_kontext" if isinstance(editor, FluxKontext) else "qwen_image_edit"]()
    other.to(torch.device("cpu:0"))
    _let_go(other, ("pictures", "text"), is_edited=True)
    assert torch.equal(edit(other, source), edit(editor, source))


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def test_live_tensors_are_flat_over_200_prompts(flux: Editor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pairs(tmp_path / "data", [Pair(0, f"Prompt number {number}") for number in range(200)])
    counts: list[int] = []
    forget = flux.forget

    def forget_and_count() -> None:
        forget()
        if len(counts) in (20, 199) or not counts:
            counts.append(live_tensors())
        else:
            counts.append(0)

    monkeypatch.setattr(flux, "forget", forget_and_count)
    _, done = fill_alone(filling(flux, tmp_path / "data", tmp_path / "cache"))
    assert (len(counts), done.encoded) == (200, 200)
    assert counts[199] <= counts[20]
    sizes = [file.stat().st_size for file in (tmp_path / "cache").glob("*.data")]
    assert sum(sizes) == done.bytes_written
    own = sum(value.nbytes for entry in contents(tmp_path / "cache").values() for value in entry.values())
    assert own < done.bytes_written < own + 400 * 201  # a header each


KILL_WHILE_WRITING = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from tests.support.encoded import fill_alone, filling
from tests.support.memory_editors import EDITORS
from physedit.data_loaders import encoded_store

add, count = encoded_store.StoreWriter.add, 0

def add_some(self, key, tensors):
    global count
    count += 1
    if count == {last}:  # half an entry, as a full buffer would be written
        self._data.write(os.urandom(100))
        self._data.flush()
        self._index.write(os.urandom(11))
        self._index.flush()
        os.kill(os.getpid(), 9)
    return add(self, key, tensors)

encoded_store.StoreWriter.add = add_some
fill_alone(filling(EDITORS[{name!r}](), Path({data!r}), Path({cache!r})))
"""


@pytest.mark.parametrize(("name", "last", "whole_rows"), [("flux_kontext", 4, 1), ("qwen_image_edit", 7, 3)])
def test_killed_while_writing_it_goes_on_and_the_same_set_is_there(
    name: str, last: int, whole_rows: int, editors: dict[str, Editor], tmp_path: Path
) -> None:
    write_pairs(tmp_path / "data", some_pairs(5))
    program = KILL_WHILE_WRITING.format(
        path=[str(Path(__file__).parents[2])],
        name=name,
        last=last,
        data=str(tmp_path / "data"),
        cache=str(tmp_path / "cache"),
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300, check=False)
    assert killed.returncode == -9, killed.stderr.decode()
    _, counts = fill_alone(filling(editors[name], tmp_path / "data", tmp_path / "cache"))
    assert (*counted(counts), counts.damaged) == (5 - whole_rows, whole_rows, 0, 0)
    fill_alone(filling(editors[name], tmp_path / "data", tmp_path / "whole"))
    assert same_contents(tmp_path / "cache", tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_share_the_encoding_and_write_what_one_writes(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", some_pairs(7))
    columns = ["data.source=before", "data.target=after", "data.instruction=text"]
    given = [
        "experiment=smoke", "data=pairs", f"data.path={tmp_path / 'data'}", *columns, "scenes.write=false",
        f"output_root={tmp_path}", "--json",
    ]  # fmt: skip
    programs = Path(sys.executable).parent
    launch = [
        str(programs / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONSAFEPATH": "1"}
    run: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "env": environment, "check": True}
    pair = subprocess.run(
        [*launch, str(programs / "physedit"), "encode", *given, f"encode.folder={tmp_path / 'pair'}"], **run
    )
    assert json.loads(pair.stdout)["encoded"] == 7
    assert len(list((tmp_path / "pair").glob("*.data"))) == 2
    for folder, expected in (("pair", (0, 7)), ("alone", (7, 0))):
        done = subprocess.run([programs / "physedit", "encode", *given, f"encode.folder={tmp_path / folder}"], **run)
        counts = json.loads(done.stdout)
        assert (counts["encoded"], counts["reused"]) == expected
    assert same_contents(tmp_path / "pair", tmp_path / "alone")


ENCODING_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    images.decode_rgb, images._upright, images._to_rgb,
    geometry.resized, geometry.fitted_target,
    sizes.kontext_sizes, sizes.qwen_size,
    pictures.stacked, pictures.stacked_sources, pictures.stacked_targets,
    latents.changed_share,
    picture_latents.PictureLatents.of_batch,
    FluxKontext.encode_pictures, FluxKontext.encode_text, flux_kontext._encode_picture,
    flux_text.FluxTextStates._encode,
    QwenImageEdit.encode_pictures, QwenImageEdit.encode_text, qwen_image_edit._encode_picture,
    qwen_text.QwenTextStates._seen, qwen_text.QwenTextStates._encode,
)  # fmt: skip
ENCODING_SOURCE = (1, "c1eca5ae972777ab")
"""``ENCODING_VERSION`` and the hash of the functions above at that version."""


def source_of(function: Callable[..., Any]) -> str:
    """Returns the tokens of a function without its docstring, comments and layout."""
    assert isinstance(function, FunctionType)
    inner = inspect.unwrap(function)
    (parsed,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(inner))).body
    assert isinstance(parsed, ast.FunctionDef)
    body = parsed.body[1:] if ast.get_docstring(parsed) is not None else parsed.body
    lines = inspect.cleandoc("\n" + inspect.getsource(inner)).splitlines()
    code = [line.split("#")[0] for line in lines[body[0].lineno - 1 :]]
    return "".join("".join(code).split()).replace(",)", ")").replace(",]", "]")


def test_changed_preprocessing_needs_another_encoding_version() -> None:
    digest = hashlib.sha256("\n".join(map(source_of, ENCODING_FUNCTIONS)).encode()).hexdigest()[:16]
    assert (ENCODING_VERSION, digest) == ENCODING_SOURCE, (
        "A function that decides what is encoded has changed. If the same pictures and text are now encoded otherwise, "
        f"raise ENCODING_VERSION in models/parts.py. Then set ENCODING_SOURCE to its value and {digest!r}."
    )
