"""Building the stock Qwen-Image-Edit pipelines, refusing those that training does not reproduce, and their areas."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from physedit.models.loading import freeze, modules_of, read_pipeline
from physedit.models.pipeline_folder import WrongPipelineError, check_pipeline_folder, refuse_other_pipeline
from physedit.models.quantization import Quantization
from physedit.models.qwen_positions import own_positions
from physedit.models.sizes import MAX_AREA_PX, QWEN_MULTIPLE_PX, RELEASED_AREA_PX
from physedit.models.weights import RANDOM_RELEASED, RANDOM_TINY, TOY, find_weights, split_revision

EditPipeline = Literal["QwenImageEditPipeline", "QwenImageEditPlusPipeline"]
"""The two classes: one picture, which the text encoder sees as the VAE does; or several, which it sees smaller."""
MAX_SOURCES: Mapping[str, int] = {"QwenImageEditPipeline": 1, "QwenImageEditPlusPipeline": 3}
"""Pictures that an edit can start from. Source: model cards of Qwen/Qwen-Image-Edit and Qwen/Qwen-Image-Edit-2511."""

TOY_NAME = "qwen_image_edit"
"""Folder of the toy under models/toy."""
RELEASED_VISION_AREA_PX = 384 * 384
"""The area at which the text encoder of QwenImageEditPlusPipeline sees a picture."""
_MAX_SEEN_PX = 2 * RELEASED_AREA_PX
"""Of all pictures that the text encoder sees at once, 2738 tokens: the transformer has 4096 positions for text."""
_RANDOM_TINY_SEED = 0
_USER_HEADER = "<|im_start|>user\n"


def load_pipeline(
    pipeline: EditPipeline,
    weights: Path | str,
    dtype: torch.dtype,
    components: Mapping[str, object] | None = None,
    quantization: Quantization | None = None,
) -> Any:
    """Returns the pipeline as ``read_pipeline`` places it, frozen and in evaluation mode.

    Its text encoder has its own positions.

    Args:
        pipeline: the class that the weights must be of.
        weights: a folder, a hub id, ``random_tiny`` or ``random_released``, which is on its device already.
        dtype: of every weight.
        components: parts to use instead of the stored ones; see ``read_pipeline``.
        quantization: of the transformer's linear layers; never with random weights.

    Raises:
        ValueError: ``weights`` cannot be loaded, or are such that training does not reproduce the pipeline.
    """
    if weights == RANDOM_TINY:
        loaded = _random_tiny_pipeline(pipeline, dtype)
    elif weights == RANDOM_RELEASED:
        from physedit.models.random_released import build_random_qwen, released_device

        device = released_device(RANDOM_RELEASED)
        loaded = build_random_qwen(pipeline_class(pipeline), dtype, device, tuple(components or ()))
    else:
        parts = {"processor": _read_processor(pipeline, weights), **(components or {})}
        loaded = read_pipeline(pipeline_class(pipeline), weights, dtype, parts, quantization)
    freeze(loaded)
    _check_pipeline(loaded)
    if loaded.text_encoder is not None:
        own_positions(loaded.text_encoder)
    return loaded


@contextmanager
def working_at(pipeline: Any, area_px: int, vision_area_px: int) -> Iterator[None]:
    """Within the context the stock pipeline works at other areas than those that are written in its code.

    It changes the pipeline's module for the whole process; with the released areas it changes nothing.

    Args:
        pipeline: of diffusers.
        area_px: in place of 1024x1024, of the pictures that the VAE sees.
        vision_area_px: in place of 384x384, of the pictures that the text encoder sees; QwenImageEditPipeline, whose
            text encoder sees what the VAE sees, has no such number.
    """
    module: Any = sys.modules[type(pipeline).__module__]
    areas = {RELEASED_AREA_PX: area_px}
    if MAX_SOURCES[type(pipeline).__name__] > 1:
        areas |= {module.VAE_IMAGE_SIZE: area_px, module.CONDITION_IMAGE_SIZE: vision_area_px}
    written = module.calculate_dimensions
    if any(area != wanted for area, wanted in areas.items()):
        module.calculate_dimensions = _with_areas(written, areas)
    try:
        yield
    finally:
        module.calculate_dimensions = written


def checked_pipeline(pipeline: str) -> EditPipeline:
    """Returns the pipeline class of that name.

    Raises:
        ValueError: none of the two.
    """
    if pipeline not in get_args(EditPipeline):
        raise ValueError(f"backbone.pipeline is '{pipeline}'; it must be one of {', '.join(get_args(EditPipeline))}.")
    return cast("EditPipeline", pipeline)


def checked_areas(pipeline: EditPipeline, area_px: int, vision_area_px: int | None) -> tuple[int, int]:
    """Returns the areas that the VAE and the text encoder see a picture at.

    Args:
        pipeline: the class.
        area_px: that of the VAE.
        vision_area_px: that of the text encoder; None for QwenImageEditPipeline, where it is the VAE's.

    Raises:
        ValueError: an area out of range, or a second one for the wrong pipeline.
    """
    smallest = QWEN_MULTIPLE_PX**2
    if not smallest <= area_px <= MAX_AREA_PX:
        raise ValueError(
            f"backbone.area_px is {area_px}; it must lie in {smallest} to {MAX_AREA_PX}. The released models work at "
            f"{RELEASED_AREA_PX}."
        )
    num_seen = MAX_SOURCES[pipeline]
    if (vision_area_px is None) != (num_seen == 1):
        raise ValueError(
            f"backbone.vision_area_px is {vision_area_px} with a {pipeline}. The text encoder of QwenImageEditPipeline "
            "sees the picture as it is worked at, so leave it out there; QwenImageEditPlusPipeline needs it, "
            f"{RELEASED_VISION_AREA_PX} as released."
        )
    seen_px = area_px if vision_area_px is None else vision_area_px
    if not smallest <= seen_px <= _MAX_SEEN_PX // num_seen:
        name = "area_px" if vision_area_px is None else "vision_area_px"
        raise ValueError(
            f"backbone.{name} is {seen_px}; it must lie in {smallest} to {_MAX_SEEN_PX // num_seen}, for the text "
            f"encoder sees {num_seen} such picture(s) and the transformer has no more positions for text."
        )
    return area_px, seen_px


def pipeline_class(pipeline: EditPipeline) -> Any:
    """Returns the class of diffusers, which is imported now and has no types."""
    import diffusers

    return getattr(diffusers, pipeline)


def check_steps(pipeline: Any, num_steps: int) -> None:
    """Verifies that the pipeline's scheduler makes times of so many steps.

    Raises:
        ValueError: one step, of which it makes not-a-number.
    """
    terminal = pipeline.scheduler.config.shift_terminal
    if num_steps == 1 and terminal:
        raise ValueError(
            f"An edit of 1 step was asked for, but this scheduler stretches its times to end at {terminal}, which "
            "makes not-a-number of a single one. Take at least 2 steps."
        )


def found_weights(weights: str, pipeline: EditPipeline) -> Path | str:
    """Returns the folder that ``weights`` stands for, or ``weights`` if it is a hub id or random weights.

    Raises:
        ValueError: no such weights, a folder of another pipeline, or one with holes.
    """
    if weights == RANDOM_TINY:
        return weights
    if weights == TOY and pipeline != "QwenImageEditPipeline":
        raise ValueError(
            f"backbone.weights is '{TOY}', which is a QwenImageEditPipeline, but this backbone needs a {pipeline}. Use "
            f"backbone=qwen_image_edit, or backbone.weights={RANDOM_TINY}."
        )
    found = find_weights(weights, TOY_NAME)
    if isinstance(found, Path):
        check_pipeline_folder(found, pipeline)
    return found


def _with_areas(calculate_dimensions: Any, areas: Mapping[int, int]) -> Any:
    """Returns the function of diffusers for other areas; one that is not among ``areas`` is a KeyError."""

    def calculate(target_area: int, ratio: float) -> Any:
        return calculate_dimensions(areas[target_area], ratio)

    return calculate


def _read_processor(pipeline: EditPipeline, weights: Path | str) -> object:
    from huggingface_hub import snapshot_download

    from physedit.models.qwen_processor import PROCESSOR_FOLDER, load_processor

    if isinstance(weights, Path):
        return load_processor(weights)
    hub_id, revision = split_revision(weights)
    try:
        index = pipeline_class(pipeline).load_config(hub_id, revision=revision)
        refuse_other_pipeline(weights, index.get("_class_name"), pipeline)
        snapshot = snapshot_download(hub_id, revision=revision, allow_patterns=[f"{PROCESSOR_FOLDER}/*"])
        return load_processor(Path(snapshot))
    except WrongPipelineError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The processor of backbone.weights '{weights}' cannot be loaded: {type(error).__name__}: {error}. Check "
            "the hub id and the revision, and the network; or give the folder of a pipeline that is here already."
        ) from error


def _check_pipeline(pipeline: Any) -> None:
    scheduler, transformer = pipeline.scheduler.config, pipeline.transformer.config
    if scheduler.use_dynamic_shifting and scheduler.time_shift_type != "exponential":
        raise ValueError("Qwen-Image-Edit's scheduler must shift time exponentially; see scheduler_config.json.")
    if transformer.guidance_embeds:
        raise ValueError(
            "This transformer has an embedded guidance (guidance_embeds), which no released Qwen-Image-Edit has and "
            "training does not reproduce. Use weights without it."
        )
    cell_px = 2 * int(pipeline.vae_scale_factor)
    if QWEN_MULTIPLE_PX % cell_px:
        raise ValueError(
            f"A token of this pipeline covers {cell_px} pixels a side, which does not divide {QWEN_MULTIPLE_PX}, the "
            "multiple its pictures are brought to: the pipeline would cut them."
        )
    _check_template(pipeline)


def _check_template(pipeline: Any) -> None:
    """Verifies that the tokens whose states the pipeline drops end with the header of the user's turn."""
    template: str = pipeline.prompt_template_encode
    num_dropped = int(pipeline.prompt_template_encode_start_idx)
    expected = template[: template.index(_USER_HEADER) + len(_USER_HEADER)]
    tokenizer = pipeline.processor.tokenizer
    # Plus begins the user's turn with this word: it must not melt into the header.
    tokens = tokenizer(template.format("Picture")).input_ids[:num_dropped]
    dropped = tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
    if dropped != expected:
        raise ValueError(
            f"The pipeline drops the states of the prompt's first {num_dropped} tokens, which must end with the header "
            f"of the user's turn; with this tokenizer they end with {dropped[-40:]!r} instead of {expected[-40:]!r}. "
            "The tokenizer does not belong to this pipeline: use the one that came with its weights."
        )


def _random_tiny_pipeline(pipeline: EditPipeline, dtype: torch.dtype) -> Any:
    from physedit.models.random_tiny_qwen import build_random_tiny_qwen

    # As the newest release of each: Qwen-Image-Edit, and Qwen-Image-Edit-2511.
    zero_cond_t = pipeline == "QwenImageEditPlusPipeline"
    loaded = build_random_tiny_qwen(pipeline_class(pipeline), _RANDOM_TINY_SEED, zero_cond_t=zero_cond_t)
    for part in modules_of(loaded).values():
        # The classes' own ``to`` warns of parts to be kept in float32, of which these have none.
        nn.Module.to(part, dtype)
    return loaded
