"""The world's files have the published columns, read back whole, and keep training and benchmark apart."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest

from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.sample import DatasetLayoutError, PromptLevel
from physedit.data_loaders.scenes.scene import LAWS, draw_scene
from physedit.data_loaders.scenes.write import (
    Target,
    benchmark_seeds,
    ensure_world,
    train_seeds,
    write_benchmark_file,
    write_training_file,
    write_world,
)

SMALL = {"num_train": 12, "num_benchmark": 7, "seed": 3}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes") / "world"
    write_world(folder, **SMALL, targets=tuple(Target))
    return folder


@pytest.fixture(autouse=True)
def arrow_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def load(file, tmp_path):
    from datasets import load_dataset

    return load_dataset("parquet", data_files=str(file), split="train", cache_dir=str(tmp_path / "loaded"))


def test_training_columns_are_pica100ks(world):
    assert pq.read_schema(world / "train" / "train-00000.parquet").names == [
        "superficial_prompt",
        "intermediate_prompt",
        "explicit_prompt",
        "law",
        "op",
        "src_img",
        "tgt_img",
    ]


def test_benchmark_columns_are_picabenchs(world):
    schema = pq.read_schema(world / "benchmark" / "picabench-00000-of-00001.parquet")

    assert schema.names == [
        "physics_category",
        "physics_law",
        "edit_operation",
        "superficial_prompt",
        "intermediate_prompt",
        "explicit_prompt",
        "annotated_qa_pairs",
        "edit_area",
        "image_path",
        "input_image",
    ]
    pair = schema.field("annotated_qa_pairs").type.value_type
    assert [field.name for field in pair] == ["question", "answer", "box"]
    assert {field.name: str(field.type) for field in pair.field("box").type} == {
        "height": "double",
        "width": "double",
        "x": "double",
        "y": "double",
    }


def test_datasets_decodes_training_pairs_to_the_drawn_pictures(world, tmp_path):
    for target in Target:
        folder = {Target.PHYSICAL: "train", Target.NAIVE: "naive"}[target]
        rows = load(world / folder / "train-00000.parquet", tmp_path / folder)

        assert len(rows) == 12
        for row, seed, law in zip(rows, train_seeds(3, 12), LAWS * 2, strict=True):
            scene = draw_scene(law, seed)
            wanted = {Target.PHYSICAL: scene.physical, Target.NAIVE: scene.naive}[target]
            assert np.array_equal(np.asarray(row["src_img"]), scene.source)
            assert np.array_equal(np.asarray(row["tgt_img"]), wanted)
            assert (row["law"], row["op"]) == (law, scene.operation)
            assert row["explicit_prompt"] == scene.explicit_prompt


def test_datasets_decodes_benchmark_items_with_questions_and_areas(world, tmp_path):
    rows = load(world / "benchmark" / "picabench-00000-of-00001.parquet", tmp_path)

    for row, seed, law in zip(rows, benchmark_seeds(3, 7), (*LAWS, LAWS[0]), strict=True):
        scene = draw_scene(law, seed)
        assert np.array_equal(np.asarray(row["input_image"]), scene.source)
        assert [pair["question"] for pair in row["annotated_qa_pairs"]] == [each.text for each in scene.questions]
        assert [pair["box"]["x"] for pair in row["annotated_qa_pairs"]] == [each.box.x for each in scene.questions]
        assert [area["width"] for area in row["edit_area"] or ()] == [area.width for area in scene.edit_areas]
        assert (row["edit_area"] is None) == (law == "Global")


def test_targets_lie_beside_the_benchmark_and_not_in_it(world, tmp_path):
    rows = load(world / "benchmark" / "targets.parquet", tmp_path)

    assert rows.column_names == ["index", "tgt_img"]
    assert list(rows["index"]) == list(range(7))
    assert np.array_equal(np.asarray(rows[0]["tgt_img"]), draw_scene(LAWS[0], benchmark_seeds(3, 1)[0]).physical)


def test_the_pica100k_reader_reads_the_world(world):
    pairs = Pica100k(path=str(world / "train"))

    assert len(pairs) == 12
    assert pairs.sample(1, PromptLevel.SUPERFICIAL).law == "Reflection"


def test_training_and_benchmark_share_no_scene_whatever_the_seeds():
    trained = {seed for world_seed in range(5) for seed in train_seeds(world_seed, 2000)}
    judged = {seed for world_seed in range(5) for seed in benchmark_seeds(world_seed, 2000)}

    assert not trained & judged
    assert len(trained) == len(judged) == 10_000


def test_world_note_tells_seeds_counts_and_hashes(world):
    note = json.loads((world / "world.json").read_text())

    assert {key: note[key] for key in SMALL} == SMALL
    assert note["train_per_law"] == dict.fromkeys(LAWS, 2)
    assert note["benchmark_per_law"] == {**dict.fromkeys(LAWS, 1), "Light_Propagation": 2}
    assert sorted(note["files"]) == [
        "benchmark/picabench-00000-of-00001.parquet",
        "benchmark/targets.parquet",
        "naive/train-00000.parquet",
        "train/train-00000.parquet",
    ]


def test_the_same_world_twice_is_the_same_bytes(world, tmp_path):
    write_world(tmp_path / "again", **SMALL, targets=tuple(Target))

    assert (tmp_path / "again" / "world.json").read_text() == (world / "world.json").read_text()


def test_ensure_world_keeps_a_matching_folder(tmp_path):
    ensure_world(tmp_path / "world", **SMALL)
    written = (tmp_path / "world" / "world.json").stat().st_mtime_ns

    ensure_world(tmp_path / "world", **SMALL)

    assert (tmp_path / "world" / "world.json").stat().st_mtime_ns == written


def test_ensure_world_refuses_another_world(world):
    with pytest.raises(ValueError, match=r"num_train 12 instead of 13"):
        ensure_world(world, **{**SMALL, "num_train": 13})


def test_ensure_world_refuses_a_folder_that_is_no_world(tmp_path):
    with pytest.raises(ValueError, match=r"has no world\.json"):
        ensure_world(tmp_path, **SMALL)


def test_ensure_world_names_files_that_are_gone(tmp_path):
    ensure_world(tmp_path / "world", **SMALL)
    (tmp_path / "world" / "benchmark" / "targets.parquet").unlink()

    with pytest.raises(ValueError, match=r"lacks benchmark/targets\.parquet"):
        ensure_world(tmp_path / "world", **SMALL)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_ensure_world_names_a_damaged_note(tmp_path, text):
    (tmp_path / "world.json").write_text(text)
    with pytest.raises(DatasetLayoutError, match=r"world\.json is damaged.*Delete the folder"):
        ensure_world(tmp_path, **SMALL)


@pytest.mark.parametrize("files", [None, {}, []])
def test_ensure_world_needs_the_list_of_files(tmp_path, world, files):
    note = json.loads((world / "world.json").read_text())
    (tmp_path / "world.json").write_text(json.dumps({**note, "files": files}))
    with pytest.raises(DatasetLayoutError, match=r"names no files"):
        ensure_world(tmp_path, **SMALL)


def test_ensure_world_refuses_a_changed_file(tmp_path):
    ensure_world(tmp_path / "world", **SMALL)
    file = tmp_path / "world" / "train" / "train-00000.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    with pytest.raises(DatasetLayoutError, match=r"train-00000\.parquet was changed after it was written.*Remove"):
        ensure_world(tmp_path / "world", **SMALL)


def test_processes_that_write_at_once_end_with_one_whole_world(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(ensure_world, tmp_path / "world", **SMALL) for _ in range(3)]:
            done.result()

    assert [entry.name for entry in tmp_path.iterdir()] == ["world"]


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def broken(*_args, **_keywords):
        raise OSError("disk full")

    monkeypatch.setattr("physedit.data_loaders.scenes.write.write_benchmark_file", broken)

    with pytest.raises(OSError, match="disk full"):
        write_world(tmp_path / "world", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_files_of_chosen_laws_deal_them_in_turn(tmp_path):
    laws = ("Reflection", "Global")
    write_training_file(tmp_path / "train.parquet", seeds=range(5), laws=laws, target=Target.PHYSICAL)

    found = pq.read_table(tmp_path / "train.parquet", columns=["law"]).column("law").to_pylist()

    assert found == ["Reflection", "Global", "Reflection", "Global", "Reflection"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": [1], "laws": ("Gravity",)}, "Gravity"),
        ({"seeds": [1], "laws": ()}, "laws are"),
        ({"seeds": []}, "no scene seeds"),
    ],
)
def test_a_file_that_cannot_be_drawn_is_refused_and_leaves_nothing(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_benchmark_file(tmp_path / "bench.parquet", **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seed", "count"), [(-1, 5), (0, 0), (0, 1_000_001)])
def test_seeds_and_counts_that_a_world_has_not_are_refused(seed, count):
    with pytest.raises(ValueError, match=r"seed is -1|scenes were asked for"):
        train_seeds(seed, count)
