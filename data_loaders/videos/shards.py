"""The parquet files of a set: PICA-100K's seven columns, or one instruction a pair with where its frames came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from physedit.data_loaders.scenes.schemas import TRAINING
from physedit.data_loaders.videos.instructions import WrittenInstruction

_ROWS_PER_GROUP = 100
"""As Hugging Face writes pictures."""

_PICTURE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
_FEATURES = {pa.string(): {"dtype": "string", "_type": "Value"}, pa.int64(): {"dtype": "int64", "_type": "Value"}}


def _pair_schema(extra: Sequence[str]) -> pa.Schema:
    fields = [
        pa.field("source", _PICTURE),
        pa.field("target", _PICTURE),
        pa.field("instruction", pa.string()),
        *(pa.field(name, pa.string()) for name in extra),
        pa.field("clip_id", pa.string()),
        pa.field("source_frame", pa.int64()),
        pa.field("target_frame", pa.int64()),
        pa.field("caption", pa.string()),
    ]
    features = {field.name: _FEATURES.get(field.type, {"_type": "Image"}) for field in fields}
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})


CAPTION_PAIRS: pa.Schema = _pair_schema(())
"""A pair with one instruction, its clip, frame numbers and caption."""

WRITTEN_PAIRS: pa.Schema = _pair_schema(("superficial_prompt", "intermediate_prompt", "explicit_prompt", "law", "op"))
"""The same with PICA-100K's three levels, law and operation; the instruction is the superficial one."""

PICA_PAIRS: pa.Schema = TRAINING
"""PICA-100K's seven columns."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """One row of a set; the pictures lie in files until they are written.

    ``written`` is what a model wrote; without it the caption is the instruction.
    """

    pair_id: str
    source: Path
    target: Path
    clip_id: str
    source_frame: int
    target_frame: int
    caption: str
    written: WrittenInstruction | None


def write_shards(folder: Path, rows: Sequence[PairRow], schema: pa.Schema, max_bytes: int) -> list[Path]:
    """Writes ``train-*.parquet`` into ``folder``, each with pictures of at most ``max_bytes``; same rows, same files.

    Returns:
        The files, in the order of the rows.
    """
    folder.mkdir(parents=True)
    parts = list(_parts(rows, max_bytes))
    files = [folder / f"train-{number:05d}-of-{len(parts):05d}.parquet" for number in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        with pq.ParquetWriter(file, schema) as writer:
            for start in range(0, len(part), _ROWS_PER_GROUP):
                cells = [_cells(row, schema) for row in part[start : start + _ROWS_PER_GROUP]]
                writer.write_table(pa.Table.from_pylist(cells, schema))
    return files


def _parts(rows: Sequence[PairRow], max_bytes: int) -> Iterator[list[PairRow]]:
    part: list[PairRow] = []
    size = 0
    for row in rows:
        row_size = row.source.stat().st_size + row.target.stat().st_size
        if part and size + row_size > max_bytes:
            yield part
            part, size = [], 0
        part.append(row)
        size += row_size
    if part:
        yield part


def _cells(row: PairRow, schema: pa.Schema) -> dict[str, object]:
    pictures = {
        kind: {"bytes": file.read_bytes(), "path": f"{row.pair_id}-{kind}{file.suffix}"}
        for kind, file in (("source", row.source), ("target", row.target))
    }
    written = row.written
    cells: dict[str, object] = {
        **pictures,
        "src_img": pictures["source"],
        "tgt_img": pictures["target"],
        "instruction": row.caption if written is None else written.superficial,
        "clip_id": row.clip_id,
        "source_frame": row.source_frame,
        "target_frame": row.target_frame,
        "caption": row.caption or None,
    }
    if written is not None:
        cells |= {
            "superficial_prompt": written.superficial,
            "intermediate_prompt": written.intermediate,
            "explicit_prompt": written.explicit,
            "law": written.law,
            "op": written.operation,
        }
    return {name: cells[name] for name in schema.names}
