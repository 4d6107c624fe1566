"""The three-axis positions of Qwen2.5-VL, which the stock Qwen-Image pipelines lose under transformers 5.

Qwen2.5-VL gives each token of a picture a frame, a row and a column. Since transformers 5 it works them out only when
it is told which tokens belong to a picture (``mm_token_type_ids``). The pipelines do not tell it, and the encoder
falls back to one axis without a word: its states are then not those that the released editors were trained with.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

_TOKEN_TYPES = "mm_token_type_ids"
_IMAGE, _VIDEO = 1, 2
"""Source: Qwen2_5_VLModel.get_rope_index, transformers; 0 is text."""


def own_positions(text_encoder: nn.Module) -> None:
    """Ensures that ``text_encoder`` gives picture tokens its own positions, also when a stock pipeline calls it.

    Adds the token types to calls that lack them. Where the installed transformers needs none, nothing is done; a second
    call changes nothing.

    Args:
        text_encoder: a ``Qwen2_5_VLForConditionalGeneration``.
    """
    hooks = text_encoder._forward_pre_hooks.values()
    if _takes_token_types(type(text_encoder)) and not any(hook is _add_token_types for hook in hooks):
        text_encoder.register_forward_pre_hook(_add_token_types, with_kwargs=True)


def positions_are_lost() -> bool:
    """True if the installed diffusers and transformers together lose the positions, unless ``own_positions`` helps.

    Pure. It reads the signature of the encoder and the source of the pipelines' method that calls it.
    """
    from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline
    from transformers import Qwen2_5_VLForConditionalGeneration

    callers = (QwenImageEditPipeline, QwenImageEditPlusPipeline)
    tell = all(_TOKEN_TYPES in inspect.getsource(caller._get_qwen_prompt_embeds) for caller in callers)
    return _takes_token_types(Qwen2_5_VLForConditionalGeneration) and not tell


def _takes_token_types(text_encoder: type[nn.Module]) -> bool:
    return _TOKEN_TYPES in inspect.signature(text_encoder.forward).parameters


def _add_token_types(
    text_encoder: nn.Module, args: tuple[Any, ...], inputs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A forward pre-hook; the inputs of a model of transformers have no types."""
    tokens = inputs.get("input_ids")
    if not isinstance(tokens, Tensor) or inputs.get(_TOKEN_TYPES) is not None:
        return None
    config: Any = text_encoder.config
    types = _IMAGE * (tokens == config.image_token_id).long() + _VIDEO * (tokens == config.video_token_id).long()
    return args, {**inputs, _TOKEN_TYPES: types}
