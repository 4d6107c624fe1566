"""Which linear layers of a Qwen-Image transformer an adapter may cover."""

from collections.abc import Mapping

_BLOCK = r"transformer_blocks\.\d+\."
_IMAGE_ATTENTION = _BLOCK + r"attn\.(to_[qkv]|to_out\.0)"
_TEXT_KEYS = _BLOCK + r"attn\.add_[kv]_proj"
_IMAGE_MLP = _BLOCK + r"img_mlp\.net\.(0\.proj|2)"


def lora_presets(num_layers: int) -> Mapping[str, tuple[str, ...]]:
    r"""Returns the presets of a transformer with ``num_layers`` blocks, at least 2, by their common names.

    ``attention`` and ``attention_mlp`` cover both streams without modulation; ``image_stream`` is the latter
    without the layers that text tokens alone pass; ``all_linear`` is every linear layer, modulation and embedders
    too. The last block's text stream is dropped after its keys and values are read, so the four layers that only
    make it (``attn.add_q_proj``, ``attn.to_add_out``, ``txt_mlp.net.0.proj``, ``txt_mlp.net.2``) change no picture
    and get no gradient: every preset leaves them out.

    Raises:
        ValueError: fewer than 2 blocks.
    """
    if num_layers < 2:
        raise ValueError(
            f"The LoRA presets are for a Qwen transformer of at least 2 blocks; this one has {num_layers}."
        )
    last = rf"transformer_blocks\.{num_layers - 1}\."
    before_last = rf"(?!{last})" + _BLOCK
    text_attention = before_last + r"attn\.(add_q_proj|to_add_out)"
    text_mlp = before_last + r"txt_mlp\.net\.(0\.proj|2)"
    return {
        "attention": (_IMAGE_ATTENTION, _TEXT_KEYS, text_attention),
        "attention_mlp": (_IMAGE_ATTENTION, _TEXT_KEYS, text_attention, _IMAGE_MLP, text_mlp),
        "image_stream": (_IMAGE_ATTENTION, _IMAGE_MLP),
        "all_linear": (rf"(?!{last}(attn\.(add_q_proj|to_add_out)|txt_mlp\.)).*",),
    }
