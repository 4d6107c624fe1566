"""A row whose instruction the editor cannot take is refused at every level, decoded or not."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.plain_pairs import PlainPairs, plan_of

from physedit.data_loaders.accepted import AcceptedRows
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError, PromptLevel, StoredPair
from physedit.data_loaders.text_limits import TextRefusal


class Stored(PlainPairs):
    """Rows whose instructions can be read without their pictures."""

    def stored(self, index: int, level: PromptLevel) -> StoredPair:
        name = self.name(index)
        return StoredPair(name.sample_id, b"", b"", (), f"{level} {index}", None, None, level, name.origin)


def refuses_explicit_1(sizes: Sequence[tuple[int, int]], instruction: str) -> TextRefusal | None:
    assert list(sizes) == [(2, 2)]
    return TextRefusal(RowProblem.PROMPT_TOO_LONG, "is too long.") if instruction == "explicit 1" else None


@pytest.mark.parametrize("level", PromptLevel)
def test_one_instruction_that_cannot_be_taken_drops_the_row_at_all_levels(level: PromptLevel, tmp_path: Path) -> None:
    dataset = Stored(3)
    rows = AcceptedRows(dataset, plan_of(dataset, tmp_path).index, np.zeros((3, 0, 2), np.int32), refuses_explicit_1)
    rows = pickle.loads(pickle.dumps(rows))
    for read in (rows.sample, rows.stored):
        assert [read(index, level).instruction for index in (0, 2)] == [f"{level} 0", f"{level} 2"]
        with pytest.raises(
            DatasetRowError, match=r"The explicit instruction of plain\.parquet, row 1 is too"
        ) as refused:
            read(1, level)
        assert refused.value.reason == RowProblem.PROMPT_TOO_LONG


def test_without_a_rule_rows_are_those_of_the_data_set(tmp_path: Path) -> None:
    dataset = PlainPairs(3, broken=frozenset([2]))
    rows = AcceptedRows(dataset, plan_of(dataset, tmp_path).index, np.zeros((3, 0, 2), np.int32), None)
    assert (len(rows), rows.levels, rows.max_references) == (3, dataset.levels, 0)
    assert (rows.fingerprint, rows.name(1), rows.header(1)) == (dataset.fingerprint, dataset.name(1), dataset.header(1))
    assert rows.sample(1, PromptLevel.EXPLICIT).instruction == "explicit 1"
    with pytest.raises(DatasetRowError, match="cannot be decoded"):
        rows.sample(2, PromptLevel.EXPLICIT)
