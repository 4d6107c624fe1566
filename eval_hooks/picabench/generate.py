"""Editing the items of a benchmark into a folder, shared by the ranks and continued after a kill.

Shape legend: B batch, H W pixels.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.streams import stream_seed
from physedit.eval_hooks.files import (
    DamagedFileError,
    encode_png,
    file_digest,
    json_line,
    link_or_copy,
    open_journal,
    read_json_lines,
    write_bytes,
)
from physedit.eval_hooks.hook import EvalContext
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem
from physedit.eval_hooks.picabench.folder import (
    INPUTS,
    OUTPUTS,
    TARGETS,
    Manifest,
    picture_name,
    read_manifest,
    read_whole_manifest,
    write_manifest,
    write_meta_info,
)
from physedit.eval_hooks.ranks import Ranks
from physedit.models.sizes import PictureSizes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EditSettings:
    """How pictures are edited.

    Attributes:
        seed: with hook and item it decides the noise, so base and adapter start from the same.
        num_steps: denoising steps.
        guidance: guidance scale of the pipeline; None for the editor's own.
        level: which instruction is used.
        batch_size: pictures edited at once, if at one size.
    """

    seed: int
    num_steps: int
    guidance: float | None
    level: PromptLevel
    batch_size: int


@dataclass(frozen=True, slots=True)
class EditTask:
    """What to edit into which folder.

    Attributes:
        folder: receives pictures, ``meta_info.json`` and ``manifest.json``.
        items: the whole benchmark in use, not this rank's share.
        settings: how.
        hook: name of the hook, part of the noise's seed.
        key: hash of all that decides the pictures; pictures of another key are never kept.
        described: what the key was made of, for the manifest.
        twin: a finished folder with the same inputs, to link instead of storing them twice.
    """

    folder: Path
    items: Sequence[BenchmarkItem]
    settings: EditSettings
    hook: str
    key: str
    described: Mapping[str, object]
    twin: Path | None = None


Batch = tuple[BenchmarkItem, ...]


def edit_benchmark(context: EvalContext, task: EditTask) -> int:
    """Ensures that ``task.folder`` holds every edit, and returns how many this rank had to make.

    Pictures whose hash is proven by the manifest, or by the journal of a killed run, are kept. All ranks must call it,
    and all make the same number of calls to ``Backbone.edit``, repeating a batch where their share is smaller, so that
    a denoiser sharded over ranks never waits for a rank that is done.
    """
    ranks = Ranks(context.rank, context.world_size, context.barrier)
    ranks.first_alone(task.folder, lambda: _clear_stale(task))
    proven: dict[str, str] = {}
    ranks.together(task.folder, lambda: proven.update(_proven_files(task)))
    pending = [item for item in task.items if not _is_done(item, proven)]
    if not pending and read_whole_manifest(task.folder) is not None:
        return 0
    plan = [
        plan_batches(ranks_share, context.backbone.sizes_of, task.settings.batch_size)
        for ranks_share in (pending[rank :: ranks.world_size] for rank in range(ranks.world_size))
    ]
    made = 0

    def work() -> None:
        nonlocal made
        made = _edit_batches(context, task, plan)

    ranks.together(task.folder, work)
    ranks.first_alone(task.folder, lambda: _complete(task))
    return made


def plan_batches(
    items: Sequence[BenchmarkItem], sizes_of: Callable[[int, int], PictureSizes], batch_size: int
) -> tuple[tuple[BenchmarkItem, ...], ...]:
    """Groups items that are edited at one size into batches, in order of their first item. Pure."""
    groups: dict[PictureSizes, list[BenchmarkItem]] = {}
    for item in items:
        groups.setdefault(sizes_of(*item.source.shape[-2:]), []).append(item)
    return tuple(
        tuple(group[start : start + batch_size])
        for group in groups.values()
        for start in range(0, len(group), batch_size)
    )


def item_generator(seed: int, hook: str, index: int) -> torch.Generator:
    """Returns the CPU generator of an item's noise: a function of its arguments and of nothing else."""
    return torch.Generator("cpu").manual_seed(stream_seed(seed, hook, index))


@contextmanager
def undisturbed(denoiser: nn.Module, device: torch.device) -> Iterator[None]:
    """Puts the denoiser in eval mode without gradient inside; mode and global random state are as before after it."""
    modes = [(module, module.training) for module in denoiser.modules()]
    devices = [device] if device.type == "cuda" else []
    denoiser.eval()
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _clear_stale(task: EditTask) -> None:
    """Removes what another key made: its pictures must not be taken for this one's."""
    task.folder.mkdir(parents=True, exist_ok=True)
    manifest = _manifest_of_side(task.folder)
    keys = {manifest.key} if manifest else set()
    for journal in _journals(task.folder):
        keys |= {str(row["key"]) for row in _journal_rows(journal)}
    entries = [entry for entry in task.folder.iterdir() if not entry.name.startswith(".")]
    if keys == {task.key} or not entries:
        return
    log.warning("%s holds evaluations made by other weights or settings; they are replaced", task.folder)
    for entry in entries:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _journals(folder: Path) -> list[Path]:
    return sorted(folder.glob("generated.*.jsonl"))


def _journal_rows(journal: Path) -> list[dict[str, object]]:
    return read_json_lines(journal, required=("key", "file", "sha256"))


def _manifest_of_side(folder: Path) -> Manifest | None:
    """Returns the manifest, or None without one that can be read: the side is then not finished."""
    try:
        return read_manifest(folder)
    except DamagedFileError:
        return None


def _proven_files(task: EditTask) -> dict[str, str]:
    """Returns the hashes by relative path of files that are there and have the recorded hash."""
    manifest = _manifest_of_side(task.folder)
    recorded = dict(manifest.files) if manifest else {}
    for journal in _journals(task.folder):
        for row in _journal_rows(journal):
            recorded[str(row["file"])] = str(row["sha256"])
    return {
        name: digest
        for name, digest in recorded.items()
        if (task.folder / name).exists() and file_digest(task.folder / name) == digest
    }


def _is_done(item: BenchmarkItem, proven: Mapping[str, str]) -> bool:
    name = picture_name(item.index)
    return f"{INPUTS}/{name}" in proven and f"{OUTPUTS}/{name}" in proven


def _edit_batches(context: EvalContext, task: EditTask, plan: Sequence[Sequence[Batch]]) -> int:
    mine = plan[context.rank]
    rounds = max(len(batches) for batches in plan)
    filler = next((batch for batches in plan for batch in batches), None)
    made = 0
    with (
        undisturbed(context.denoiser, context.device),
        open_journal(task.folder / f"generated.{context.rank}.jsonl") as journal,
    ):
        for number in range(rounds):
            batch = mine[number] if number < len(mine) else filler
            assert batch is not None
            edited = _edit(context, task, batch)
            if number >= len(mine):
                continue
            for item, picture in zip(batch, edited, strict=True):
                for row in _store(task, item, picture):
                    journal.write(json_line(row))
            journal.flush()
            made += len(batch)
            context.progress(made, sum(len(batch) for batch in mine), f"{task.hook}: editing")
    return made


def _edit(context: EvalContext, task: EditTask, batch: Batch) -> Tensor:
    settings, backbone = task.settings, context.backbone
    edited = backbone.edit(
        context.denoiser,
        [(item.source,) for item in batch],
        [item.instruction(settings.level) for item in batch],
        num_steps=settings.num_steps,
        guidance=backbone.default_guidance if settings.guidance is None else settings.guidance,
        generators=[item_generator(settings.seed, task.hook, item.index) for item in batch],
    )
    if edited.dtype != torch.uint8 or edited.shape[:2] != (len(batch), 3):
        raise ValueError(
            f"Backbone.edit must return uint8 [{len(batch)}, 3, H, W], "
            f"found {edited.dtype} {list(edited.shape)} for items {[item.index for item in batch]}."
        )
    return edited.cpu()


def _store(task: EditTask, item: BenchmarkItem, edited: Tensor) -> list[dict[str, object]]:
    name = picture_name(item.index)
    write_bytes(task.folder / OUTPUTS / name, encode_png(edited))
    _store_input(task, item, name)
    if item.target is not None and task.twin is None:
        write_bytes(task.folder / TARGETS / name, item.target)
    return [
        {"key": task.key, "file": file, "sha256": file_digest(task.folder / file)}
        for file in (f"{INPUTS}/{name}", f"{OUTPUTS}/{name}")
    ]


def _store_input(task: EditTask, item: BenchmarkItem, name: str) -> None:
    twin = task.twin / INPUTS / name if task.twin is not None else None
    if twin is not None and twin.exists():
        link_or_copy(twin, task.folder / INPUTS / name)
    else:
        write_bytes(task.folder / INPUTS / name, encode_png(item.source))


def _complete(task: EditTask) -> None:
    proven = _proven_files(task)
    missing = [item.index for item in task.items if not _is_done(item, proven)]
    if missing:
        raise FileNotFoundError(
            f"{task.folder}: the edits of items {missing[:5]} are not there although every rank has finished. "
            "All ranks must see the same folder: put the run on a file system that they share."
        )
    write_meta_info(task.folder, task.items, task.settings.level)
    write_manifest(task.folder, Manifest(task.key, task.described, dict(sorted(proven.items()))))
    for journal in _journals(task.folder):
        journal.unlink()
