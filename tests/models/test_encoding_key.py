"""The key of an encoded cache follows all that decides what is encoded, and nothing else."""

import ast
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from tests.support.memory_editors import EDITORS

from physedit.data_loaders import geometry, images
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
from physedit.models.flux_kontext import FluxKontext
from physedit.models.parts import ENCODING_VERSION
from physedit.models.qwen_image_edit import QwenImageEdit

WITH_TEXT_AND_PICTURES: dict[str, dict[str, Any]] = {
    "flux_kontext": {"max_text_tokens": 20, "area_px": 48 * 64, "dtype": "bfloat16"},
    "qwen_image_edit": {"area_px": 96 * 96, "dtype": "bfloat16"},
}
WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    "flux_kontext": {"train_guidance": 3.0, "edit_guidance": 3.0},
    "qwen_image_edit": {"edit_guidance": 1.0, "negative_prompt": "ugly"},
}


@pytest.mark.parametrize("name", EDITORS)
def test_encoding_key_follows_settings_that_decide_the_encoding_and_no_other(name: str) -> None:
    key = EDITORS[name]().encoding_key
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


def test_encoding_key_follows_the_template() -> None:
    other = EDITORS["qwen_image_edit"]()
    other._pipeline.prompt_template_encode = other._pipeline.prompt_template_encode.replace("Describe", "Tell")
    assert other.encoding_key != EDITORS["qwen_image_edit"]().encoding_key


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
