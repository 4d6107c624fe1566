import pickle
import shutil
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from physedit.data_loaders import arrow_rows
from physedit.data_loaders.arrow_batches import ArrowBatches
from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.sample import PromptLevel


def streams(folder: Path) -> list[Path]:
    """Two streams of 7 and 5 rows in batches of 3, 0, 4 and 5."""
    files = []
    for number, sizes in enumerate([(3, 0, 4), (5,)]):
        files.append(folder / f"{number}.arrow")
        first = 7 * number
        with pa.OSFile(str(files[-1]), "wb") as sink, pa.ipc.new_stream(sink, schema()) as writer:
            for size in sizes:
                numbers = range(first, first + size)
                columns = [[f"row {i}" for i in numbers], [None if i % 4 == 0 else bytes([i]) * i for i in numbers]]
                writer.write_batch(pa.record_batch(columns, schema=schema()))
                first += size
    return files


def schema() -> pa.Schema:
    return pa.schema([("text", pa.string()), ("data", pa.binary())])


def test_every_cell_is_that_of_the_table(tmp_path: Path) -> None:
    files = streams(tmp_path)
    whole = pa.concat_tables([datasets.Dataset.from_file(str(file)).data.table for file in files]).to_pylist()
    batches = ArrowBatches.listed(files)
    assert (len(batches), batches.counts) == (12, [7, 5])
    assert batches.values("text") == [row["text"] for row in whole]
    for index in (11, *range(12), 0, 7):
        text, data = batches.cells(index, ("text", "data"))
        assert {"text": text.as_py(), "data": data.as_py()} == whole[index]


def test_copy_and_what_was_kept_read_the_same(tmp_path: Path) -> None:
    batches = ArrowBatches.listed(streams(tmp_path))
    batches.cells(0, ("text",))
    batches.keep(tmp_path / "places" / "kept.arrow", [2, 10])
    kept = ArrowBatches.kept(tmp_path / "places" / "kept.arrow")
    assert kept is not None
    counts, same = kept
    assert counts == [2, 10]
    assert [path.name for path in (tmp_path / "places").iterdir()] == ["kept.arrow"]
    for other in (same, pickle.loads(pickle.dumps(batches)), pickle.loads(pickle.dumps(same))):
        assert other.values("data") == batches.values("data")
        assert (other.counts, other.paths) == (batches.counts, batches.paths)


def test_pictures_are_not_copied(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    cells = ArrowBatches.listed(streams(tmp_path)).cells(11, ("data",))
    assert cells[0].as_buffer().to_pybytes() == bytes([11]) * 11
    assert pa.total_allocated_bytes() - before < 11


@pytest.mark.parametrize("harm", ["longer file", "no file", "cut places", "no places", "other places"])
def test_places_that_no_longer_hold_are_not_used(tmp_path: Path, harm: str) -> None:
    files, kept = streams(tmp_path), tmp_path / "kept.arrow"
    ArrowBatches.listed(files).keep(kept, [7, 5])
    match harm:
        case "longer file":
            files[1].write_bytes(files[1].read_bytes() + b"\0")
        case "no file":
            files[1].unlink()
        case "cut places":
            kept.write_bytes(kept.read_bytes()[:-20])
        case "no places":
            kept.unlink()
        case "other places":
            kept.write_bytes(files[0].read_bytes())
    assert ArrowBatches.kept(kept) is None


def test_second_opening_reads_no_parquet_file_and_converts_nothing(write_pica, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pica("data/train-0.parquet", num_rows=3)
    path = write_pica("data/train-1.parquet", num_rows=2, first=3)
    first = Pica100k(path=str(path))
    expected = [first.stored(i, PromptLevel.EXPLICIT) for i in range(5)]

    def refuse(*_: object) -> None:
        raise AssertionError("a file was opened")

    for name in ("parquet_columns", "num_parquet_rows", "_converted"):
        monkeypatch.setattr(arrow_rows, name, refuse)
    again = Pica100k(path=str(path))
    assert [again.stored(i, PromptLevel.EXPLICIT) for i in range(5)] == expected
    assert again.fingerprint == first.fingerprint


def test_lost_arrow_cache_is_made_again(write_pica) -> None:
    path = str(write_pica())
    expected = Pica100k(path=path).stored(2, PromptLevel.EXPLICIT)
    shutil.rmtree(Path(datasets.config.HF_DATASETS_CACHE) / "parquet")
    assert Pica100k(path=path).stored(2, PromptLevel.EXPLICIT) == expected
