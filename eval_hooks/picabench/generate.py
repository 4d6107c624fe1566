"""Editing the items of a benchmark into a folder, shared by the ranks and continued after a kill.

Shape legend: B batch, H W pixels.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import torch
from torch import Tensor, nn

from physedit.data_loaders.streams import stream_seed
from physedit.eval_hooks.files import json_line, open_journal
from physedit.eval_hooks.hook import EvalContext
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem
from physedit.eval_hooks.picabench.edit_task import (
    TIME_IS_UP,
    EditTask,
    clear_stale,
    complete,
    is_done,
    journals,
    proven_files,
    store,
)
from physedit.eval_hooks.picabench.inputs import input_picture, input_size
from physedit.eval_hooks.picabench.manifest import read_whole_manifest
from physedit.eval_hooks.picabench.subset import shuffled
from physedit.eval_hooks.ranks import Ranks
from physedit.models.sizes import PictureSizes

log = logging.getLogger(__name__)

ENCODED = "encoded"
"""Below the base cache: what encoders made of benchmarks' items."""

Batch = tuple[BenchmarkItem, ...]


def edit_benchmark(context: EvalContext, task: EditTask) -> int:
    """Ensures that ``task.folder`` holds every edit, and returns how many this rank had to make.

    Pictures whose hash is proven by the manifest, or by the journal of a killed run, are kept. All ranks must call it,
    and all make the same number of calls to ``Backbone.edit``, repeating a batch where their share is smaller, so that
    a denoiser sharded over ranks never waits for a rank that is done. With a time budget some items may stay unedited,
    which the manifest tells; a later call without one edits them.
    """
    started = time.monotonic()
    ranks = Ranks(context.rank, context.world_size, context.barrier)
    ranks.first_alone(task.folder, lambda: clear_stale(task))
    proven: dict[str, str] = {}
    ranks.together(task.folder, lambda: proven.update(proven_files(task)))
    pending = [item for item in task.items if not is_done(item, proven)]
    budget_s = task.settings.time_budget_s
    if _is_complete(task, pending):
        return 0
    if budget_s is not None:
        pending = list(shuffled(pending))  # so that what is edited before the end is a fair sample
    plan = [
        plan_batches(ranks_share, context.backbone.sizes_of, task.settings.batch_size)
        for ranks_share in (pending[rank :: ranks.world_size] for rank in range(ranks.world_size))
    ]
    rounds = _Rounds(context, task, plan)
    with _kept(context, task), undisturbed(context.denoiser, context.device):
        if budget_s is None:
            ranks.together(task.folder, rounds.run_all)
        else:
            _run_until(rounds, ranks, started + budget_s)
    ranks.first_alone(task.folder, lambda: complete(task, may_lack=budget_s is not None))
    return rounds.num_made


def plan_batches(
    items: Sequence[BenchmarkItem], sizes_of: Callable[[int, int], PictureSizes], batch_size: int
) -> tuple[tuple[BenchmarkItem, ...], ...]:
    """Groups items that are edited at one size into batches, in order of their first item. Pure."""
    groups: dict[PictureSizes, list[BenchmarkItem]] = {}
    for item in items:
        groups.setdefault(sizes_of(*input_size(item)), []).append(item)
    return tuple(
        tuple(group[start : start + batch_size])
        for group in groups.values()
        for start in range(0, len(group), batch_size)
    )


def item_generator(seed: int, hook: str, index: int) -> torch.Generator:
    """Returns the CPU generator of an item's noise: a function of its arguments and of nothing else."""
    return torch.Generator("cpu").manual_seed(stream_seed(seed, hook, index))


def made_with(context: EvalContext) -> dict[str, object]:
    """Returns what decides an editor's pictures beside settings and items: its weights, and what computes with them."""
    on_gpu = context.device.type == "cuda"
    frozen = {str(each.dtype) for each in context.denoiser.parameters() if not each.requires_grad}
    return {
        "backbone": context.backbone.fingerprint,
        "dtype": sorted(frozen),
        "torch": torch.__version__,
        "diffusers": version("diffusers"),
        "transformers": version("transformers"),
        "device": torch.cuda.get_device_name(context.device) if on_gpu else context.device.type,
    }


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


def _is_complete(task: EditTask, pending: Sequence[BenchmarkItem]) -> bool:
    """True if the folder is described as it is, and lacks nothing but what a time budget left out before."""
    manifest = read_whole_manifest(task.folder)
    if manifest is None or journals(task.folder):
        return False
    left_out = manifest.not_edited if task.settings.time_budget_s is not None else ()
    return {item.index for item in pending} <= set(left_out)


@dataclass
class _Rounds:
    """The batches of all ranks, one of each at a time."""

    context: EvalContext
    task: EditTask
    plan: Sequence[Sequence[Batch]]
    num_made: int = 0

    def __len__(self) -> int:
        return max(len(batches) for batches in self.plan)

    def run_all(self) -> None:
        for number in range(len(self)):
            self.run(number)

    def run(self, number: int) -> None:
        """Edits this rank's batch of a round, or any batch, in vain, where it has none."""
        mine = self.plan[self.context.rank]
        if number >= len(mine):
            _edit(self.context, self.task, next(batch for batches in self.plan for batch in batches))
            return
        edited = _edit(self.context, self.task, mine[number])
        with open_journal(self.task.folder / f"generated.{self.context.rank}.jsonl") as journal:
            for item, picture in zip(mine[number], edited, strict=True):
                journal.writelines(json_line(row) for row in store(self.task, item, picture))
        self.num_made += len(mine[number])
        self.context.progress(self.num_made, sum(len(batch) for batch in mine), f"{self.task.hook}: editing")


def _run_until(rounds: _Rounds, ranks: Ranks, end_s: float) -> None:
    """Runs rounds until the clock of rank 0 says so; at least one, so that every call gets on."""
    folder = rounds.task.folder
    mark = folder / TIME_IS_UP
    for number in range(len(rounds)):
        if number > 0:
            ranks.first_alone(folder, lambda: mark.touch() if time.monotonic() >= end_s else None)
            is_up: list[bool] = []
            ranks.together(folder, lambda is_up=is_up: is_up.append(mark.exists()))  # type: ignore[misc]
            if is_up[0]:
                log.warning("%s: the time is up after %d of %d rounds of edits", folder, number, len(rounds))
                break
        ranks.together(folder, partial(rounds.run, number))


def _kept(context: EvalContext, task: EditTask) -> AbstractContextManager[None]:
    if not task.settings.keep_encoded:
        return nullcontext()
    return context.backbone.keeping_encoded(context.base_cache / ENCODED)


def _edit(context: EvalContext, task: EditTask, batch: Batch) -> Tensor:
    settings = task.settings.for_editor(context.backbone)
    assert settings.num_steps is not None
    assert settings.guidance is not None
    edited = context.backbone.edit(
        context.denoiser,
        [(input_picture(item),) for item in batch],
        [item.instruction(settings.level) for item in batch],
        num_steps=settings.num_steps,
        guidance=settings.guidance,
        generators=[item_generator(settings.seed, task.hook, item.index) for item in batch],
    )
    if edited.dtype != torch.uint8 or edited.shape[:2] != (len(batch), 3):
        raise ValueError(
            f"Backbone.edit must return uint8 [{len(batch)}, 3, H, W], "
            f"found {edited.dtype} {list(edited.shape)} for items {[item.index for item in batch]}."
        )
    return edited.cpu()
