"""The picture of the first pairs shows source and target under their names."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.support.plain_pairs import PlainPairs, plan_of

from physedit.data_loaders.images import read_rgb
from physedit.data_loaders.sample import EditSample, PromptLevel
from physedit.eval_hooks.panel import _Sheet
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.first_batch import LONGEST_SIDE_PX, NUM_SHOWN, write_first_batch

MARGIN, TOP, CAPTION = _Sheet._MARGIN, _Sheet._HEADING, _Sheet._CAPTION
SIDE = 64
SCALE = 4


def colours(path: Path, num_columns: int, num_rows: int) -> list[list[int]]:
    """Returns the level in the middle of every picture of a sheet of square pictures."""
    sheet = read_rgb(path)
    step = SIDE * SCALE
    assert sheet.shape[-2:] == (
        TOP + num_rows * (step + CAPTION + MARGIN),
        num_columns * (step + MARGIN) + MARGIN,
    )
    middles = [
        [
            sheet[
                :,
                TOP + row * (step + CAPTION + MARGIN) + CAPTION + step // 2,
                MARGIN + column * (step + MARGIN) + step // 2,
            ]
            for column in range(num_columns)
        ]
        for row in range(num_rows)
    ]
    assert all(len(set(level.tolist())) == 1 for row in middles for level in row)
    return [[int(level[0]) for level in row] for row in middles]


def test_rows_are_the_first_pairs_with_source_left_and_target_right(tmp_path: Path) -> None:
    dataset = PlainPairs(20, sizes=((SIDE, SIDE),))
    plan = plan_of(dataset, tmp_path)
    path = tmp_path / "first.png"
    write_first_batch(path, dataset, plan, 4)
    rows = [plan.at(position).row for position in range(4)]
    assert colours(path, 2, 4) == [[row, row + 100] for row in rows]


def test_no_more_than_the_limit_is_shown(tmp_path: Path) -> None:
    dataset = PlainPairs(20, sizes=((SIDE, SIDE),))
    path = tmp_path / "first.png"
    write_first_batch(path, dataset, plan_of(dataset, tmp_path), 16)
    assert len(colours(path, 2, NUM_SHOWN)) == NUM_SHOWN


class WithReferences(PlainPairs):
    """Every pair has a reference of level 250."""

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        sample = super().sample(index, level)
        return replace(sample, references=(torch.full_like(sample.source, 250),))


def test_references_stand_between_source_and_target(tmp_path: Path) -> None:
    dataset = WithReferences(9, sizes=((SIDE, SIDE),), max_references=1)
    plan = plan_of(dataset, tmp_path)
    path = tmp_path / "first.png"
    write_first_batch(path, dataset, plan, 2)
    rows = [plan.at(position).row for position in range(2)]
    assert colours(path, 3, 2) == [[row, 250, row + 100] for row in rows]


def test_rows_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    dataset = PlainPairs(4, sizes=((SIDE, SIDE),))
    plan = plan_of(dataset, tmp_path)
    rows = [plan.at(position).row for position in range(4)]
    broken = frozenset(row for row in rows[:1] if row is not None)
    path = tmp_path / "first.png"
    write_first_batch(path, PlainPairs(4, sizes=((SIDE, SIDE),), broken=broken), plan, 4)
    assert colours(path, 2, 3) == [[row, row + 100] for row in rows[1:] if row is not None]
    none_left = tmp_path / "none.png"
    write_first_batch(none_left, PlainPairs(4, sizes=((SIDE, SIDE),), broken=frozenset(range(4))), plan, 4)
    assert not none_left.exists()


@pytest.mark.parametrize("size", [(2000, 1000), (10, 5000)])
def test_large_pictures_are_reduced(tmp_path: Path, size: tuple[int, int]) -> None:
    dataset = PlainPairs(1, sizes=(size,))
    path = tmp_path / "first.png"
    write_first_batch(path, dataset, plan_of(dataset, tmp_path), 1)
    with Image.open(path) as sheet:
        assert max(sheet.size) < 2 * LONGEST_SIDE_PX + 200


@pytest.mark.parametrize("missing", ["source", "target", "instruction"])
def test_columns_of_pairs_have_no_default(missing: str) -> None:
    columns = {"source": "before", "target": "after", "instruction": "prompt"}
    given = [f"data.{name}={column}" for name, column in columns.items() if name != missing]
    settings = ["experiment=smoke", "data=pairs", "data.path=pairs.csv"]
    compose_config([*settings, *given, f"data.{missing}=another"])
    with pytest.raises(ConfigError, match=rf"data\.{missing}\b"):
        compose_config([*settings, *given])
