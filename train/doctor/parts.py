"""Checks of what a run is built from: settings, weights, data, benchmarks, and one encoded batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from physedit.data_loaders.sample import DatasetRowError, EditBatch, EditDataset, EditSample, PromptLevel, collate
from physedit.eval_hooks.files import read_json
from physedit.eval_hooks.hook import EvalHook
from physedit.models.backbone import Backbone
from physedit.models.encoding import Latents, latents_as_tensors
from physedit.models.outline import Outline
from physedit.models.pipeline_folder import INDEX, check_pipeline_folder
from physedit.models.qwen_positions import positions_are_lost
from physedit.models.weights import RANDOM_TINY, TOY, cached_snapshot, find_weights
from physedit.train.assemble import add_lora, build_checked, check_backbone, outline_of
from physedit.train.doctor.finding import Finding, error, ok, refusal, warning
from physedit.train.optim import check_optimizer
from physedit.train.preflight import check_levels, check_references, is_yet_to_be_written, paths_of

_NUM_ROWS_TRIED = 64
_MADE_UP_PX = 64
_QWEN_ENCODER = "Qwen2_5_VLForConditionalGeneration"
_TOKEN_TYPES = "mm_token_type_ids"
_LATER = "physedit.eval_hooks.judges.later.LaterJudge"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded editor with its adapter, and how many numbers that has."""

    backbone: Backbone
    num_parameters: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """One encoded batch: its finding, what a pair takes, and whether picture tokens kept their positions."""

    finding: Finding
    bytes_a_row: int = 0
    lost_positions: bool | None = None


def check_components(config: DictConfig) -> Finding:
    """Verifies objective, schedule, tracker and optimizer."""
    try:
        for name in ("objective", "schedule", "tracker"):
            build_checked(name, config[name])
        check_optimizer(config.optimizer)
    except ValueError as refused:
        return refusal("components", refused)
    return ok("components", "objective, schedule, tracker and optimizer can be built")


def check_weights(config: DictConfig) -> tuple[Finding, Outline | None]:
    """Verifies that weights can be opened, without loading them."""
    try:
        check_backbone(config)
        outline = outline_of(config)
    except ValueError as refused:
        return refusal("weights", refused), None
    where = "on this machine" if are_local(config) else "on the hub"
    return ok("weights", f"{config.backbone.weights}: {where}"), outline


def are_local(config: DictConfig) -> bool:
    """True if weights that ``check_weights`` found can be loaded without a download."""
    weights = str(config.backbone.weights)
    if weights in (TOY, RANDOM_TINY) or isinstance(find_weights(weights, weights), Path):
        return True
    snapshot = cached_snapshot(weights)
    return snapshot is not None and _is_whole(snapshot)


def check_data(config: DictConfig, outline: Outline | None) -> tuple[Finding, EditDataset | None]:
    """Opens the data and verifies levels and references."""
    if any(is_yet_to_be_written(config, path) for path in paths_of(config.data)):
        return ok("data", f"{config.scenes.folder}: written when the run starts"), None
    try:
        dataset: EditDataset = build_checked("data", config.data)
        check_levels(config, dataset)
        if outline is not None:
            check_references(outline.max_sources, dataset)
    except (ValueError, OSError) as refused:
        return refusal("data", refused), None
    if len(dataset) == 0:
        return error("data", "the set is open, but has no row", "Choose another data.path, or a wider filter."), None
    return ok("data", f"{len(dataset)} rows, prompts: {', '.join(sorted(dataset.levels))}"), dataset


def check_hook(config: DictConfig, name: str, *, has_judge: bool) -> Finding:
    """Verifies an evaluation and its benchmark; a judge that has failed its own check is left out here."""
    key, node = f"eval.{name}", config.eval[name].copy()
    rows = node.get("data")
    places = [node.get("benchmark"), *([] if rows is None else paths_of(rows))]
    if any(is_yet_to_be_written(config, place) for place in places if place is not None):
        return ok(key, f"{config.scenes.folder}: written when the run starts")
    if not has_judge and "judge" in node:
        node.judge = {"_target_": _LATER, "protocol": "official"}
    try:
        hook: EvalHook = build_checked(key, node)
        hook.check()
    except (ValueError, OSError) as refused:
        return refusal(key, refused)
    return ok(key, "can be evaluated")


def load(config: DictConfig) -> Loaded | Finding:
    """Loads the editor and adds the adapter, as a run does."""
    try:
        backbone: Backbone = build_checked("backbone", config.backbone)
        add_lora(backbone, config)
    except (ValueError, OSError) as refused:
        return refusal("editor", refused)
    return Loaded(backbone, sum(each.numel() for each in backbone.denoiser.parameters() if each.requires_grad))


def encode_batch(config: DictConfig, backbone: Backbone, dataset: EditDataset | None, device: torch.device) -> Encoded:
    """Encodes a micro batch of the first usable rows; of a made-up pair where there is no data yet."""
    batch: EditBatch | Finding = _made_up(config) if dataset is None else _first_rows(config, backbone, dataset)
    if isinstance(batch, Finding):
        return Encoded(batch)
    seen = _TypesSeen()
    try:
        backbone.to(device)
        with seen.watching():
            tensors = _encoded(config, backbone, batch)
    except torch.OutOfMemoryError as failed:
        remedy = "Set backbone.encoders=offload, quantise the base, lower micro_batch, or choose launch=zero3."
        return Encoded(error("batch", f"no memory on {device}: {str(failed)[:200]}", remedy))
    except Exception as failed:  # whatever a library says of a driver, a kernel or a row belongs in the list
        remedy = "Mend the data, the weights or the installation that the message names."
        return Encoded(error("batch", f"not encoded: {type(failed).__name__}: {str(failed)[:300]}", remedy))
    if unfit := [name for name, value in tensors.items() if not bool(torch.isfinite(value.float()).all())]:
        found = f"{', '.join(unfit)} not finite in {config.backbone.dtype}"
        return Encoded(error("batch", found, "Set backbone.dtype=bfloat16 or float32."), lost_positions=seen.are_lost)
    num_bytes = sum(value.numel() * value.element_size() for value in tensors.values())
    what = "a made-up pair" if dataset is None else f"{len(batch)} pair(s) from {batch.sample_ids[0]} on"
    found = f"{what}, encoded on {device}: {num_bytes / len(batch) / 2**20:.2f} MiB a pair"
    return Encoded(ok("batch", found), num_bytes // len(batch), seen.are_lost)


def check_positions(config: DictConfig, lost: bool | None) -> Finding | None:
    """Tells whether Qwen's text encoder keeps the places of picture tokens; None for other editors.

    Args:
        config: of the run.
        lost: what an encoded batch showed; None where none was encoded.
    """
    if not str(config.backbone["_target_"]).endswith("QwenImageEdit"):
        return None
    if lost:
        found = "the text encoder was not told which tokens are pictures: its states are not the released editor's"
        return error("positions", found, "Install the versions of constraints.txt: pip install -c constraints.txt -e .")
    if not positions_are_lost():
        return ok("positions", "kept by the stock pipelines themselves")
    said = "the stock pipelines lose those of picture tokens; this backbone adds them"
    if lost is None:
        return warning("positions", f"{said}, which was not tried", "Run doctor where the weights are.")
    return ok("positions", f"{said}, as the batch showed")


def _is_whole(snapshot: Path) -> bool:
    """False for a snapshot of the hub whose download has yet to go on."""
    try:
        check_pipeline_folder(snapshot, str(read_json(snapshot / INDEX).get("_class_name")))
    except (ValueError, OSError):
        return False
    return True


class _TypesSeen:
    """Whether calls of Qwen's text encoder were told which tokens belong to pictures."""

    def __init__(self) -> None:
        self._told: list[bool] = []

    @property
    def are_lost(self) -> bool | None:
        """None if it was not called."""
        return None if not self._told else not all(self._told)

    def watching(self) -> torch.utils.hooks.RemovableHandle:
        """Watches all modules until the handle's context ends."""
        return nn.modules.module.register_module_forward_hook(self._see, with_kwargs=True)

    def _see(self, module: nn.Module, _args: object, inputs: object, _output: object) -> None:
        if type(module).__name__ == _QWEN_ENCODER and isinstance(inputs, dict) and "pixel_values" in inputs:
            self._told.append(inputs.get(_TOKEN_TYPES) is not None)


def _encoded(config: DictConfig, backbone: Backbone, batch: EditBatch) -> dict[str, Tensor]:
    with torch.no_grad(), backbone.encoders.encoding():
        latents: Latents = backbone.encode_pictures(batch)
        tensors = latents_as_tensors(latents)
        if config.backbone.get("encoders") != "absent":
            tensors |= backbone.encode_text(batch.given, batch.instructions)
    return tensors


def _first_rows(config: DictConfig, backbone: Backbone, dataset: EditDataset) -> EditBatch | Finding:
    """Returns up to a micro batch of pairs that are edited at one size, from the first rows."""
    level = next(level for level in PromptLevel if config.levels[level.value] > 0)
    samples, refusals = list[EditSample](), list[DatasetRowError]()
    for index in range(min(len(dataset), _NUM_ROWS_TRIED)):
        try:
            sample = dataset.sample(index, level)
        except DatasetRowError as refused:
            refusals.append(refused)
            continue
        if not samples or _shape(backbone, sample) == _shape(backbone, samples[0]):
            samples.append(sample)
        if len(samples) == int(config.micro_batch):
            break
    if samples:
        return collate(samples)
    remedy = "Look at all rows with: physedit data check, and mend or replace the data."
    return error("batch", f"none of the first {len(refusals)} rows can be used: {refusals[0]}", remedy)


def _shape(backbone: Backbone, sample: EditSample) -> list[object]:
    pictures: Iterator[Tensor] = iter((sample.source, *sample.references))
    return [backbone.sizes_of(*picture.shape[-2:]) for picture in pictures]


def _made_up(config: DictConfig) -> EditBatch:
    grey = torch.full((3, _MADE_UP_PX, _MADE_UP_PX), 128, dtype=torch.uint8)
    number = int(config.micro_batch)
    return EditBatch(("made-up",) * number, (grey,) * number, (grey,) * number, ("Remove the chair.",) * number)
