"""What every data set option promises, over small files in each layout that it reads."""

import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image
from pyarrow import parquet

import physedit.conf
from physedit.data_loaders.images import decode_rgb
from physedit.data_loaders.mira400k import Mira400k
from physedit.data_loaders.mixture import Mixture
from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.reader import decode_pair
from physedit.data_loaders.sample import (
    DatasetLayoutError,
    DatasetRowError,
    EditDataset,
    Origin,
    PromptLevel,
    RowName,
    collate,
)
from physedit.train.build import resolve_target

NUM_ROWS = 5
STORED = (30, 40)
Build = Callable[..., EditDataset]


def png(number: int) -> bytes:
    stream = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "PNG")
    return stream.getvalue()


def picture_cells(first: int) -> list[dict[str, object]]:
    return [{"bytes": png(first + i), "path": None} for i in range(NUM_ROWS)]


def is_empty(folder: Path) -> bool:
    """A builder writes its files into an empty folder alone, so that it can open the same ones again."""
    return not any(folder.iterdir())


def write_pica100k(folder: Path) -> None:
    table: dict[str, object] = {f"{level}_prompt": [f"{level} {i}" for i in range(NUM_ROWS)] for level in PromptLevel}
    table |= {"law": ["Reflection"] * NUM_ROWS, "op": ["add"] * NUM_ROWS}
    table |= {"src_img": picture_cells(0), "tgt_img": picture_cells(100)}
    parquet.write_table(pa.table(table), folder / "train-0.parquet")


def write_pictures(folder: Path) -> list[dict[str, str]]:
    """Writes the files of all pairs and returns the rows that name them."""
    folder.mkdir(exist_ok=True)
    for i in range(NUM_ROWS):
        (folder / f"{i}.png").write_bytes(png(i))
        (folder / f"{100 + i}.png").write_bytes(png(100 + i))
    return [{"in": f"{i}.png", "out": f"{100 + i}.png", "say": f"explicit {i}"} for i in range(NUM_ROWS)]


def pica100k(folder: Path, **options: object) -> EditDataset:
    if is_empty(folder):
        write_pica100k(folder)
    return Pica100k(path=str(folder), **options)


def pica100k_streamed(folder: Path, **options: object) -> EditDataset:
    if is_empty(folder):
        write_pica100k(folder)
    return Pica100k(path=str(folder), streaming=True, **options)


def pairs_beside_files(folder: Path, **options: object) -> EditDataset:
    if is_empty(folder):
        (folder / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in write_pictures(folder)))
    return Pairs(path=str(folder), **PAIRS, **options)


def pairs_in_csv(folder: Path, **options: object) -> EditDataset:
    if is_empty(folder):
        lines = ["in,out,say", *(",".join(row.values()) for row in write_pictures(folder))]
        (folder / "metadata.csv").write_text("\r\n".join(lines))
    return Pairs(path=str(folder), **PAIRS, **options)


def pairs_in_table_and_folder(folder: Path, **options: object) -> EditDataset:
    if is_empty(folder):
        rows = write_pictures(folder / "pictures")
        (folder / "list.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return Pairs(path=str(folder / "list.jsonl"), folder=str(folder / "pictures"), **PAIRS, **options)


def pairs_in_parquet(folder: Path, **options: object) -> EditDataset:
    if is_empty(folder):
        write_pica100k(folder)
    columns = {"source": "src_img", "target": "tgt_img", "instruction": "explicit_prompt", "level": "explicit"}
    return Pairs(path=str(folder / "train-0.parquet"), **columns, **options)


def pairs_saved_to_disk(folder: Path, **options: object) -> EditDataset:
    import datasets

    if is_empty(folder):
        features = datasets.Features({"in": datasets.Image(), "out": datasets.Image(), "say": datasets.Value("string")})
        say = [f"explicit {i}" for i in range(NUM_ROWS)]
        table = datasets.Dataset.from_dict({"in": picture_cells(0), "out": picture_cells(100), "say": say}, features)
        table.save_to_disk(str(folder / "saved"), num_shards=2)
    return Pairs(path=str(folder / "saved"), **PAIRS, **options)


def pairs_in_tars(folder: Path, **options: object) -> EditDataset:
    for shard, numbers in enumerate((range(3), range(3, NUM_ROWS)) if is_empty(folder) else ()):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in numbers:
                parts = {"In.PNG": png(i), "out.png": png(100 + i), "txt": f"explicit {i}\n".encode()}
                for part, data in parts.items():
                    member = tarfile.TarInfo(f"scene/{i:04d}.{part}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return Pairs(path=str(folder), **{**PAIRS, "instruction": "txt"}, **options)


def mira400k(folder: Path, **options: object) -> EditDataset:
    if is_empty(folder):
        table = {"source": picture_cells(0), "target": picture_cells(100)}
        table |= {"instruction": [f"superficial {i}" for i in range(NUM_ROWS)]}
        parquet.write_table(pa.table(table), folder / "train-0.parquet")
    return Mira400k(path=str(folder), **options)


def mixture(folder: Path, **options: object) -> EditDataset:
    return Mixture(members={"pica": pica100k(folder, **options)}, weights={"pica": 1.0})


PAIRS = {"source": "in", "target": "out", "instruction": "say", "level": "explicit"}
BUILDERS = {
    pica100k: Pica100k,
    pica100k_streamed: Pica100k,
    pairs_beside_files: Pairs,
    pairs_in_csv: Pairs,
    pairs_in_table_and_folder: Pairs,
    pairs_in_parquet: Pairs,
    pairs_saved_to_disk: Pairs,
    pairs_in_tars: Pairs,
    mira400k: Mira400k,
    mixture: Mixture,
}


def test_class_of_every_option_has_an_example_here() -> None:
    files = sorted((Path(physedit.conf.__file__).parent / "data").glob("*.yaml"))
    assert {"pica100k", "mira400k", "pairs", "scenes"} <= {file.stem for file in files}
    for file in files:
        assert resolve_target(OmegaConf.load(file)["_target_"]) in BUILDERS.values()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("arrow_cache"))


@pytest.fixture(params=BUILDERS, ids=lambda build: build.__name__)
def build(request: pytest.FixtureRequest) -> Build:
    return request.param


@pytest.fixture
def dataset(build: Build, tmp_path: Path) -> EditDataset:
    return build(tmp_path)


def level_of(dataset: EditDataset) -> PromptLevel:
    return max(dataset.levels, key=list(PromptLevel).index)


def test_samples_have_the_promised_form(dataset: EditDataset) -> None:
    assert len(dataset) == NUM_ROWS
    for index in range(NUM_ROWS):
        for level in dataset.levels:
            sample = dataset.sample(index, level)
            assert sample.source.dtype == sample.target.dtype == torch.uint8
            assert sample.source.shape == sample.target.shape == (3, *STORED)
            assert sample.instruction == f"{level} {index}"
            assert sample.level == level
            assert Path(sample.origin.file).exists()


def test_ids_are_unique_and_the_same_at_every_level(dataset: EditDataset) -> None:
    ids = [{dataset.sample(i, level).sample_id for level in dataset.levels} for i in range(NUM_ROWS)]
    assert [len(group) for group in ids] == [1] * NUM_ROWS
    assert len(set.union(*ids)) == NUM_ROWS


def test_name_is_that_of_the_sample(dataset: EditDataset) -> None:
    for index in range(NUM_ROWS):
        sample = dataset.sample(index, level_of(dataset))
        assert dataset.name(index) == RowName(sample.sample_id, sample.origin)


def test_same_arguments_give_the_same_sample(dataset: EditDataset) -> None:
    level = level_of(dataset)
    first, other, second = dataset.sample(1, level), dataset.sample(3, level), dataset.sample(1, level)
    assert torch.equal(first.source, second.source)
    assert torch.equal(first.target, second.target)
    assert not torch.equal(first.source, other.source)
    assert first.sample_id == second.sample_id != other.sample_id


def test_source_and_target_are_not_swapped(dataset: EditDataset) -> None:
    sample = dataset.sample(2, level_of(dataset))
    assert torch.equal(sample.source, decode_rgb(png(2), Origin("", 0)))
    assert torch.equal(sample.target, decode_rgb(png(102), Origin("", 0)))


def test_stored_pair_holds_the_files_own_bytes(dataset: EditDataset) -> None:
    for index in (4, 1, 4):
        for level in dataset.levels:
            pair = dataset.stored(index, level)
            assert (pair.source, pair.target, pair.references) == (png(index), png(100 + index), ())
            assert (pair.instruction, pair.level) == (f"{level} {index}", level)


def test_sample_is_the_stored_pair_decoded(dataset: EditDataset) -> None:
    level = level_of(dataset)
    decoded, sample = decode_pair(dataset.stored(3, level)), dataset.sample(3, level)
    assert torch.equal(decoded.source, sample.source)
    assert torch.equal(decoded.target, sample.target)
    fields = ("sample_id", "instruction", "law", "operation", "level", "origin", "references")
    assert [getattr(decoded, name) for name in fields] == [getattr(sample, name) for name in fields]


def test_header_tells_size_and_labels_of_the_sample(dataset: EditDataset) -> None:
    for index in range(NUM_ROWS):
        header, sample = dataset.header(index), dataset.sample(index, level_of(dataset))
        assert (header.source, header.target) == (sample.source.shape[1:], sample.target.shape[1:])
        assert (header.law, header.operation, header.problem) == (sample.law, sample.operation, None)


@pytest.mark.parametrize("method", ["name", "header", "stored", "sample"])
@pytest.mark.parametrize("index", [-1, NUM_ROWS])
def test_row_beyond_the_set_is_an_index_error(dataset: EditDataset, method: str, index: int) -> None:
    arguments = () if method in ("name", "header") else (level_of(dataset),)
    with pytest.raises(IndexError):
        getattr(dataset, method)(index, *arguments)


def test_fingerprint_is_the_same_for_the_same_files_and_in_a_copy(build: Build, tmp_path: Path) -> None:
    first = build(tmp_path)
    assert pickle.loads(pickle.dumps(first)).fingerprint == first.fingerprint
    assert build(tmp_path).fingerprint == first.fingerprint


def test_fingerprint_changes_with_any_file_of_the_set(build: Build, tmp_path: Path) -> None:
    before = build(tmp_path).fingerprint
    files = [file for file in tmp_path.rglob("*") if file.suffix in (".png", ".parquet", ".jsonl", ".csv", ".tar")]
    files += list(tmp_path.rglob("data-*.arrow"))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes())
        os.utime(file, ns=(1, 1))
    assert build(tmp_path).fingerprint != before


@pytest.mark.parametrize(
    "options", [{"limit": 2}, {"split": "train", "heldout_share": 0.5}, {"min_side_px": 8}], ids=str
)
def test_fingerprint_changes_with_the_rows_in_use(build: Build, tmp_path: Path, options: dict[str, object]) -> None:
    if build is mira400k and "split" in options:
        options = {**options, "split_by": "picture"}
    first = build(tmp_path)
    assert build(tmp_path).fingerprint == first.fingerprint
    assert build(tmp_path, **options).fingerprint != first.fingerprint


def test_two_sides_of_a_split_share_no_row_and_leave_none_out(build: Build, tmp_path: Path) -> None:
    by = {"split_by": "picture"} if build is mira400k else {}
    folder, other = tmp_path / "set", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    sides = [sources(build(folder, split=side, heldout_share=0.5, **by)) for side in ("train", "heldout")]
    assert sorted(sides[0] + sides[1]) == sorted(png(i) for i in range(NUM_ROWS))
    # The bytes alone decide, so the split is one and the same in every layout.
    assert sides[1] == sources(pairs_beside_files(other, split="heldout", heldout_share=0.5))


def sources(dataset: EditDataset) -> list[bytes]:
    return [dataset.stored(i, level_of(dataset)).source for i in range(len(dataset))]


def test_too_small_pictures_are_refused_by_name(build: Build, tmp_path: Path) -> None:
    data = build(tmp_path, min_side_px=31)
    assert data.header(0).problem == RowProblem.TOO_SMALL
    with pytest.raises(DatasetRowError, match=r"40x30 pixels, below data\.min_side_px=31"):
        data.sample(0, level_of(data))


def test_copy_for_a_worker_process_yields_the_same_samples(dataset: EditDataset) -> None:
    copy = pickle.loads(pickle.dumps(dataset))
    ours, theirs = dataset.sample(4, level_of(dataset)), copy.sample(4, level_of(dataset))
    assert torch.equal(ours.target, theirs.target)
    assert ours.sample_id == theirs.sample_id
    assert copy.header(4) == dataset.header(4)
    assert copy.name(4) == dataset.name(4)


def test_samples_collate(dataset: EditDataset) -> None:
    level = level_of(dataset)
    batch = collate([dataset.sample(i, level) for i in (0, 3)])
    assert [source.shape for source in batch.sources] == [(3, *STORED)] * 2
    assert batch.instructions == (f"{level} 0", f"{level} 3")


@pytest.mark.parametrize(
    "open_path",
    [
        lambda path: Pica100k(path=path),
        lambda path: Pica100k(path=path, streaming=True),
        lambda path: Pairs(path=path, source="a", target="b", instruction="c", level="explicit"),
        lambda path: Mira400k(path=path),
    ],
)
def test_path_that_does_not_exist_is_refused_with_a_remedy(
    open_path: Callable[[str], EditDataset], tmp_path: Path
) -> None:
    with pytest.raises(DatasetLayoutError, match=r"absent: there is no such path\. Expected"):
        open_path(str(tmp_path / "absent"))
