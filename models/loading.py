"""Loading a stock diffusers pipeline from a folder or the hub, frozen and in evaluation mode."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from physedit.models.lora_targets import shortened
from physedit.models.pipeline_folder import WrongPipelineError, refuse_other_pipeline
from physedit.models.quantization import Quantization, read_quantized_transformer
from physedit.models.weights import split_revision

_TRANSFORMERS = "transformers"


def read_pipeline(
    pipeline_class: Any,  # a class of diffusers, which has no types
    weights: Path | str,
    dtype: torch.dtype,
    components: Mapping[str, object],
    quantization: Quantization | None = None,
) -> Any:
    """Returns the pipeline on the CPU; each part is built without memory first and filled in ``dtype`` once.

    A quantised transformer is on its device already, where it was quantised.

    Args:
        pipeline_class: a class of diffusers; the weights must be of this very class.
        weights: a pipeline folder, or a hub id with ``@revision``.
        dtype: of every weight.
        components: parts to use instead of the stored ones; None leaves a part out.
        quantization: of the transformer's linear layers.

    Raises:
        ValueError: the weights are of another class, lack some, or cannot be loaded or quantised.
    """
    source, revision = (str(weights), None) if isinstance(weights, Path) else split_revision(weights)
    name = pipeline_class.__name__
    try:
        with _without_loading_bars():
            index = pipeline_class.load_config(source, revision=revision)
            refuse_other_pipeline(weights, index.get("_class_name"), name)
            components = {**_text_encoders(source, revision, index, dtype, but=components), **components}
            if quantization is not None:
                transformer = read_quantized_transformer(weights, index["transformer"][1], dtype, quantization)
                components = {**components, "transformer": transformer}
            pipeline = pipeline_class.from_pretrained(source, revision=revision, dtype=dtype, **components)
        _check_filled(pipeline)
        return pipeline
    except WrongPipelineError:
        raise
    # A damaged file shows as anything from OverflowError to the tokenizers' bare Exception.
    except Exception as error:
        raise ValueError(
            f"backbone.weights '{weights}' cannot be loaded as a {name}: {type(error).__name__}: {error}. A gated "
            "model needs its licence accepted on the hub and `hf auth login`; a local folder must be complete and "
            "undamaged: if it is not, download it again."
        ) from error


def modules_of(pipeline: Any) -> dict[str, nn.Module]:
    """Returns the parts of a pipeline that have weights, by name."""
    return {name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)}


def freeze(pipeline: Any) -> None:
    """Freezes every part, puts it in evaluation mode and silences the pipeline's progress bar."""
    pipeline.set_progress_bar_config(disable=True)
    for part in modules_of(pipeline).values():
        part.requires_grad_(False).eval()


def _text_encoders(
    source: str, revision: str | None, index: Mapping[str, Any], dtype: torch.dtype, *, but: Collection[str]
) -> dict[str, nn.Module]:
    """Returns the text encoders that the index names, apart from those in ``but``.

    The pipeline would read them itself, but says nothing of weights that no file holds, which transformers draws anew.

    Raises:
        ValueError: such a weight.
    """
    import transformers

    encoders: dict[str, nn.Module] = {}
    for name, kind in index.items():
        if not name.startswith("text_encoder") or name in but or not isinstance(kind, list) or kind[0] != _TRANSFORMERS:
            continue
        part: Any = getattr(transformers, str(kind[1]))
        encoders[name], report = part.from_pretrained(
            source, subfolder=name, revision=revision, dtype=dtype, output_loading_info=True
        )
        # A head makes words of the states; nothing here asks for words.
        if absent := sorted(key for key in report["missing_keys"] if not key.startswith("lm_head.")):
            raise ValueError(f"its {name} lacks {shortened(absent)}")
    return encoders


def _check_filled(pipeline: Any) -> None:
    """Verifies that every weight came from a file; diffusers leaves others without memory, and a move fails then.

    Raises:
        ValueError: one did not.
    """
    for name, part in modules_of(pipeline).items():
        if absent := sorted(key for key, value in part.state_dict().items() if value.is_meta):
            raise ValueError(f"its {name} lacks {shortened(absent)}")


@contextmanager
def _without_loading_bars() -> Iterator[None]:
    """Keeps the bars of reading weights, which take seconds, out of logs; a download from the hub keeps its own."""
    from diffusers.utils import logging as diffusers_log
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as transformers_log

    shown = [log for log in (diffusers_log, transformers_log) if log.is_progress_bar_enabled()]
    # The switch of transformers throws that of the hub too.
    set_hub_back = disable_progress_bars if are_progress_bars_disabled() else enable_progress_bars
    for log in shown:
        log.disable_progress_bar()
    set_hub_back()
    try:
        yield
    finally:
        for log in shown:
            log.enable_progress_bar()
        set_hub_back()
