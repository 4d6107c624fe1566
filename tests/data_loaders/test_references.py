"""Sizes of references are read once from headers, and rows share a micro batch only if theirs are edited alike."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tests.support.plain_pairs import PlainPairs

from physedit.data_loaders.buckets import NO_BUCKET, Buckets
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.references import reference_sizes, with_references
from physedit.data_loaders.sample import PictureSizeError, RowHeader

Size = tuple[int, int]


@dataclass
class WithReferences(PlainPairs):
    """Row i has the references of ``given[i % len(given)]``."""

    given: tuple[tuple[Size, ...], ...] = field(default=((),))

    def header(self, index: int) -> RowHeader:
        header = super().header(index)
        return replace(header, references=() if header.problem else self.given[index % len(self.given)])


GIVEN = (((4, 6), (8, 8)), ((4, 6),), ())


def sizes_of(height: int, width: int) -> Size:
    if height < 2:
        raise PictureSizeError("too narrow")
    return height // 4, width // 4


def test_sizes_are_read_once_and_kept(tmp_path: Path) -> None:
    dataset = WithReferences(7, problems={3: "no source picture"}, given=GIVEN, max_references=2)
    found = reference_sizes(dataset, tmp_path, num_workers=0)
    assert found.shape == (7, 2, 2)
    assert found.dtype == np.int32
    rows = [*GIVEN, (), *GIVEN[1:], GIVEN[0]]  # row 3 has a problem
    assert [[tuple(size) for size in row if size[0]] for row in found.tolist()] == [list(each) for each in rows]
    assert len(dataset.looked_at) == 7
    again = reference_sizes(dataset, tmp_path, num_workers=0)
    assert np.array_equal(again, found)
    assert len(dataset.looked_at) == 7
    assert np.array_equal(reference_sizes(dataset, tmp_path / "other", num_workers=2), found)


def test_sizes_are_not_kept_while_a_file_is_refused(tmp_path: Path) -> None:
    refused = WithReferences(7, problems={3: RowProblem.NOT_READABLE}, given=GIVEN, max_references=2, title="same")
    assert reference_sizes(refused, tmp_path, num_workers=0)[3].tolist() == [[0, 0], [0, 0]]
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    dataset = WithReferences(3, given=GIVEN, max_references=2)
    found = np.array(reference_sizes(dataset, tmp_path, num_workers=0))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:30])
    assert np.array_equal(reference_sizes(dataset, tmp_path, num_workers=0), found)


def test_without_references_no_header_is_read(tmp_path: Path) -> None:
    dataset = PlainPairs(5)
    assert reference_sizes(dataset, tmp_path, num_workers=0).shape == (5, 0, 2)
    assert dataset.looked_at == []
    assert list(tmp_path.iterdir()) == []


def test_rows_share_a_bucket_if_references_are_equally_many_and_edited_alike() -> None:
    sources = Buckets(np.array([0, 0, 0, 0, 1, 1, 0, NO_BUCKET], np.int32), ((1, 1), (2, 2)))
    absent = (0, 0)
    references = np.array(
        [
            [(4, 4), absent],
            [(5, 7), absent],  # edited as the row before
            [(4, 4), (4, 4)],
            [absent, absent],
            [(4, 4), absent],  # with another source
            [absent, absent],
            [(1, 9), absent],  # the editor takes no such size
            [(4, 4), absent],
        ],
        np.int32,
    )
    numbers = with_references(sources, references, sizes_of).numbers.tolist()
    assert numbers[0] == numbers[1]
    assert len(set(numbers[1:6])) == 5
    assert numbers[6:] == [NO_BUCKET, NO_BUCKET]


def test_equal_references_leave_the_order_of_buckets() -> None:
    """Else a run whose references are all alike could not go on."""
    sources = Buckets(np.array([2, 0, 1, 0, NO_BUCKET], np.int32), ())
    references = np.full((5, 1, 2), 8, np.int32)
    numbers = with_references(sources, references, sizes_of).numbers
    known = numbers != NO_BUCKET
    _, ranks = np.unique(numbers[known], return_inverse=True)
    assert ranks.tolist() == [2, 0, 1, 0]
    assert with_references(sources, references[:, :0], sizes_of) is sources
