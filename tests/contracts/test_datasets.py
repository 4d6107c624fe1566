"""What every data set option promises, over small files in each layout that it reads."""

import io
import json
import pickle
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
from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.sample import DatasetLayoutError, EditDataset, PromptLevel, collate
from physedit.train.build import resolve_target

NUM_ROWS = 5
STORED = (30, 40)


def png(number: int) -> bytes:
    stream = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "PNG")
    return stream.getvalue()


def pica100k(folder: Path) -> EditDataset:
    table: dict[str, object] = {f"{level}_prompt": [f"{level} {i}" for i in range(NUM_ROWS)] for level in PromptLevel}
    table |= {"law": ["Reflection"] * NUM_ROWS, "op": ["add"] * NUM_ROWS}
    table |= {"src_img": [{"bytes": png(i), "path": None} for i in range(NUM_ROWS)]}
    table |= {"tgt_img": [{"bytes": png(100 + i), "path": None} for i in range(NUM_ROWS)]}
    parquet.write_table(pa.table(table), folder / "train-0.parquet")
    return Pica100k(path=str(folder))


def pairs_beside_files(folder: Path) -> EditDataset:
    rows = [{"in": f"{i}.png", "out": f"{100 + i}.png", "say": f"explicit {i}"} for i in range(NUM_ROWS)]
    for i in range(NUM_ROWS):
        (folder / f"{i}.png").write_bytes(png(i))
        (folder / f"{100 + i}.png").write_bytes(png(100 + i))
    (folder / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return Pairs(path=str(folder), source="in", target="out", instruction="say", level="explicit")


def pairs_in_parquet(folder: Path) -> EditDataset:
    pica100k(folder)
    return Pairs(
        path=str(folder / "train-0.parquet"),
        source="src_img",
        target="tgt_img",
        instruction="explicit_prompt",
        level="explicit",
    )


BUILDERS = {pica100k: Pica100k, pairs_beside_files: Pairs, pairs_in_parquet: Pairs}


def test_class_of_every_option_has_an_example_here() -> None:
    files = sorted((Path(physedit.conf.__file__).parent / "data").glob("*.yaml"))
    assert {"pica100k", "scenes"} <= {file.stem for file in files}
    for file in files:
        assert resolve_target(OmegaConf.load(file)["_target_"]) in BUILDERS.values()


@pytest.fixture(params=BUILDERS, ids=lambda build: build.__name__)
def dataset(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EditDataset:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow_cache")
    build: Callable[[Path], EditDataset] = request.param
    return build(tmp_path)


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


def test_same_arguments_give_the_same_sample(dataset: EditDataset) -> None:
    level = PromptLevel.EXPLICIT
    first, other, second = dataset.sample(1, level), dataset.sample(3, level), dataset.sample(1, level)
    assert torch.equal(first.source, second.source)
    assert torch.equal(first.target, second.target)
    assert not torch.equal(first.source, other.source)
    assert first.sample_id == second.sample_id != other.sample_id


def test_source_and_target_are_not_swapped(dataset: EditDataset) -> None:
    from physedit.data_loaders.images import decode_rgb
    from physedit.data_loaders.sample import Origin

    sample = dataset.sample(2, PromptLevel.EXPLICIT)
    assert torch.equal(sample.source, decode_rgb(png(2), Origin("", 0)))
    assert torch.equal(sample.target, decode_rgb(png(102), Origin("", 0)))


def test_copy_for_a_worker_process_yields_the_same_samples(dataset: EditDataset) -> None:
    copy = pickle.loads(pickle.dumps(dataset))
    ours, theirs = dataset.sample(4, PromptLevel.EXPLICIT), copy.sample(4, PromptLevel.EXPLICIT)
    assert torch.equal(ours.target, theirs.target)
    assert ours.sample_id == theirs.sample_id


def test_samples_collate(dataset: EditDataset) -> None:
    batch = collate([dataset.sample(i, PromptLevel.EXPLICIT) for i in (0, 3)])
    assert [source.shape for source in batch.sources] == [(3, *STORED)] * 2
    assert batch.instructions == ("explicit 0", "explicit 3")


@pytest.mark.parametrize(
    "build",
    [
        lambda path: Pica100k(path=path),
        lambda path: Pairs(path=path, source="a", target="b", instruction="c", level="explicit"),
    ],
)
def test_path_that_does_not_exist_is_refused_with_a_remedy(build: Callable[[str], EditDataset], tmp_path: Path) -> None:
    with pytest.raises(DatasetLayoutError, match=r"absent: there is no such path\. Expected"):
        build(str(tmp_path / "absent"))
