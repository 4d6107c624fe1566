"""What can be told of a FLUX.1-Kontext without loading it."""

from collections.abc import Mapping
from functools import partial

from physedit.data_loaders.text_limits import Overlong, TextLimit
from physedit.models.outline import (
    Outline,
    TokenCount,
    absent_files,
    checked_guidance,
    local_files,
    read_tokenizer,
    setting,
    vae_factor,
)
from physedit.models.parts import checked_steps
from physedit.models.sizes import MAX_AREA_PX, RELEASED_AREA_PX, kontext_sizes
from physedit.models.weights import RANDOM_RELEASED, RANDOM_TINY, find_weights

_CLIP_TOKENS = 77
"""Of the released model. Source: FluxKontextPipeline, ``tokenizer_max_length``."""


def flux_outline(settings: Mapping[str, object]) -> Outline:
    """Returns the outline of a ``FluxKontext`` of these arguments.

    Raises:
        ValueError: no such weights, or files of it that cannot be read.
    """
    weights = str(settings["weights"])
    found = weights if weights == RANDOM_TINY else find_weights(weights, "flux_kontext")
    is_random = found in (RANDOM_TINY, RANDOM_RELEASED)
    folder = None if is_random else local_files(found, "tokenizer", "tokenizer_2")
    clip: TokenCount | None = None
    t5: TokenCount | None = None
    if is_random:
        from physedit.models.random_tiny import build_tokenizers

        clip, t5 = map(TokenCount, build_tokenizers())
    elif folder is not None:
        clip, t5 = read_tokenizer(folder, "tokenizer"), read_tokenizer(folder, "tokenizer_2")
    why_not = absent_files(found) if t5 is None else ""
    multiple_px = 2 * vae_factor(folder)
    area_px = checked_area(setting(settings, "area_px", RELEASED_AREA_PX), multiple_px)
    max_tokens = checked_tokens(setting(settings, "max_text_tokens", 512))
    for name in ("train_guidance", "edit_guidance"):
        checked_guidance(name, settings.get(name, 1.0))
    checked_steps(settings.get("edit_steps", 1))
    is_cut = f"T5 reads {max_tokens} tokens (backbone.max_text_tokens) and nothing behind them"
    clip_tokens = _CLIP_TOKENS if clip is None else clip.longest
    is_pooled = f"CLIP gives one pooled vector of the first {clip_tokens} tokens; T5 reads the instruction itself"
    return Outline(
        sizes_of=partial(kontext_sizes, area_px=area_px, multiple_px=multiple_px),
        max_sources=1,
        text_limits=(
            TextLimit("T5", max_tokens, Overlong.CUT, is_cut, t5, why_not),
            TextLimit("CLIP", clip_tokens, Overlong.HARMLESS, is_pooled, clip, why_not),
        ),
    )


def checked_tokens(max_text_tokens: int) -> int:
    """Returns the length of the T5 sequence.

    Raises:
        ValueError: the pipeline does not take it.
    """
    if not 1 <= max_text_tokens <= 512:
        raise ValueError(f"backbone.max_text_tokens is {max_text_tokens}; the pipeline takes 1 to 512 T5 tokens.")
    return max_text_tokens


def checked_area(area_px: int, multiple_px: int) -> int:
    """Returns the area that pictures are worked at.

    Raises:
        ValueError: it is out of range.
    """
    smallest = (2 * multiple_px) ** 2
    if not smallest <= area_px <= MAX_AREA_PX:
        raise ValueError(
            f"backbone.area_px is {area_px}; it must lie in {smallest} (for this VAE) to {MAX_AREA_PX}. The released "
            f"model works at {RELEASED_AREA_PX}."
        )
    return area_px
