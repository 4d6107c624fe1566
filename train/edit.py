"""Edits one picture with the base and with an adapter, from the same noise: ``physedit edit``.

Shape legend: H W pixels of a stored picture, h w pixels it is worked at.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from physedit.data_loaders.geometry import as_image, resized
from physedit.data_loaders.images import MAX_PIXELS, read_rgb
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError
from physedit.eval_hooks.files import (
    digest_of,
    encode_png,
    file_digest,
    write_bytes,
    write_json,
)
from physedit.models.backbone import Backbone
from physedit.models.lora import without_adapter
from physedit.models.outline import MOST_GUIDANCE
from physedit.train.adapter_settings import lora_settings
from physedit.train.assemble import build_checked, check_backbone, start_processes
from physedit.train.config import ConfigError
from physedit.train.output import check_is_own, published
from physedit.train.saved_adapter import SavedAdapter, attach, check_saved, read_saved

logger = logging.getLogger(__name__)

MOST_STEPS = 1000
"""Source: ``num_train_timesteps`` of the released schedulers, diffusers."""
DEFAULT_ROOT = Path("edits")
RECORD = "edit.json"
_MARGIN_PX, _HEADING_PX, _CAPTION_PX = 12, 28, 26
_LEGIBLE_PX = 256
"""Smaller pictures are enlarged in the side-by-side view, by a whole factor."""


@dataclass(frozen=True, slots=True)
class EditRequest:
    """What is to be edited.

    Attributes:
        images: the source, then further references.
        prompt: the instruction.
        seed: of the noise, which base and adapter share: that of ``torch.Generator().manual_seed``.
        num_steps: denoising steps, at least 1; None asks for the backbone's own.
        guidance: the guidance scale; None asks for the backbone's own.
    """

    images: tuple[Path, ...]
    prompt: str
    seed: int = 0
    num_steps: int | None = None
    guidance: float | None = None


@dataclass(frozen=True, slots=True)
class _Sampling:
    """How the pictures are sampled, with the backbone's own values where none were given."""

    seed: int
    num_steps: int
    guidance: float


def edit(config: DictConfig, request: EditRequest, adapter: Path | None, out: Path | None) -> Path:
    """Edits and writes source, base, tuned and side_by_side as PNG, and ``edit.json``; returns their folder.

    Args:
        config: a composed config; its backbone and device are used.
        request: pictures, instruction and sampling.
        adapter: the adapter's file; without one there is no tuned picture.
        out: the folder; None means ``edits/STEM_HASH``, where the hash is that of all inputs.

    Raises:
        ValueError: input that cannot be used, or a folder that holds something else than this very edit.
    """
    check_request(request)
    if config.backbone.get("encoders") == "absent":
        raise ConfigError(
            "backbone.encoders=absent leaves out the text encoders, but an edit encodes its instruction. Use "
            "backbone.encoders=offload, which has them on the device only while they encode, or resident."
        )
    pictures = [_read_picture(path) for path in request.images]
    identity = _identity(config, request, adapter)
    folder = out or DEFAULT_ROOT / f"{request.images[0].stem}_{identity[:10]}"
    check_is_own(folder, RECORD, identity, other="another edit")
    if adapter is not None:
        check_saved(adapter)
    check_backbone(config)
    device = start_processes(config).device
    backbone: Backbone = build_checked("backbone", config.backbone)
    saved = None if adapter is None else read_saved(adapter)
    if saved is not None:
        attach(backbone, saved, lora_settings(config).compute_dtype)
    backbone.to(device)
    sampling = _sampling(request, backbone)
    edited, seconds = {}, {}
    for name, switch in _editors(backbone, saved).items():
        logger.info("Editing with the %s: %d steps on %s.", _SAID[name], sampling.num_steps, device)
        started = time.monotonic()
        with switch:
            edited[name] = _edited(backbone, pictures, request.prompt, sampling)
        seconds[name] = round(time.monotonic() - started, 2)
        logger.info("Done in %.1f s.", seconds[name])
    record = {
        **_given(request, pictures, sampling),
        "size": _size(edited["base"]),
        "weights": str(config.backbone.weights),
        "backbone": OmegaConf.to_container(config.backbone, resolve=True),
        "adapter": None if saved is None else _adapter_record(config, saved),
        "device": str(device),
        "seconds": seconds,
        "identity": identity,
    }
    _write(folder, pictures, edited, record)
    return folder


def check_request(request: EditRequest) -> None:
    """Verifies what needs no picture to be read.

    Raises:
        ConfigError: no picture, one that is no file, an empty prompt, or a number out of range.
    """
    if not request.images:
        raise ConfigError("No picture was given. Give the source with --image FILE.")
    for path in request.images:
        if not path.is_file():
            found = "is no file" if path.exists() else "does not exist"
            raise ConfigError(f"--image {path} {found}. Give a picture file.")
    if not request.prompt.strip():
        raise ConfigError("--prompt is empty. Say what is to be edited, such as --prompt 'Remove the chair.'")
    if request.num_steps is not None and not 1 <= request.num_steps <= MOST_STEPS:
        raise ConfigError(f"--steps {request.num_steps} was asked for; an edit takes at least 1, at most {MOST_STEPS}.")
    if not 0 <= request.seed < 2**63:
        raise ConfigError(f"--seed {request.seed} must lie in 0 to 2^63 - 1.")
    if request.guidance is not None and not 0 <= request.guidance <= MOST_GUIDANCE:
        raise ConfigError(
            f"--guidance {request.guidance} must be a finite number of at least 0, at most {MOST_GUIDANCE}."
        )


def side_by_side(pictures: Mapping[str, Tensor], caption: str) -> Image.Image:
    """Returns pictures, uint8 ``[3, H, W]``, at the height of the first in one row, under their names and a caption."""
    height = next(iter(pictures.values())).shape[-2]
    scale = max(1, _LEGIBLE_PX // height)
    shown = []
    for picture in pictures.values():
        image = as_image(resized(picture, height, max(1, round(picture.shape[-1] * height / picture.shape[-2]))))
        shown.append(image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST))
    width = sum(image.width + _MARGIN_PX for image in shown) + _MARGIN_PX
    top = _CAPTION_PX + _HEADING_PX
    sheet = Image.new("RGB", (width, top + height * scale + _MARGIN_PX), "white")
    pen, left = ImageDraw.Draw(sheet), _MARGIN_PX
    pen.text((left, 8), _fitted(pen, caption, width - 2 * _MARGIN_PX), fill="black", font=_font())
    for name, image in zip(pictures, shown, strict=True):
        pen.text((left, _CAPTION_PX + 6), name, fill="#444444", font=_font())
        sheet.paste(image, (left, top))
        left += image.width + _MARGIN_PX
    return sheet


_SAID = {"base": "base", "tuned": "adapter"}


def _read_picture(path: Path) -> Tensor:
    try:
        return read_rgb(path)
    except DatasetRowError as error:
        # The messages speak of rows of a data set; that of a file that cannot be read does not.
        if error.reason in (RowProblem.MISSING_FILE, RowProblem.NOT_READABLE):
            raise ConfigError(f"--image {path} cannot be used: {error}") from error
        raise ConfigError(
            f"--image {path} cannot be used: {error.reason}. Give a picture that can be decoded to its end, with whole "
            f"numbers for pixels, and with at most {MAX_PIXELS} of them."
        ) from error


def _identity(config: DictConfig, request: EditRequest, adapter: Path | None) -> str:
    """Returns a hash of all that decides the pictures, wherever files lie."""
    inputs = asdict(request) | {
        "images": [file_digest(path) for path in request.images],
        "backbone": OmegaConf.to_container(config.backbone, resolve=True),
        "adapter": None if adapter is None else file_digest(adapter),
    }
    if adapter is not None and config.adapter.compute_dtype != "float32":
        inputs["compute_dtype"] = str(config.adapter.compute_dtype)
    return digest_of(inputs)


def _editors(backbone: Backbone, saved: SavedAdapter | None) -> dict[str, AbstractContextManager[object]]:
    if saved is None:
        return {"base": nullcontext()}
    return {"base": without_adapter(backbone.denoiser), "tuned": nullcontext()}


def _sampling(request: EditRequest, backbone: Backbone) -> _Sampling:
    return _Sampling(
        seed=request.seed,
        num_steps=backbone.default_num_steps if request.num_steps is None else request.num_steps,
        guidance=backbone.default_guidance if request.guidance is None else request.guidance,
    )


def _edited(backbone: Backbone, pictures: Sequence[Tensor], prompt: str, sampling: _Sampling) -> Tensor:
    try:
        edited = backbone.edit(
            backbone.denoiser,
            [pictures],
            [prompt],
            num_steps=sampling.num_steps,
            guidance=sampling.guidance,
            generators=[torch.Generator().manual_seed(sampling.seed)],
        )
    except ValueError as error:
        raise ConfigError(f"This edit cannot be made: {error}") from error
    return edited[0]


def _given(request: EditRequest, pictures: Sequence[Tensor], sampling: _Sampling) -> dict[str, object]:
    return {
        "prompt": request.prompt,
        **asdict(sampling),
        "images": [
            {"path": str(path), "sha256": file_digest(path), **_size(picture)}
            for path, picture in zip(request.images, pictures, strict=True)
        ],
    }


def _adapter_record(config: DictConfig, saved: SavedAdapter) -> dict[str, object]:
    return {
        "path": str(saved.file),
        "sha256": file_digest(saved.file),
        "num_layers": len(saved.layers),
        **asdict(saved.format),
        "compute_dtype": str(config.adapter.compute_dtype),
    }


def _size(picture: Tensor) -> dict[str, int]:
    return {"width": picture.shape[-1], "height": picture.shape[-2]}


def _write(
    folder: Path, pictures: Sequence[Tensor], edited: Mapping[str, Tensor], record: Mapping[str, object]
) -> None:
    """Writes the files; the source is shown as it is worked at, and so are references, whose size is of no account."""
    source = resized(pictures[0], *edited["base"].shape[-2:])
    references = {f"reference {number}": picture for number, picture in enumerate(pictures[1:], start=1)}
    with published(folder) as partial:
        for name, picture in {"source": source, **edited}.items():
            write_bytes(partial / f"{name}.png", encode_png(picture))
        sheet = side_by_side({"source": source, **references, **edited}, str(record["prompt"]))
        sheet.save(partial / "side_by_side.png")
        write_json(partial / RECORD, record)


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(14)


def _fitted(pen: ImageDraw.ImageDraw, text: str, room_px: int) -> str:
    text = " ".join(text.split())
    if len(text) > room_px:  # no letter is narrower than a pixel, and measuring a long text again and again takes long
        text = text[:room_px] + "…"
    while len(text) > 1 and pen.textlength(text, font=_font()) > room_px:
        text = text[:-2].rstrip(" .") + "…"
    return text
