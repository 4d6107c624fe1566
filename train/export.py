"""Brings an adapter into the form that other programs load: ``physedit export``."""

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import nn

from physedit.eval_hooks.files import file_digest, read_json, write_json
from physedit.models.adapter_file import ADAPTER_FILE
from physedit.models.backbone import Backbone
from physedit.models.export import Family, export_kohya, merge_adapter
from physedit.models.pipeline_folder import INDEX
from physedit.models.qwen_pipeline import TOY_NAME
from physedit.models.weights import RANDOM_TINY, cached_snapshot, find_weights
from physedit.train.assemble import build_checked, check_backbone
from physedit.train.build import resolve_target
from physedit.train.config import ConfigError
from physedit.train.output import check_is_free, published
from physedit.train.saved_adapter import SavedAdapter, check_base, check_saved, read_saved

logger = logging.getLogger(__name__)

_TRANSFORMER = "transformer"
_KEPT_FILES = ("LICENSE*", "NOTICE*")
"""What must go with a copy of the weights."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a backbone class stands for: whose layers its adapters name, and its folder below models/toy."""

    family: Family
    toy: str


_KINDS = {"FluxKontext": _Kind("flux", "flux_kontext"), "QwenImageEdit": _Kind("qwen_image", TOY_NAME)}


def export_diffusers(adapter: Path, out: Path) -> Path:
    """Copies the adapter's file, which diffusers' ``load_lora_weights`` reads; returns the copy.

    The file is read first and the copy held against it afterwards. No base is loaded.

    Args:
        adapter: the adapter's file.
        out: the file to write if its name ends in .safetensors, else the folder to write it into.

    Raises:
        ValueError: a file that is damaged or no adapter, or something lies at ``out``.
    """
    target = _file_at(out)
    _read(adapter)
    with published(out) as partial:
        copy = partial if target == out else partial / ADAPTER_FILE
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(adapter, copy)
        if file_digest(copy) != file_digest(adapter):
            raise OSError(f"The copy of {adapter} differs from it")
    return target


def export_kohya_file(config: DictConfig, adapter: Path, out: Path) -> Path:
    """Writes the adapter under Kohya's names, which ComfyUI and diffusers read; returns the file. No base is loaded.

    Args:
        config: a composed config; its backbone says whose layers they are.
        adapter: the adapter's file.
        out: as of ``export_diffusers``.

    Raises:
        ValueError: as ``export_diffusers``, or an adapter that this form cannot hold.
    """
    target = _file_at(out)
    saved, family = _read(adapter), _kind_of(config).family
    try:
        with published(out) as partial:
            export_kohya(saved.state, saved.format, family, partial if target == out else partial / ADAPTER_FILE)
    except ValueError as error:
        raise ConfigError(f"{adapter}: {error}") from error
    return target


def export_merged(config: DictConfig, adapter: Path, out: Path) -> Path:
    """Writes the base with the adapter in its transformer as a whole diffusers pipeline; returns its folder.

    The transformer has ``backbone.dtype``; all other parts, and the licence, are copied as they are stored.

    Args:
        config: a composed config; its backbone is the base.
        adapter: the adapter's file.
        out: the folder to write.

    Raises:
        ValueError: a base that is quantised, stored nowhere or not the adapter's, or something lies at ``out``.
    """
    _check_folder(out)
    toy, weights = _kind_of(config).toy, str(config.backbone.weights)
    if weights == RANDOM_TINY:
        raise ConfigError(
            f"backbone.weights={RANDOM_TINY} is drawn, not stored, so there are no other parts to copy. Use "
            "--transformer-only."
        )
    transformer = _merged_transformer(config, adapter)
    found = find_weights(weights, toy)
    base = found if isinstance(found, Path) else cached_snapshot(found)
    if base is None:
        raise ConfigError(f"{weights} is not in the hub's cache. Give the folder of the pipeline as backbone.weights.")
    with published(out) as partial:
        partial.mkdir()
        _copy_other_parts(base, partial)
        _save(transformer, partial / _TRANSFORMER)
    return out


def export_merged_transformer(config: DictConfig, adapter: Path, out: Path) -> Path:
    """Writes only the transformer of ``export_merged``, for ``from_pretrained(..., transformer=...)``.

    Raises:
        ValueError: as ``export_merged``.
    """
    _check_folder(out)
    transformer = _merged_transformer(config, adapter)
    with published(out) as partial:
        _save(transformer, partial)
    return out


def _file_at(out: Path) -> Path:
    check_is_free(out)
    return out if out.suffix == ".safetensors" else out / ADAPTER_FILE


def _check_folder(out: Path) -> None:
    if out.suffix == ".safetensors":
        raise ConfigError(f"--out {out} names a file, but a merged pipeline is a folder. Give a folder.")
    check_is_free(out)


def _read(adapter: Path) -> SavedAdapter:
    check_saved(adapter)
    return read_saved(adapter)


def _kind_of(config: DictConfig) -> _Kind:
    name = resolve_target(str(config.backbone["_target_"])).__name__
    if name not in _KINDS:
        raise ConfigError(
            f"The backbone {name} was given; this form is known for {', '.join(_KINDS)}. Use --format diffusers."
        )
    return _KINDS[name]


def _merged_transformer(config: DictConfig, adapter: Path) -> nn.Module:
    quantization = config.backbone.get("quantization")
    if quantization is not None:
        raise ConfigError(
            f"backbone.quantization={quantization} stores the base in fewer bits, into which no adapter can be merged. "
            "Merge into the whole base with backbone.quantization=null."
        )
    check_saved(adapter)
    check_backbone(config)
    backbone: Backbone = build_checked("backbone", config.backbone)
    saved = read_saved(adapter)
    check_base(backbone.denoiser, saved)
    try:
        merge_adapter(backbone.denoiser, saved.state, saved.format)
    except ValueError as error:
        raise ConfigError(f"{adapter}: {error}") from error
    logger.info("Merged an adapter of rank %d into %d layers.", saved.format.rank, len(saved.layers))
    return backbone.denoiser


def _copy_other_parts(base: Path, folder: Path) -> None:
    """Copies the index, what it names apart from the transformer, and the licence; links are followed."""
    index = json.loads((base / INDEX).read_text(encoding="utf-8"))
    shutil.copyfile(base / INDEX, folder / INDEX)
    for part in sorted(path for path in base.iterdir() if path.is_dir() and path.name in index):
        if part.name != _TRANSFORMER:
            shutil.copytree(part, folder / part.name)
    for file in (file for pattern in _KEPT_FILES for file in sorted(base.glob(pattern)) if file.is_file()):
        shutil.copyfile(file, folder / file.name)


def _save(transformer: Any, folder: Path) -> None:  # a class of diffusers, which has no types
    transformer.save_pretrained(folder)
    config = read_json(folder / "config.json")
    config.pop("_name_or_path", None)  # a path of this machine
    write_json(folder / "config.json", config)
