"""A picture of the first pairs that a run learns from: to see at once what is source and what is target."""

from pathlib import Path

from torch import Tensor

from physedit.data_loaders.geometry import resized
from physedit.data_loaders.sample import DatasetRowError, EditDataset, EditSample
from physedit.data_loaders.slots import RunPlan
from physedit.eval_hooks.panel import SheetRow, draw_sheet

FIRST_BATCH_FILE = "first_batch.png"
NUM_SHOWN = 8
LONGEST_SIDE_PX = 384
"""Ours: larger pictures are reduced, so that the file stays below about a megabyte."""
_SHOWN_SIDE_PX = 256


def write_first_batch(path: Path, dataset: EditDataset, plan: RunPlan, global_batch: int) -> None:
    """Writes a PNG with a row for each of the first pairs: source, references, target and instruction.

    Up to ``NUM_SHOWN`` pairs; rows that cannot be used are left out, and with none that can nothing is written. Rank 0
    calls it.

    Args:
        path: the file to write.
        dataset: the run's.
        plan: the run's.
        global_batch: positions of the first optimizer step.
    """
    rows = [_row(sample) for sample in _samples(dataset, plan, min(global_batch, NUM_SHOWN))]
    if not rows:
        return
    columns = ["source", *(_reference(number) for number in range(dataset.max_references)), "target"]
    longest = max(max(picture.shape[-2:]) for row in rows for picture in row.pictures.values())
    draw_sheet(path, columns, rows, scale=max(1, _SHOWN_SIDE_PX // longest))


def _samples(dataset: EditDataset, plan: RunPlan, num_positions: int) -> list[EditSample]:
    samples = []
    for slot in map(plan.at, range(num_positions)):
        if slot.row is None:
            continue
        try:
            samples.append(dataset.sample(slot.row, slot.level))
        except DatasetRowError:
            continue  # the loader meets the row too, and counts and names it
    return samples


def _row(sample: EditSample) -> SheetRow:
    given = {_reference(number): picture for number, picture in enumerate(sample.references)}
    pictures = {"source": sample.source, **given, "target": sample.target}
    return SheetRow(
        title=sample.sample_id,
        text=sample.instruction,
        pictures={name: _reduced(picture) for name, picture in pictures.items()},
    )


def _reference(number: int) -> str:
    return f"reference {number + 1}"


def _reduced(picture: Tensor) -> Tensor:
    height, width = picture.shape[-2:]
    factor = LONGEST_SIDE_PX / max(height, width)
    if factor >= 1:
        return picture
    return resized(picture, max(1, round(height * factor)), max(1, round(width * factor)))
