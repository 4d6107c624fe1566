"""Folders of edits for an arena: grey pictures, and what a judge said of them."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.support.stand_ins import png

LAWS = ("Reflection", "Global")


def write_edits(folder: Path, grey: int, items: Sequence[int] = range(6), accuracy: float | None = None) -> Path:
    """Writes edits of items by turns of two laws, all of one grey; with an accuracy also both kinds of report."""
    records = []
    for index in items:
        for name, value in (("input_img", 10 + index), ("output_img", grey)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{index:05d}.png").write_bytes(png(value))
        records.append(
            {
                "index": index,
                "input_path": f"input_img/{index:05d}.png",
                "output_path": f"output_img/{index:05d}.png",
                "edit_instruction": f"Paint <number> {index}",
                "physics_law": LAWS[index % 2],
                "annotated_qa_pairs": [],
            }
        )
    (folder / "meta_info.json").write_text(json.dumps(records))
    if accuracy is not None:
        report = {"metrics": {"picabench/acc": {"tuned": 0.0}}, "scores": {"picabench/acc": {"value": accuracy}}}
        (folder / "report.json").write_text(json.dumps(report))
        (folder / "analysis.json").write_text(json.dumps({"overall_accuracy": 100 * accuracy - 1}))
    return folder
