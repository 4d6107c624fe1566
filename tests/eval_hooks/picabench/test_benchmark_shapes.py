"""Benchmarks in other shapes than the embedded world's: the hub, PhysEditBenchV2, an official ``meta_info.json``."""

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.support.stand_ins import png, write_benchmark

from physedit.data_loaders.sample import Box, DatasetLayoutError, DatasetRowError, PromptLevel
from physedit.eval_hooks.picabench.benchmark import benchmark_digest, check_benchmark, load_benchmark
from physedit.eval_hooks.picabench.benchmark_place import find_benchmark, place_in_words
from physedit.eval_hooks.picabench.benchmark_rows import PICTURE_COLUMNS
from physedit.eval_hooks.picabench.judging import no_kind
from physedit.eval_hooks.picabench.names import LAWS, category_name, law_name, operation_name
from physedit.eval_hooks.picabench.subset import select, shuffled

BOX = {"height": 40.0, "width": 30.0, "x": 10.0, "y": 20.0}
COMMIT = "1bed1d2" + 33 * "0"


def v2_row(**more: object) -> dict[str, object]:
    """A row of PhysEditBenchV2: dicts of lists, its own columns, the picture under another name."""
    return {
        "image_path": "a.png",
        "physics_category": "Optics",
        "physics_law": "Light_Propagation",
        "edit_operation": "remove",
        "author": "somebody",
        "is_suitable": True,
        "difficulty": "hard",
        "edit_instruction": "Remove the lamp.",
        "superficial_prompt": None,
        "intermediate_prompt": "Remove the lamp and its light.",
        "explicit_prompt": "Remove the lamp, its light and its shadow.",
        "qa_pairs": {
            "Editing Completion QA": [{"answer": "No", "question": "Is there a lamp?"}],
            "Physics Consistency QA": [{"answer": "No", "question": "Is there a shadow of it?"}, None],
        },
        "annotated_qa_pairs": {"PhysEdit QA": [{"answer": "No", "box": BOX, "question": "Is there light?"}]},
        "image": {"bytes": png(40), "path": "a.png"},
        **more,
    }


def write_rows(folder: Path, *rows: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows]), folder / "test-00000-of-00001.parquet")
    return folder


def test_the_successors_dicts_of_lists_and_instruction_are_read(tmp_path: Path) -> None:
    (item,) = load_benchmark(write_rows(tmp_path, v2_row()))
    assert [(q.text, q.answer, q.box) for q in item.questions] == [
        ("Is there light?", "No", Box(10.0, 20.0, 30.0, 40.0))
    ]
    assert item.instruction(PromptLevel.SUPERFICIAL) == "Remove the lamp."
    assert item.instruction(PromptLevel.EXPLICIT) == "Remove the lamp, its light and its shadow."
    assert item.edit_area == ()
    assert item.source.shape == (3, 16, 16)


def test_questions_without_boxes_stand_in_where_a_row_has_no_others(tmp_path: Path) -> None:
    rows = write_rows(tmp_path, v2_row(), v2_row(annotated_qa_pairs=None))
    items = load_benchmark(rows)
    assert [(q.text, q.box) for q in items[1].questions] == [
        ("Is there a lamp?", None),
        ("Is there a shadow of it?", None),
    ]
    assert len(items[0].questions) == 1


@pytest.mark.parametrize("column", PICTURE_COLUMNS)
def test_the_column_of_pictures_has_one_of_the_names(tmp_path: Path, column: str) -> None:
    row = v2_row()
    row[column] = row.pop("image")
    assert load_benchmark(write_rows(tmp_path, row))[0].encoded == png(40)


def test_a_file_without_pictures_instructions_or_questions_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    row = {key: value for key, value in v2_row().items() if key in ("physics_law", "author")}
    with pytest.raises(
        DatasetLayoutError, match="physics_category, edit_operation, superficial_prompt, annotated_qa_pa"
    ):
        load_benchmark(write_rows(tmp_path, row))


@pytest.mark.parametrize(
    ("column", "good", "broken", "named"),
    [
        ("superficial_prompt", None, 3, "row 1: superficial_prompt is a int; expected text"),
        ("physics_law", None, [1], "row 1: physics_law is a list; expected text"),
        ("annotated_qa_pairs", None, "none", "row 1: annotated_qa_pairs is a str"),
        ("edit_area", "unknown", "somewhere", "row 1: edit_area is 'somewhere'"),
    ],
)
def test_a_wrong_shape_is_named_with_its_row(
    tmp_path: Path, column: str, good: object, broken: object, named: str
) -> None:
    rows = [{**v2_row(), column: value} for value in (good, broken)]
    with pytest.raises(DatasetRowError, match=named):
        load_benchmark(write_rows(tmp_path, *rows))


def test_a_row_without_picture_is_named_also_before_pictures_are_read(tmp_path: Path) -> None:
    folder = write_rows(tmp_path, v2_row(), v2_row(image={"bytes": None, "path": "a.png"}))
    for read in (load_benchmark, lambda path: check_benchmark(path, PromptLevel.SUPERFICIAL, no_kind)):
        with pytest.raises(DatasetRowError, match="row 1: image holds no picture bytes"):
            read(folder)


def write_meta_info(folder: Path, *records: Mapping[str, object]) -> Path:
    (folder / "input_img").mkdir(parents=True, exist_ok=True)
    for number in range(len(records)):
        (folder / f"input_img/{number:05d}.jpg").write_bytes(png(50 + number))
    (folder / "meta_info.json").write_text(json.dumps(records))
    return folder


def record(number: int, **more: object) -> dict[str, object]:
    return {
        "index": 10 + number,
        "input_path": f"input_img/{number:05d}.jpg",
        "output_path": f"output_img/{number:05d}.jpg",
        "edit_instruction": f"Edit {number}.",
        "physics_category": "State",
        "physics_law": "Global",
        "edit_operation": "weather",
        "difficulty": "unknown",
        "annotated_qa_pairs": [{"question": "Is it?", "answer": "Yes", "box": BOX}],
        "edit_area": "unknown",
        **more,
    }


def test_an_official_meta_info_is_a_benchmark_by_file_or_folder(tmp_path: Path) -> None:
    folder = write_meta_info(tmp_path / "out", record(0), record(1, prompt_level="explicit", unknown_key=[1]))
    items = load_benchmark(folder)
    assert items == load_benchmark(folder / "meta_info.json")
    assert [item.index for item in items] == [10, 11]
    assert [item.encoded for item in items] == [png(50), png(51)]
    assert items[0].instruction(PromptLevel.SUPERFICIAL) == "Edit 0."
    assert items[1].instruction(PromptLevel.EXPLICIT) == "Edit 1."
    assert check_benchmark(write_meta_info(tmp_path / "in", record(0)), PromptLevel.SUPERFICIAL, no_kind) == 1
    with pytest.raises(DatasetRowError, match="row 0 has no explicit instruction"):
        check_benchmark(folder, PromptLevel.EXPLICIT, no_kind)


def test_a_picture_below_the_folders_own_name_is_found_and_an_absent_one_is_named(tmp_path: Path) -> None:
    folder = write_meta_info(tmp_path / "out", record(0, input_path="out/input_img/00000.jpg"))
    assert load_benchmark(folder)[0].encoded == png(50)
    before = benchmark_digest(folder)
    (folder / "input_img/00000.jpg").write_bytes(png(9))
    assert benchmark_digest(folder) != before, "the pictures beside the file belong to the benchmark"
    (folder / "input_img/00000.jpg").unlink()
    with pytest.raises(DatasetRowError, match=r"row 0: there is no picture .*00000\.jpg"):
        load_benchmark(folder)


def test_a_hub_id_is_downloaded_at_its_revision_and_named_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "cache/snapshots" / COMMIT
    write_benchmark(snapshot / "data", 3)
    asked: list[tuple[str, str]] = []

    def stand_in(name: str, *, repo_type: str, revision: str, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        assert repo_type == "dataset"
        assert "*.parquet" in allow_patterns
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", stand_in)
    monkeypatch.chdir(tmp_path)
    found = find_benchmark("Andrew613/PICABench", "main")
    assert len(load_benchmark(found)) == 3
    assert asked == [("Andrew613/PICABench", "main")]
    assert place_in_words("Andrew613/PICABench", "main", found) == f"Andrew613/PICABench@{COMMIT}"
    find_benchmark(f"hf://datasets/Andrew613/PICABench@{COMMIT}", None)
    assert asked[1] == ("Andrew613/PICABench", COMMIT)


def test_a_path_of_this_machine_comes_first_and_one_with_a_typo_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_benchmark(tmp_path / "data/bench", 2)
    monkeypatch.chdir(tmp_path)
    assert find_benchmark("data/bench", "main") == Path("data/bench")
    with pytest.raises(DatasetLayoutError, match=r"data/bnch does not exist.*hf download"):
        find_benchmark("data/bnch", "main")
    with pytest.raises(DatasetLayoutError, match="needs a revision"):
        find_benchmark("Andrew613/PICABench", None)


def test_the_subset_of_a_law_does_not_depend_on_the_rows_around_it(tmp_path: Path) -> None:
    items = load_benchmark(write_benchmark(tmp_path, 30))
    chosen = select(items, per_law=3)
    assert [item.index for item in chosen] == sorted(item.index for item in chosen)
    laws = [item.law for item in chosen]
    assert {law: laws.count(law) for law in laws} == {"Reflection": 3, "Causality": 3, "Global": 3}
    of_one_law = [item for item in reversed(items) if item.law == "Reflection"]
    alone = select(of_one_law, per_law=3)
    assert {item.index for item in alone} == {item.index for item in chosen if item.law == "Reflection"}
    assert {item.index for item in select(items, per_law=2)} < {item.index for item in chosen}
    assert select(items, per_law=1000) == items
    assert [item.index for item in shuffled(items)] == [item.index for item in shuffled(items[::-1])]
    assert [item.index for item in shuffled(items)] != [item.index for item in items]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Light_Propagation", "Light Propagation"),
        ("Light Source Effects", "Light Source Effects"),
        ("light_source_effect", "Light Source Effects"),
        ("Global", "Global State Transition"),
        ("Local", "Local State Transition"),
        ("Global_State_Transition", "Global State Transition"),
        ("Something_New", "Something New"),
    ],
)
def test_laws_are_shown_by_one_name_whatever_their_spelling(written: str, shown: str) -> None:
    assert law_name(written) == shown
    assert law_name(shown) == shown


def test_categories_and_operations_are_shown_by_one_name() -> None:
    assert len(LAWS) == 8
    assert [category_name(name) for name in ("State", "State_Transition", "Optics")] == [
        "State Transition", "State Transition", "Optics",
    ]  # fmt: skip
    assert [operation_name(name) for name in ("others", "colour", "remove")] == ["other", "color", "remove"]
