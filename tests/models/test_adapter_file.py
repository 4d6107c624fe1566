import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from physedit.models.adapter_file import (
    ADAPTER_FILE,
    AdapterFileError,
    AdapterFormat,
    read_adapter_format,
    read_flux_adapter,
    write_flux_adapter,
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


def test_rank_and_alpha_are_read_back(tmp_path: Path) -> None:
    write_flux_adapter(matrices(), tmp_path, rank=2, alpha=3.5)
    assert read_adapter_format(tmp_path) == AdapterFormat(rank=2, alpha=3.5)


def test_file_without_metadata_has_no_format(tmp_path: Path) -> None:
    write_foreign(tmp_path)
    assert read_adapter_format(tmp_path) is None


def test_file_that_stores_empty_patterns_is_read(tmp_path: Path) -> None:
    write_foreign(tmp_path, r=2, lora_alpha=4, alpha_pattern={}, rank_pattern={}, use_rslora=False)
    assert read_adapter_format(tmp_path) == AdapterFormat(rank=2, alpha=4.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha_pattern", {"to_q": 1}), ("rank_pattern", {"to_q": 1}), ("use_rslora", True), ("use_dora", True)],
)
def test_adapter_that_is_scaled_otherwise_is_refused(tmp_path: Path, name: str, value: object) -> None:
    write_foreign(tmp_path, r=2, lora_alpha=4, **{name: value})
    with pytest.raises(ValueError, match=rf"{ADAPTER_FILE}.*{name}"):
        read_adapter_format(tmp_path)


def test_missing_file_has_no_format_but_an_error(tmp_path: Path) -> None:
    for read in (read_adapter_format, read_flux_adapter):
        with pytest.raises(AdapterFileError, match="No adapter at"):
            read(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-8], lambda whole: whole[:20], lambda _: b"junk", lambda _: b""]
)
def test_damaged_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write_foreign(tmp_path, r=2, lora_alpha=4)
    file = tmp_path / ADAPTER_FILE
    file.write_bytes(damage(file.read_bytes()))
    for read in (read_adapter_format, read_flux_adapter):
        with pytest.raises(AdapterFileError, match=rf"{ADAPTER_FILE} .*cannot be read"):
            read(tmp_path)


def test_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    save_file({"unet.down.lora_A.weight": torch.ones(2, 2)}, tmp_path / ADAPTER_FILE)
    with pytest.raises(AdapterFileError, match=r"no adapter of a FLUX transformer: it holds unet\.down"):
        read_flux_adapter(tmp_path)


def test_equal_adapters_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_flux_adapter(matrices(), tmp_path / name, rank=2, alpha=2.0)
    files = {(tmp_path / name / ADAPTER_FILE).read_bytes() for name in ("a", "b", "c")}
    assert len(files) == 1
    header = json.loads(files.pop()[8:].split(b"}}")[0] + b"}}")
    assert list(header["__metadata__"]) == sorted(header["__metadata__"])


def test_file_is_not_read_back_to_put_its_header_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers import FluxKontextPipeline

    large = {f"transformer.{name}": value for name, value in matrices(width=2**18).items()}  # 4 MiB
    metadata = {"z": "1", "lora_adapter_metadata": "{}", "a": "2"}

    def save(*args: object, **kwargs: object) -> None:
        save_file(large, tmp_path / ADAPTER_FILE, metadata=metadata)
        tracemalloc.start()

    monkeypatch.setattr(FluxKontextPipeline, "save_lora_weights", save)
    write_flux_adapter(matrices(), tmp_path, rank=2, alpha=4.0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**19
    stored = read_flux_adapter(tmp_path)
    assert all(torch.equal(stored[name.removeprefix("transformer.")], value) for name, value in large.items())
