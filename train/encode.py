"""The encoded cache of a run: filled by ``physedit encode``, or by a run with ``encode=cached`` before it trains."""

import gc
import logging
from dataclasses import replace
from pathlib import Path

import torch
from omegaconf import DictConfig

from physedit.data_loaders.encoded import EncodedRows, TextSource
from physedit.data_loaders.sample import EditDataset
from physedit.data_loaders.slots import RunPlan
from physedit.models.backbone import Backbone
from physedit.models.encoding import EncoderKind
from physedit.train.assemble import build_checked, check_backbone, start_processes, write_scenes
from physedit.train.config import ConfigError
from physedit.train.filling import EncodeCounts, Filling, fill, shown_bytes
from physedit.train.order import accepted_rows, build_plan
from physedit.train.preflight import check_levels, check_places, check_references
from physedit.train.processes import Processes
from physedit.train.signals import StopFlag

logger = logging.getLogger(__name__)


def encode(config: DictConfig) -> EncodeCounts:
    """Fills the encoded cache of the config's data and backbone; all processes of a launch call it.

    Raises:
        ValueError: input that cannot be used.
    """
    if config.encode.mode != "cached":
        raise ConfigError("physedit encode fills the encoded cache, but encode=live was asked. Leave it out.")
    check_places(config)
    check_backbone(config)
    accelerator = start_processes(config)
    processes = Processes(accelerator.num_processes, accelerator.process_index)
    with processes.until_the_end():
        with processes.rank_0_first():
            write_scenes(config)
        dataset: EditDataset = build_checked("data", config.data)
        check_levels(config, dataset)
        backbone: Backbone = build_checked("backbone", config.backbone)
        check_references(backbone.max_sources, dataset)
        backbone.to(accelerator.device)
        plan = build_plan(config, processes, backbone, dataset)
        # A signal ends this process as any other: what was written stays.
        return fill(_filling(config, backbone, accepted_rows(config, dataset, plan), plan), processes)[2]


def encoded_rows(
    config: DictConfig,
    processes: Processes,
    backbone: Backbone,
    dataset: EditDataset,
    plan: RunPlan,
    *,
    stop: StopFlag,
) -> EncodedRows:
    """Fills the cache as far as it lacks rows, lets the encoders go, and returns what reads it; all ranks call it.

    Raises:
        ConfigError: see ``fill``.
        Stopped: ``stop`` was raised meanwhile.
    """
    store, keys, counts = fill(replace(_filling(config, backbone, dataset, plan), stop=stop), processes)
    logger.info("Encoded cache: %s", described(counts))
    text = TextSource.CACHED
    if config.encode.text == "live":
        text = TextSource.LIVE_WITH_PICTURES if backbone.text_sees_pictures else TextSource.LIVE
    _let_go(backbone, ("pictures", "text") if text is TextSource.CACHED else ("pictures",), is_edited=bool(config.eval))
    return EncodedRows(dataset, plan.index, store, keys, text)


def described(counts: EncodeCounts) -> str:
    """Returns the counts in words."""
    dropped = "".join(f"\n  {count} dropped: {reason}" for reason, count in counts.dropped.items())
    return (
        f"{counts.rows} rows: {counts.encoded} encoded now, {counts.reused} reused, {sum(counts.dropped.values())} "
        f"dropped; {counts.damaged} damaged entries; {shown_bytes(counts.bytes_in_use)} in use in {counts.folder}."
        f"{dropped}"
    )


def _filling(config: DictConfig, backbone: Backbone, dataset: EditDataset, plan: RunPlan) -> Filling:
    return Filling(
        backbone=backbone,
        dataset=dataset,
        plan=plan,
        folder=Path(str(config.encode.folder)),
        with_text=config.encode.text == "cached",
        can_write=bool(config.encode.write_missing),
        can_encode_text=config.backbone.get("encoders") != "absent",
        num_workers=int(config.num_workers),
    )


def _let_go(backbone: Backbone, kinds: tuple[EncoderKind, ...], *, is_edited: bool) -> None:
    """Frees the memory of encoders that training does not need.

    Args:
        backbone: whose encoders.
        kinds: of encoders.
        is_edited: evaluations will edit, which needs them again: they stay on the CPU.
    """
    backbone.forget()
    if is_edited:
        backbone.encoders.offload(kinds)
    else:
        backbone.encoders.drop(kinds)
    gc.collect()  # parts of a pipeline refer to each other in circles
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    where = "wait on the CPU for the evaluations" if is_edited else "are let go"
    logger.info("All is encoded: the encoders of %s %s.", " and ".join(kinds), where)
