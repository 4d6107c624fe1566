"""Edit pairs that mean nothing, of one size, for measurements that need pictures of that size."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

_COARSE = 16
"""Cells a side; smooth between them, so that a picture takes about as long to decode as a photograph."""


def write_pairs(folder: Path, *, count: int, side: int) -> None:
    """Writes ``count`` pairs of JPEG files ``side`` pixels a side, and ``metadata.jsonl``: source, target, instruction.

    No two pictures or instructions are alike, so that nothing is encoded once for two.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    lines = []
    for number in range(count):
        row = {"instruction": f"make edit {number:02d}" + "s" * (number % 3)}
        for name in ("source", "target"):
            cells = random.integers(0, 256, (_COARSE, _COARSE, 3), dtype=np.uint8)
            picture = Image.fromarray(cells).resize((side, side), Image.Resampling.BICUBIC)
            row[name] = f"{name}_{number:02d}.jpg"
            picture.save(folder / row[name], quality=90)
        lines.append(json.dumps(row))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
