"""Saves the toy Qwen-Image-Edit as a folder that stock classes read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import QwenImageEditPipeline

from physedit.models.qwen_processor import PictureProcessor, load_processor

_STOCK_PROCESSOR = "Qwen2VLProcessor"


def load_pipeline(folder: Path) -> QwenImageEditPipeline:
    """Returns the pipeline in ``folder``, float32 on the CPU, with a processor that needs no torchvision."""
    pipeline: QwenImageEditPipeline = QwenImageEditPipeline.from_pretrained(
        folder, processor=load_processor(folder), dtype=torch.float32
    )
    return pipeline


def save_pipeline(pipeline: QwenImageEditPipeline, folder: Path) -> None:
    """Writes the pipeline; the same weights give the same bytes, wherever they came from.

    The index names the stock processor, which adds a video processor to the same files where torchvision is at hand;
    where it is not, ``load_processor`` reads them.
    """
    pipeline.save_pretrained(folder)
    _edit_json(folder / "model_index.json", lambda index: index.update(processor=["transformers", _STOCK_PROCESSOR]))
    _edit_json(folder / "processor" / "processor_config.json", _name_stock_processor)
    for path in folder.rglob("*.json"):
        _edit_json(path, _forget_origin)


def store_as_float16(pipeline: QwenImageEditPipeline, folder: Path) -> None:
    """Writes the pipeline in float16; loaders that are given no type make float32 of it."""
    for part in (pipeline.vae, pipeline.transformer, pipeline.text_encoder):
        part.half()
    save_pipeline(pipeline, folder)
    _edit_json(folder / "text_encoder" / "config.json", lambda config: config.update(dtype="float32"))


def _name_stock_processor(config: dict[str, Any]) -> None:
    pictures = config["image_processor"]
    config["processor_class"] = _STOCK_PROCESSOR
    config["video_processor"] = {
        "patch_size": pictures["patch_size"],
        "merge_size": pictures["merge_size"],
        "temporal_patch_size": pictures["temporal_patch_size"],
        "video_processor_type": "Qwen2VLVideoProcessor",
    }


def _forget_origin(config: dict[str, Any]) -> None:
    config.pop("_name_or_path", None)
    if config.get("processor_class") == PictureProcessor.__name__:
        config["processor_class"] = _STOCK_PROCESSOR


def _edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    before = json.dumps(content)
    edit(content)
    if json.dumps(content) != before:
        path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
