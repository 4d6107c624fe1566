"""Checkpoints: complete or ignored, small, and exactly what was saved."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from physedit.eval_hooks.files import file_digest
from physedit.models.adapter_file import AdapterFormat
from physedit.models.lora import adapter_state
from physedit.train import checkpoint as checkpoint_module
from physedit.train.checkpoint import (
    CheckpointIncomplete,
    CheckpointNotSaved,
    CheckpointStore,
    Snapshot,
    step_folders,
    verify,
)
from physedit.train.state import Progress, optimizer_tensors, restore_optimizer, trainable


def store_of(editor, folder: Path) -> CheckpointStore:
    return CheckpointStore(folder, editor, AdapterFormat(4, 8.0), "seed: 0\n")


def snapshot_of(editor, step: int) -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    adapter = {n: torch.randn(v.shape, generator=generator) for n, v in adapter_state(editor.denoiser).items()}
    optimizer = {f"{name}/exp_avg": value * 0.5 for name, value in adapter.items()}
    return Snapshot(Progress(step, step * 8, 1.5, 3, 0.25), adapter, adapter, optimizer)


def test_a_checkpoint_returns_what_was_saved_bit_for_bit(editor, tmp_path):
    store, saved = store_of(editor, tmp_path), snapshot_of(editor, 5)
    loaded = store.load(store.save(saved))
    assert loaded.progress == saved.progress
    for wrote, read in (
        (saved.adapter, loaded.adapter),
        (saved.live, loaded.live),
        (saved.optimizer, loaded.optimizer),
    ):
        assert sorted(wrote) == sorted(read)
        assert all(torch.equal(wrote[name], read[name]) for name in wrote)


def test_an_average_is_exported_and_training_goes_on_from_the_live_weights(editor, tmp_path):
    live, average = snapshot_of(editor, 1), snapshot_of(editor, 2)
    store = store_of(editor, tmp_path)
    loaded = store.load(store.save(Snapshot(Progress(1, 8), average.adapter, live.live, live.optimizer)))
    name = next(iter(live.live))
    assert torch.equal(loaded.adapter[name], average.adapter[name])
    assert torch.equal(loaded.live[name], live.live[name])
    assert not any(key.startswith("live/") for key in loaded.optimizer)


def test_d12_a_checkpoint_holds_no_frozen_weight(new_editor, tmp_path):
    editor = new_editor()
    editor.denoiser.large = torch.nn.Linear(1000, 1000).requires_grad_(False)
    optimizer = torch.optim.AdamW(trainable(editor.denoiser).values())
    step(editor, optimizer, 1)
    adapter, moments = adapter_state(editor.denoiser), optimizer_tensors(editor.denoiser, optimizer)
    path = store_of(editor, tmp_path).save(Snapshot(Progress(1, 8), adapter, adapter, moments))
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert total < sum(4 * value.numel() for value in (*adapter.values(), *moments.values())) + 100_000
    assert sum(p.numel() * p.element_size() for p in editor.denoiser.parameters() if not p.requires_grad) > 4_000_000
    stored = load_file(path / "adapter" / "pytorch_lora_weights.safetensors")
    assert len(stored) == len(adapter)
    assert all(".lora_" in key for key in (*stored, *load_file(path / "optimizer.safetensors")))


class Wrapped:
    """As an engine whose class nothing knows: it has a ``module`` and nothing else."""

    def __init__(self, module: object) -> None:
        self.module = module


def test_c02_an_adapter_is_complete_whatever_wraps_its_model_and_with_nothing_beside_it(editor, tmp_path):
    live = adapter_state(Wrapped(editor.denoiser))
    assert len(live) == len(trainable(editor.denoiser)) > 20
    path = store_of(editor, tmp_path).save(Snapshot(Progress(1, 8), live, live, {}))  # plain SGD has no moments
    loaded = store_of(editor, tmp_path).load(path)
    assert loaded.adapter.keys() == adapter_state(editor.denoiser).keys()
    assert all(torch.equal(value, loaded.adapter[name]) for name, value in adapter_state(editor.denoiser).items())
    assert loaded.optimizer == {}


def test_the_newest_complete_checkpoint_is_found(editor, tmp_path):
    store = store_of(editor, tmp_path)
    assert store.newest() is None
    for step in (2, 10):
        store.save(snapshot_of(editor, step))
    assert store.newest() == tmp_path / "step_00000010"


@pytest.mark.parametrize(
    "name", ["adapter/pytorch_lora_weights.safetensors", "optimizer.safetensors", "run_state.json"]
)
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_checkpoint_is_passed_over_and_named(editor, tmp_path, name, damage):
    store = store_of(editor, tmp_path)
    store.save(snapshot_of(editor, 2))
    broken = store.save(snapshot_of(editor, 10)) / name
    if damage == "cut":
        broken.write_bytes(broken.read_bytes()[:-1])
    else:
        broken.unlink()
    with pytest.raises(CheckpointIncomplete, match=name):
        verify(tmp_path / "step_00000010")
    assert store.newest() == tmp_path / "step_00000002"


@pytest.mark.parametrize("step", [10, 2], ids=["a further step", "the same step again"])
def test_d09_a_full_disk_at_any_write_leaves_the_older_checkpoint_newest(editor, tmp_path, monkeypatch, step):
    """Each write of a save in turn leaves half of its file and no space."""
    older = store_of(editor, tmp_path).save(snapshot_of(editor, 2))
    before = digests_of(older)
    written: list[str] = []
    full_at = [0]

    def on_a_small_disk(name, write):
        def limited(*arguments):
            write(*arguments)
            written.append(name)
            if [len(written)] == full_at:
                files = [path for path in tmp_path.rglob(".step*/**/*") if path.is_file()]
                half = max(files, key=lambda path: path.stat().st_mtime_ns)
                os.truncate(half, half.stat().st_size // 2)
                _no_space_left()

        return limited

    for name in ("save_file", "write_json", "write_text"):
        monkeypatch.setattr(checkpoint_module, name, on_a_small_disk(name, getattr(checkpoint_module, name)))
    monkeypatch.setattr(type(editor), "save_adapter", on_a_small_disk("save_adapter", type(editor).save_adapter))
    for number in range(1, 6):
        written.clear()
        full_at[0] = number
        with pytest.raises(OSError, match="No space left"):
            store_of(editor, tmp_path).save(snapshot_of(editor, step))
        assert store_of(editor, tmp_path).newest() == older
        assert digests_of(older) == before
        assert [path.name for path in tmp_path.iterdir()] == [older.name], "a partial folder was left behind"
    full_at[0] = 0
    written.clear()
    saved = store_of(editor, tmp_path).save(snapshot_of(editor, step))
    assert written == ["save_adapter", "save_file", "write_json", "write_text", "write_json"]
    assert store_of(editor, tmp_path).newest() == saved == tmp_path / f"step_{step:08d}"


def test_a_checkpoint_that_could_not_be_written_names_step_folder_cause_and_free_space(editor, tmp_path, monkeypatch):
    def full(*_arguments):
        raise SafetensorError("Error while serializing: I/O error: File too large (os error 27)")

    monkeypatch.setattr(checkpoint_module, "save_file", full)
    with pytest.raises(CheckpointNotSaved, match=r"step 7 .*step_00000007: .*too large.*\. \d+ MiB are free at /"):
        store_of(editor, tmp_path).save(snapshot_of(editor, 7))


def digests_of(folder: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in folder.rglob("*") if path.is_file()}


def test_a_kill_in_the_middle_leaves_a_folder_that_is_ignored_and_replaced(editor, tmp_path):
    store = store_of(editor, tmp_path)
    complete = store.save(snapshot_of(editor, 10))
    shutil.copytree(complete, tmp_path / ".step_00000020.partial")
    (tmp_path / ".step_00000020.partial" / "manifest.json").unlink()
    assert store.newest() == complete
    assert store.save(snapshot_of(editor, 20)).name == "step_00000020"
    assert not (tmp_path / ".step_00000020.partial").exists()


@pytest.mark.parametrize("step", [10, 2], ids=["a further step", "the same step again"])
def test_a_kill_at_any_write_leaves_a_newest_checkpoint_that_is_complete(editor, tmp_path, step):
    pristine, folder = tmp_path / "pristine", tmp_path / "checkpoints"
    store_of(editor, pristine).save(snapshot_of(editor, 2))
    num_kills = 0
    for at in range(1, 200):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pristine, folder)
        store = store_of(editor, folder)
        child = os.fork()
        if child == 0:
            _die_at_file_operation(at)
            store.save(snapshot_of(editor, step))
            store.prune(keep=1, protected=())
            os._exit(0)
        killed = os.waitpid(child, 0)[1] != 0
        num_kills += killed
        store.tidy()
        newest = store.newest()
        assert newest is not None
        assert newest.name in {"step_00000002", f"step_{step:08d}"}
        assert store.load(newest).progress.step == int(newest.name[5:])
        assert not list(folder.glob(".*"))
        if not killed:
            break
    assert num_kills > 15
    assert newest.name == f"step_{step:08d}"


def test_prune_keeps_the_newest_and_the_best(editor, tmp_path):
    store = store_of(editor, tmp_path)
    paths = [store.save(snapshot_of(editor, step)) for step in (1, 2, 3, 4)]
    store.prune(keep=2, protected={1})
    assert step_folders(tmp_path) == [paths[0], paths[2], paths[3]]


def test_copies_under_other_names_stay_and_are_no_checkpoints(editor, tmp_path):
    store = store_of(editor, tmp_path)
    paths = [store.save(snapshot_of(editor, step)) for step in (1, 2, 3)]
    foreign = ["step_00000002_best", "step_00000009 copy", "step_9", ".step_00000003.notes", "step_"]
    for name in foreign:
        shutil.copytree(paths[1], tmp_path / name)
    store.tidy()
    assert store.newest() == paths[2]
    store.set_aside_after(paths[1])
    store.prune(keep=1, protected=())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*foreign, paths[1].name, f"broken_{paths[2].name}"]
    )


def test_of_a_checkpoint_that_was_moved_and_linked_the_link_goes_and_the_folder_stays(editor, tmp_path):
    store, elsewhere = store_of(editor, tmp_path / "checkpoints"), tmp_path / "elsewhere"
    older, _newer = (store.save(snapshot_of(editor, step)) for step in (1, 2))
    older.rename(elsewhere)
    older.symlink_to(elsewhere)
    assert store.load(older).progress.step == 1
    store.prune(keep=1, protected=())
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_00000002"]
    assert (elsewhere / "manifest.json").is_file()


def test_another_layout_version_is_refused(editor, tmp_path):
    path = store_of(editor, tmp_path).save(snapshot_of(editor, 1))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(CheckpointIncomplete, match="99"):
        verify(path)


def test_a_restored_optimizer_takes_the_same_next_step(new_editor):
    one, other = new_editor(), new_editor()
    optimizers = []
    for editor in (one, other):
        optimizers.append(torch.optim.AdamW(trainable(editor.denoiser).values(), lr=0.01))
    step(one, optimizers[0], 1)
    with torch.no_grad():
        for name, parameter in trainable(other.denoiser).items():
            parameter.copy_(trainable(one.denoiser)[name])
    restore_optimizer(other.denoiser, optimizers[1], optimizer_tensors(one.denoiser, optimizers[0]))
    for editor, optimizer in zip((one, other), optimizers, strict=True):
        step(editor, optimizer, 2)
    for name, parameter in trainable(one.denoiser).items():
        assert torch.equal(parameter, trainable(other.denoiser)[name]), name


def test_the_state_of_another_adapter_is_refused(editor):
    optimizer = torch.optim.AdamW(trainable(editor.denoiser).values())
    with pytest.raises(ValueError, match="another adapter"):
        restore_optimizer(editor.denoiser, optimizer, {"other.lora_A/exp_avg": torch.zeros(1)})


def step(editor, optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in trainable(editor.denoiser).values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def _no_space_left(*_arguments, **_more):
    raise OSError(28, "No space left on device")


def _die_at_file_operation(at: int) -> None:
    """Kills this process, as kill -9 does, before its ``at``-th change of the file system."""
    seen = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        writes = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if writes or event in ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree"):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
