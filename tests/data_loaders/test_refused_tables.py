"""Tables that cannot be opened: the message says which setting or file, and what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import parquet

from physedit.data_loaders.layouts import open_pairs
from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.rows import PairColumns, Rows
from physedit.data_loaders.sample import DatasetLayoutError, PromptLevel

COLUMNS = PairColumns("a", "b", {PromptLevel.SUPERFICIAL: "say"}, None, None)


def opened(path: Path) -> Rows:
    return open_pairs(str(path), COLUMNS)


def refusing(*_arguments: object, **_rest: object) -> None:
    raise PermissionError(13, "Permission denied", "/x/y")


def test_a_table_that_may_not_be_read_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metadata.jsonl").write_text("{}\n")
    monkeypatch.setattr(Path, "read_bytes", refusing)
    with pytest.raises(
        DatasetLayoutError, match=r"data\.path=.* cannot be used: /x/y cannot be read: Permission denied"
    ):
        opened(tmp_path)


def test_a_folder_that_may_not_be_entered_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", refusing)
    for path in (lambda: opened(tmp_path), lambda: Pica100k(path=str(tmp_path))):
        with pytest.raises(DatasetLayoutError, match=r"data\.path=.*Mend its permissions"):
            path()


def test_a_parquet_file_that_may_not_be_read_is_not_to_be_downloaded_again(
    write_pica: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, own_arrow_cache: None
) -> None:
    folder = write_pica(num_rows=1)
    monkeypatch.setattr(parquet, "read_schema", refusing)
    with pytest.raises(DatasetLayoutError, match=r"train-00000\.parquet cannot be read") as caught:
        Pica100k(path=str(folder))
    assert "Mend its permissions" in str(caught.value)
    assert "ownload" not in str(caught.value)


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_table_without_rows_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DatasetLayoutError, match=rf"{name}: the data set has no rows"):
        opened(tmp_path)


def test_a_csv_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("a,b,say,b\n1,2,x,3\n")
    with pytest.raises(DatasetLayoutError, match=r"metadata\.csv has the column 'b' 2 times"):
        opened(tmp_path)
    (tmp_path / "metadata.csv").write_text("a,b,say,other,other,,\n1,2,x,3,4,,\n")
    assert len(opened(tmp_path)) == 1


@pytest.mark.parametrize("row", ["x" * 140_000 + ",2,3", '"not closed,2,3\n' + "1,2,3\n" * 30_000])
def test_a_row_that_is_no_csv_is_named_by_its_first_line(tmp_path: Path, row: str) -> None:
    (tmp_path / "metadata.csv").write_text(f"a,b,say\n1,2,3\n{row}\n")
    with pytest.raises(DatasetLayoutError, match=r"The row from line 3 of .*metadata\.csv on .*not closed"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["metadata.jsonl", "state.json", "part-0.tar"])
def test_streaming_what_is_no_parquet_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=rf"data\.streaming=true reads parquet files.*holds {name}"):
        Pairs(path=str(tmp_path), source="a", target="b", instruction="say", level="superficial", streaming=True)


def test_a_saved_set_with_a_damaged_state_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(DatasetLayoutError, match=r"no data set that can be loaded: state\.json .* lacks '_"):
        opened(tmp_path)
