"""Loading a stock diffusers pipeline from a folder or the hub, frozen and in evaluation mode."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from physedit.models.pipeline_folder import WrongPipelineError, refuse_other_pipeline
from physedit.models.quantization import Quantization, read_quantized_transformer
from physedit.models.weights import split_revision


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
        ValueError: the weights are of another class, or cannot be loaded or quantised.
    """
    source, revision = (str(weights), None) if isinstance(weights, Path) else split_revision(weights)
    name = pipeline_class.__name__
    try:
        with _without_loading_bars():
            index = pipeline_class.load_config(source, revision=revision)
            refuse_other_pipeline(weights, index.get("_class_name"), name)
            if quantization is not None:
                transformer = read_quantized_transformer(weights, index["transformer"][1], dtype, quantization)
                components = {**components, "transformer": transformer}
            return pipeline_class.from_pretrained(source, revision=revision, dtype=dtype, **components)
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
