import json
import multiprocessing
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.plain_pairs import PlainPairs

from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import RowHeader
from physedit.data_loaders.size_index import NONE, SizeIndex

LAWS = ("Reflection", None, "Causality")


def dataset(title: str = "plain") -> PlainPairs:
    return PlainPairs(
        1000,
        sizes=[(2, 4), (6, 8), (10, 12)],
        target_sizes=[(2, 4), (3, 4), (10, 12)],
        laws=LAWS,
        problems={0: RowProblem.NO_SOURCE, 700: RowProblem.BLANK_PROMPT},
        title=title,
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_index_holds_what_the_headers_say(tmp_path: Path, num_workers: int) -> None:
    index = SizeIndex.of(dataset(), tmp_path, num_workers=num_workers)
    assert len(index.rows) == 1000
    for row in (1, 2, 3, 255, 256, 699, 999):
        header = dataset().header(row)
        assert (index.source(row), index.target(row)) == (header.source, header.target)
        law, problem = index.rows["law"][row], index.rows["problem"][row]
        assert (None if law == NONE else index.laws[law], problem) == (header.law, NONE)
    assert np.flatnonzero(index.rows["problem"] != NONE).tolist() == [0, 700]
    assert [index.problems[number] for number in index.rows["problem"][[0, 700]]] == [
        RowProblem.NO_SOURCE,
        RowProblem.BLANK_PROMPT,
    ]


def test_no_picture_is_decoded_and_no_header_is_read_twice(tmp_path: Path) -> None:
    data = dataset()
    made = SizeIndex.of(data, tmp_path, num_workers=0)
    assert (len(data.looked_at), data.decoded) == (1000, [])
    again = SizeIndex.of(data, tmp_path, num_workers=0)
    assert len(data.looked_at) == 1000
    assert np.array_equal(made.rows, again.rows)
    assert (made.laws, made.problems) == (again.laws, again.problems)


def test_other_content_has_an_index_of_its_own(tmp_path: Path) -> None:
    for title in ("one", "two"):
        SizeIndex.of(dataset(title), tmp_path, num_workers=0)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("harm", [lambda f: f.write_bytes(b"x"), lambda f: f.write_bytes(f.read_bytes()[:-9])])
@pytest.mark.parametrize("name", ["rows.npy", "words.json"])
def test_damaged_index_is_made_anew(tmp_path: Path, name: str, harm) -> None:  # type: ignore[no-untyped-def]
    whole = SizeIndex.of(dataset(), tmp_path, num_workers=0)
    (folder,) = tmp_path.iterdir()
    harm(folder / name)
    assert np.array_equal(SizeIndex.of(dataset(), tmp_path, num_workers=0).rows, whole.rows)
    data = dataset()
    SizeIndex.of(data, tmp_path, num_workers=0)
    assert not data.looked_at


def test_processes_that_make_it_at_once_leave_one_whole_index(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    makers = [context.Process(target=_make, args=(tmp_path,)) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert [maker.exitcode for maker in makers] == [0] * 4
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "words.json").read_text())["laws"] == ["Reflection", "Causality"]


def _make(folder: Path) -> None:
    SizeIndex.of(dataset(), folder, num_workers=0)


def test_rows_that_could_not_be_read_are_looked_at_again(tmp_path: Path) -> None:
    data = replace(dataset(), problems={3: RowProblem.NOT_READABLE, 5: RowProblem.MISSING_FILE})
    refused = SizeIndex.of(data, tmp_path, num_workers=0)
    data.looked_at.clear()
    assert np.array_equal(SizeIndex.of(data, tmp_path, num_workers=0).rows, refused.rows)
    assert data.looked_at == [3]  # what was missing is not: its file's name, size and time are in the fingerprint
    mended = AfterAccess(**{each.name: getattr(data, each.name) for each in fields(data)})
    for _ in range(2):
        index = SizeIndex.of(mended, tmp_path, num_workers=0)
        assert index.source(3) == mended.size(3)
        assert np.flatnonzero(index.rows["problem"] != NONE).tolist() == [5]
    assert mended.looked_at.count(4) == 1


class AfterAccess(PlainPairs):
    """The same files, named alike, when they can be read."""

    def header(self, index: int) -> RowHeader:
        found = super().header(index)
        if found.problem != RowProblem.NOT_READABLE:
            return found
        return RowHeader(self.size(index), self.target_size(index), None, None, None)
