import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

WriteTable = Callable[..., Path]


@pytest.fixture
def own_arrow_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow_cache")


@pytest.fixture(scope="session")
def png() -> Callable[..., bytes]:
    """Returns PNG bytes of a plain colour."""

    def encode(colour: Sequence[int], height: int = 16, width: int = 16) -> bytes:
        return _png(np.full((height, width, 3), colour, dtype=np.uint8))

    return encode


@pytest.fixture
def write_pica(tmp_path: Path, png: Callable[..., bytes], own_arrow_cache: None) -> WriteTable:
    """Writes a parquet file in PICA-100K's layout; row i has a source of colour (i, 0, 0), a target (0, 0, i)."""

    def write(name: str = "data/train-00000.parquet", num_rows: int = 6, first: int = 0, **columns: Any) -> Path:
        numbers = range(first, first + num_rows)
        table: dict[str, Any] = {
            "superficial_prompt": [f"short {i}" for i in numbers],
            "intermediate_prompt": [f"middle {i}" for i in numbers],
            "explicit_prompt": [f"long {i}" for i in numbers],
            "law": ["Reflection"] * num_rows,
            "op": ["add"] * num_rows,
            "src_img": [{"bytes": png((i, 0, 0)), "path": None} for i in numbers],
            "tgt_img": [{"bytes": png((0, 0, i)), "path": f"{i}.png"} for i in numbers],
        }
        table.update(columns)
        file = tmp_path / "set" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({k: v for k, v in table.items() if v is not None}), file)
        return tmp_path / "set"

    return write


def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()
