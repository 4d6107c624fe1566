"""Whether a folder holds a whole diffusers pipeline: every part that its index names, with the files a part needs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

INDEX = "model_index.json"
_REMEDY = "The folder is incomplete: download it again."
_WEIGHTS = ("*.safetensors", "*.bin")
_NAMED_IN_CONFIGS = ("_class_name", "architectures", "model_type")
"""Of which each config of diffusers or transformers has one."""


class WrongPipelineError(ValueError):
    """Weights of another pipeline than the backbone's."""


def check_pipeline_folder(folder: Path, *pipelines: str) -> None:
    """Verifies the class and the parts that ``model_index.json`` names, without loading anything.

    Loaders do not refuse every hole: a tokenizer without its vocabulary comes up empty and makes every instruction
    the same.

    Args:
        folder: of the pipeline.
        pipelines: names of the diffusers classes of which it must hold one.

    Raises:
        ValueError: the index cannot be read or names another class, or a file is missing or damaged; the message
            names the first.
    """
    index = _read_index(folder)
    parts = _parts(folder, index)
    refuse_other_pipeline(folder, index.get("_class_name"), *pipelines)
    for part, kind in parts.items():
        place = folder / part
        if not place.is_dir():
            raise ValueError(f"{folder / INDEX} names the part {part} ({kind}), but there is no {place}. {_REMEDY}")
        for missing in _missing_files(place, kind):
            raise ValueError(f"The part {part} ({kind}) of the pipeline in {folder} has no {missing}. {_REMEDY}")
        for damaged in _damaged_files(place):
            raise ValueError(f"The part {part} ({kind}) of the pipeline in {folder} is damaged: {damaged}. {_REMEDY}")


def refuse_other_pipeline(weights: object, stored: object, *expected: str) -> None:
    """Verifies that weights, whose index names the class ``stored``, are of one of the classes ``expected``.

    Raises:
        WrongPipelineError: they are of another.
    """
    if stored not in expected:
        raise WrongPipelineError(
            f"backbone.weights '{weights}' holds a {stored}, but this backbone needs a {' or a '.join(expected)}. "
            "Choose the backbone of these weights: flux_kontext for FluxKontextPipeline, qwen_image_edit for "
            "QwenImageEditPipeline, qwen_image_edit_plus for QwenImageEditPlusPipeline."
        )


def _read_index(folder: Path) -> Mapping[str, object]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / INDEX} cannot be read: {error}. {_REMEDY}") from error
    if not isinstance(index, dict):
        raise ValueError(f"{folder / INDEX} holds a {type(index).__name__} instead of named parts. {_REMEDY}")
    return index


def _parts(folder: Path, index: Mapping[str, object]) -> Mapping[str, str]:
    """Returns the class names of the parts that are used."""
    parts = {
        name: value[1]
        for name, value in index.items()
        if not name.startswith("_") and isinstance(value, list) and len(value) == 2 and isinstance(value[1], str)
    }
    if not parts:
        raise ValueError(f"{folder / INDEX} names no part of a pipeline. {_REMEDY}")
    return parts


def _missing_files(place: Path, kind: str) -> Iterator[str]:
    if kind.endswith("Scheduler"):
        yield from _absent(place, "scheduler_config.json")
    elif kind.removesuffix("Fast").endswith("Tokenizer"):
        yield from _absent(place, "tokenizer_config.json")
        yield from _missing_vocabulary(place)
    elif not kind.endswith(("Extractor", "Processor", "ProcessorFast")):
        yield from _absent(place, "config.json")
        yield from _missing_weights(place)


def _missing_vocabulary(place: Path) -> Iterator[str]:
    if (place / "tokenizer.json").is_file() or (place / "spiece.model").is_file():
        return
    if (place / "vocab.json").is_file():
        yield from _absent(place, "merges.txt")
    else:
        yield "tokenizer.json, vocab.json or spiece.model"


def _missing_weights(place: Path) -> Iterator[str]:
    if not any(file.is_file() for pattern in _WEIGHTS for file in place.glob(pattern)):
        yield " or ".join(_WEIGHTS)
    for index in sorted(place.glob("*.index.json")):
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            yield f"readable {index.name}"
            return
        for shard in shards:
            yield from _absent(place, str(shard))


def _damaged_files(place: Path) -> Iterator[str]:
    """Yields what is wrong with files whose beginning tells it; the tensors themselves are not read.

    Those of text encoders are not looked at, for an editor without text encoders must not need them.
    """
    for name in ("config.json", "scheduler_config.json"):
        if (place / name).is_file() and (fault := _fault_of_config(place / name)):
            yield f"{name} {fault}"
    if place.name.startswith("text_encoder"):
        return
    for file in sorted(place.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):  # the header tells how long the file must be
                pass
        except (SafetensorError, OSError) as error:
            yield f"{file.name} ({file.stat().st_size} bytes) cannot be read: {error}"


def _fault_of_config(file: Path) -> str:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    # Both libraries fill in what is absent, so that an empty config makes another model without a word.
    is_config = isinstance(config, dict) and any(name in config for name in _NAMED_IN_CONFIGS)
    return "" if is_config else f"names no class ({' or '.join(_NAMED_IN_CONFIGS)})"


def _absent(place: Path, name: str) -> Iterator[str]:
    if not (place / name).is_file():
        yield name
