import json
import math
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import FluxKontextPipeline, QwenImageEditPipeline
from safetensors.torch import save_file
from torch import Tensor

from physedit.models.adapter_file import (
    ADAPTER_FILE,
    AdapterFileError,
    AdapterFormat,
    read_adapter,
    read_adapter_format,
    write_adapter,
)

LAYER = "transformer_blocks.0.attn.to_q"


def matrices(width: int = 8, rank: int = 2) -> dict[str, Tensor]:
    a, b = torch.arange(rank * width).float().view(rank, width), torch.ones(width, rank)
    return {f"{LAYER}.lora_A.weight": a, f"{LAYER}.lora_B.weight": b}


def write_foreign(folder: Path, **settings: object) -> None:
    """Writes a file as another program would, with metadata if there are settings."""
    described = {f"transformer.{name}": value for name, value in settings.items()}
    metadata = {"lora_adapter_metadata": json.dumps(described)} if settings else None
    stored = {f"transformer.{name}": value for name, value in matrices().items()}
    save_file(stored, folder / ADAPTER_FILE, metadata=metadata)


@pytest.mark.parametrize("pipeline", [FluxKontextPipeline, QwenImageEditPipeline])
@pytest.mark.parametrize("use_rslora", [False, True])
@pytest.mark.parametrize("use_dora", [False, True])
def test_file_brings_back_tensors_and_format(tmp_path: Path, pipeline: type, use_dora: bool, use_rslora: bool) -> None:
    state = matrices() | ({f"{LAYER}.lora_magnitude_vector": torch.arange(8.0)} if use_dora else {})
    written = AdapterFormat(rank=2, alpha=3.5, use_dora=use_dora, use_rslora=use_rslora)
    write_adapter(pipeline, state, tmp_path, written)
    assert read_adapter_format(tmp_path) == written
    stored = read_adapter(tmp_path)
    assert stored.keys() == state.keys()
    assert all(torch.equal(stored[name], value) for name, value in state.items())


@pytest.mark.parametrize(("use_rslora", "scale"), [(False, 2.0), (True, 4.0)])
def test_scale_is_alpha_by_rank_or_by_its_root(use_rslora: bool, scale: float) -> None:
    assert AdapterFormat(rank=4, alpha=8.0, use_rslora=use_rslora).scale == scale


@pytest.mark.parametrize(("use_dora", "num_magnitudes"), [(True, 0), (False, 1)])
def test_state_without_its_magnitudes_is_not_written(tmp_path: Path, use_dora: bool, num_magnitudes: int) -> None:
    state = matrices() | {f"{LAYER}.lora_magnitude_vector": torch.ones(8)}
    if not num_magnitudes:
        state = matrices()
    with pytest.raises(ValueError, match=rf"use_dora={use_dora} was to be used.*{num_magnitudes} of 1 layers"):
        write_adapter(FluxKontextPipeline, state, tmp_path, AdapterFormat(2, 2.0, use_dora=use_dora))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_tensor_without_elements_is_not_written(tmp_path: Path, part: str) -> None:
    state = matrices() | {f"{LAYER}.{part}.weight": torch.empty(0)}
    with pytest.raises(ValueError, match=rf"1 of its 2 tensors have no elements.*{part}.*Gather them on all ranks"):
        write_adapter(FluxKontextPipeline, state, tmp_path, AdapterFormat(2, 2.0))
    assert list(tmp_path.iterdir()) == []


def test_file_without_metadata_has_no_format(tmp_path: Path) -> None:
    write_foreign(tmp_path)
    assert read_adapter_format(tmp_path) is None


def test_file_that_stores_empty_patterns_is_read(tmp_path: Path) -> None:
    write_foreign(tmp_path, r=2, lora_alpha=4, alpha_pattern={}, rank_pattern={}, use_rslora=False)
    assert read_adapter_format(tmp_path) == AdapterFormat(rank=2, alpha=4.0)


@pytest.mark.parametrize("name", ["alpha_pattern", "rank_pattern"])
def test_adapter_that_no_one_format_describes_is_refused(tmp_path: Path, name: str) -> None:
    write_foreign(tmp_path, r=2, lora_alpha=4, **{name: {"to_q": 1}})
    with pytest.raises(ValueError, match=rf"{ADAPTER_FILE}.*{name}"):
        read_adapter_format(tmp_path)


def test_missing_file_has_no_format_but_an_error(tmp_path: Path) -> None:
    for read in (read_adapter_format, read_adapter):
        with pytest.raises(AdapterFileError, match="No adapter at"):
            read(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-8], lambda whole: whole[:20], lambda _: b"junk", lambda _: b""]
)
def test_damaged_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write_foreign(tmp_path, r=2, lora_alpha=4)
    file = tmp_path / ADAPTER_FILE
    file.write_bytes(damage(file.read_bytes()))
    for read in (read_adapter_format, read_adapter):
        with pytest.raises(AdapterFileError, match=rf"{ADAPTER_FILE} .*cannot be read"):
            read(tmp_path)


def test_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    save_file({"unet.down.lora_A.weight": torch.ones(2, 2)}, tmp_path / ADAPTER_FILE)
    with pytest.raises(AdapterFileError, match=r"no adapter of a diffusers transformer: it holds unet\.down"):
        read_adapter(tmp_path)


def test_equal_adapters_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_adapter(FluxKontextPipeline, matrices(), tmp_path / name, AdapterFormat(2, 2.0))
    files = {(tmp_path / name / ADAPTER_FILE).read_bytes() for name in ("a", "b", "c")}
    assert len(files) == 1
    header = json.loads(files.pop()[8:].split(b"}}")[0] + b"}}")
    assert list(header["__metadata__"]) == sorted(header["__metadata__"])


def test_file_is_not_read_back_to_put_its_header_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {f"transformer.{name}": value for name, value in matrices(width=2**18).items()}  # 4 MiB
    metadata = {"z": "1", "lora_adapter_metadata": "{}", "a": "2"}

    def save(*args: object, **kwargs: object) -> None:
        save_file(large, tmp_path / ADAPTER_FILE, metadata=metadata)
        tracemalloc.start()

    monkeypatch.setattr(FluxKontextPipeline, "save_lora_weights", save)
    write_adapter(FluxKontextPipeline, matrices(), tmp_path, AdapterFormat(2, 4.0))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**19
    stored = read_adapter(tmp_path)
    assert all(torch.equal(stored[name.removeprefix("transformer.")], value) for name, value in large.items())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("r", 0), ("r", 2.5), ("r", "two"), ("lora_alpha", math.nan), ("lora_alpha", math.inf), ("lora_alpha", None),
        ("use_rslora", "false"), ("use_dora", 0),
    ],
)  # fmt: skip
def test_a_format_that_cannot_be_meant_is_refused(tmp_path: Path, name: str, value: object) -> None:
    write_foreign(tmp_path, **{"r": 2, "lora_alpha": 4, name: value})
    with pytest.raises(AdapterFileError, match=rf"says rank .*{re.escape(repr(value))}"):
        read_adapter_format(tmp_path)


def test_tensors_of_whole_numbers_are_refused(tmp_path: Path) -> None:
    stored = {f"transformer.{name}": value.int() for name, value in matrices().items()}
    save_file(stored, tmp_path / ADAPTER_FILE)
    with pytest.raises(AdapterFileError, match="whole numbers"):
        read_adapter(tmp_path)
