import pickle
from pathlib import Path

import pytest

from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError, PromptLevel, collate


def test_rows_of_all_shards_come_in_order_with_ids_of_their_file(write_pica) -> None:
    write_pica("data/train-00000-of-2.parquet", num_rows=3)
    path = write_pica("data/train-00001-of-2.parquet", num_rows=2, first=3)
    data = Pica100k(path=str(path))
    samples = [data.sample(i, PromptLevel.INTERMEDIATE) for i in range(len(data))]
    assert [s.sample_id for s in samples] == [
        "train-00000-of-2.parquet:0",
        "train-00000-of-2.parquet:1",
        "train-00000-of-2.parquet:2",
        "train-00001-of-2.parquet:0",
        "train-00001-of-2.parquet:1",
    ]
    assert [s.source[:, 0, 0].tolist() for s in samples] == [[i, 0, 0] for i in range(5)]
    assert [s.target[:, 0, 0].tolist() for s in samples] == [[0, 0, i] for i in range(5)]
    assert [s.instruction for s in samples] == [f"middle {i}" for i in range(5)]
    assert (samples[4].law, samples[4].operation, samples[4].origin.row) == ("Reflection", "add", 1)


@pytest.mark.parametrize("is_shown", [True, False])
def test_opening_draws_no_bar_and_leaves_the_switch_as_it_was(write_pica, capfd, is_shown: bool) -> None:
    import datasets

    path = write_pica()
    (datasets.enable_progress_bars if is_shown else datasets.disable_progress_bars)()
    try:
        Pica100k(path=str(path))
        assert "Generating" not in capfd.readouterr().err
        assert datasets.are_progress_bars_disabled() != is_shown
    finally:
        datasets.enable_progress_bars()


def test_each_level_reads_its_own_column(write_pica) -> None:
    data = Pica100k(path=str(write_pica()))
    assert data.levels == frozenset(PromptLevel)
    assert [data.sample(2, level).instruction for level in PromptLevel] == ["short 2", "middle 2", "long 2"]


@pytest.mark.parametrize("name", ["data/train-0.parquet", "train-0.parquet", "any.parquet"])
def test_folder_with_data_folder_and_single_file_are_read(write_pica, name: str) -> None:
    path = write_pica(name)
    assert len(Pica100k(path=str(path / name if name == "any.parquet" else path))) == 6


def test_limit_spreads_over_the_file(write_pica) -> None:
    data = Pica100k(path=str(write_pica(num_rows=9)), limit=3)
    assert [data.sample(i, PromptLevel.EXPLICIT).origin.row for i in range(len(data))] == [0, 3, 6]
    with pytest.raises(IndexError):
        data.sample(3, PromptLevel.EXPLICIT)


def test_copy_for_a_worker_process_reads_the_same(write_pica) -> None:
    data = Pica100k(path=str(write_pica()))
    copy = pickle.loads(pickle.dumps(data))
    assert copy.sample(1, PromptLevel.EXPLICIT).sample_id == data.sample(1, PromptLevel.EXPLICIT).sample_id


def test_rewritten_file_is_read_anew(write_pica) -> None:
    path = write_pica(num_rows=2)
    assert Pica100k(path=str(path)).sample(0, PromptLevel.EXPLICIT).instruction == "long 0"
    write_pica(num_rows=2, explicit_prompt=["new 0", "new 1"])
    assert Pica100k(path=str(path)).sample(0, PromptLevel.EXPLICIT).instruction == "new 0"


def test_missing_folder_names_the_download(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetLayoutError,
        match=r"no such path.*hf download Andrew613/PICA-100K --repo-type dataset.* or set data\.path=hf://",
    ):
        Pica100k(path=str(tmp_path / "absent"))


def test_folder_without_shards_lists_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "test-0.parquet").touch()
    with pytest.raises(DatasetLayoutError, match=r"it holds test-0\.parquet"):
        Pica100k(path=str(tmp_path))


def test_misnamed_column_is_named_with_its_near_match(write_pica) -> None:
    path = write_pica(num_rows=1, explicit_prompt=None, explict_prompt=["x"])
    with pytest.raises(DatasetLayoutError, match=r"lacks the columns explicit_prompt.*did you mean 'explict_prompt'"):
        Pica100k(path=str(path))


def test_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "train-0.parquet").write_bytes(b"version https://git-lfs")
    with pytest.raises(DatasetLayoutError, match=r"train-0\.parquet is no readable parquet"):
        Pica100k(path=str(tmp_path))


@pytest.mark.parametrize("blank", [None, "  "])
def test_blank_instruction_of_any_level_is_a_problem_of_its_row(write_pica, blank: str | None) -> None:
    data = Pica100k(path=str(write_pica(num_rows=3, explicit_prompt=["a", blank, "c"])))
    assert [data.header(row).problem for row in range(3)] == [None, "blank prompt", None]
    for level in PromptLevel:
        with pytest.raises(DatasetRowError, match=r"'explicit_prompt' in .*parquet, row 1"):
            data.sample(1, level)


def test_row_without_picture_is_named(write_pica, png) -> None:
    cells = [{"bytes": png((1, 1, 1)), "path": None}, None]
    data = Pica100k(path=str(write_pica(num_rows=2, tgt_img=cells)))
    with pytest.raises(DatasetRowError, match=r"'tgt_img' in .*row 1 holds no picture"):
        data.sample(1, PromptLevel.EXPLICIT)


def test_pictures_of_unlike_size_are_given_as_they_are_and_counted(write_pica, png) -> None:
    path = write_pica(
        num_rows=2, tgt_img=[{"bytes": png((1, 1, 1), *size), "path": None} for size in ((32, 32), (16, 16))]
    )
    samples = [Pica100k(path=str(path)).sample(row, PromptLevel.EXPLICIT) for row in (0, 1)]
    assert [sample.target.shape for sample in samples] == [(3, 32, 32), (3, 16, 16)]
    assert collate(samples).num_targets_of_other_size == 1


def test_limit_of_no_rows_is_refused(write_pica) -> None:
    with pytest.raises(ValueError, match=r"data\.limit"):
        Pica100k(path=str(write_pica()), limit=0)


def test_file_with_a_hole_is_named(write_pica) -> None:
    path = write_pica("data/train-00000-of-2.parquet")
    file = write_pica("data/train-00001-of-2.parquet") / "data/train-00001-of-2.parquet"
    content = bytearray(file.read_bytes())
    content[4:200] = bytes(196)
    file.write_bytes(content)
    with pytest.raises(DatasetLayoutError, match=r"train-00001-of-2\.parquet is damaged: .*again"):
        Pica100k(path=str(path))


def test_set_without_rows_is_named(write_pica) -> None:
    with pytest.raises(DatasetLayoutError, match=r"train-00000\.parquet: the data set has no rows\. Download"):
        Pica100k(path=str(write_pica(num_rows=0)))


def test_file_without_rows_among_others_is_passed_over(write_pica) -> None:
    for number, num_rows in enumerate((2, 0, 2)):
        path = write_pica(f"data/train-{number}.parquet", num_rows=num_rows)
    data = Pica100k(path=str(path))
    assert [data.sample(i, PromptLevel.EXPLICIT).sample_id for i in range(4)] == [
        "train-0.parquet:0",
        "train-0.parquet:1",
        "train-2.parquet:0",
        "train-2.parquet:1",
    ]
