from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.support.stand_ins import png, write_benchmark

from physedit.data_loaders.sample import Box, DatasetLayoutError, DatasetRowError, Origin, PromptLevel
from physedit.eval_hooks.picabench.annotations import parse_edit_area, parse_questions
from physedit.eval_hooks.picabench.benchmark import benchmark_digest, check_benchmark, load_benchmark
from physedit.eval_hooks.picabench.judging import no_kind
from physedit.eval_hooks.picabench.subset import select

ORIGIN = Origin("bench.parquet", 3)
BOX = {"x": 1.0, "y": 2.0, "width": 3.0, "height": 4.0}
PAIR = {"question": "Is it?", "answer": "Yes", "box": BOX}


def test_items_are_read_in_row_order_with_all_three_prompts(tmp_path: Path) -> None:
    items = load_benchmark(write_benchmark(tmp_path, 5))
    assert [item.index for item in items] == [0, 1, 2, 3, 4]
    assert items[3].instruction(PromptLevel.INTERMEDIATE) == "Paint it red, number 3"
    assert (items[1].category, items[1].law, items[1].operation) == ("Mechanics", "Causality", "add")
    assert items[0].edit_area == (Box(4.0, 4.0, 3.0, 3.0),)
    assert items[2].edit_area == ()
    assert tuple(items[4].source.shape) == (3, 16, 16)
    assert int(items[4].source.max()) == 44
    assert [question.answer for question in items[0].questions] == ["Yes", "No"]


def test_targets_beside_the_file_are_attached_and_are_no_part_of_the_benchmark(tmp_path: Path) -> None:
    plain = write_benchmark(tmp_path / "plain", 3)
    with_targets = write_benchmark(tmp_path / "with", 3, targets=True)
    assert [item.target for item in load_benchmark(plain)] == [None, None, None]
    assert load_benchmark(with_targets)[1].target == png(101)
    assert benchmark_digest(plain) == benchmark_digest(with_targets)


@pytest.mark.parametrize("value", [None, [], "unknown"])
def test_an_absent_edit_area_means_the_whole_picture(value: object) -> None:
    assert parse_edit_area(value, ORIGIN) == ()


def test_an_edit_area_list_gives_its_rectangles() -> None:
    assert parse_edit_area([{**BOX, "id": "a", "order": 1}], ORIGIN) == (Box(1.0, 2.0, 3.0, 4.0),)


@pytest.mark.parametrize("value", ["somewhere", 7, [{"x": 1.0}]])
def test_another_edit_area_is_refused_with_its_row(value: object) -> None:
    with pytest.raises(DatasetRowError, match=r"bench\.parquet, row 3"):
        parse_edit_area(value, ORIGIN)


@pytest.mark.parametrize(
    "value",
    [
        [PAIR],
        [{**PAIR, "_step8_sanity": {"confidence": 0.9}}, {"question": "", "answer": "No", "box": BOX}, None],
        {"PhysEdit QA": [PAIR]},
        {"question": ["Is it?"], "answer": ["yes."], "box": [BOX]},
    ],
    ids=["list", "extra keys and blanks", "dict of lists", "dict of columns"],
)
def test_questions_are_read_in_every_published_form(value: object) -> None:
    (question,) = parse_questions(value, ORIGIN)
    assert (question.text, question.answer, question.box) == ("Is it?", "Yes", Box(1.0, 2.0, 3.0, 4.0))


def test_a_question_without_box_is_about_the_whole_picture() -> None:
    assert parse_questions([{**PAIR, "box": None}], ORIGIN)[0].box is None


def test_an_answer_that_is_neither_yes_nor_no_is_refused() -> None:
    with pytest.raises(DatasetRowError, match="maybe"):
        parse_questions([{**PAIR, "answer": "maybe"}], ORIGIN)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"physics_law": ["Reflection"], "prompt": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DatasetLayoutError, match="lacks the columns physics_category") as error:
        load_benchmark(tmp_path)
    assert "Found: physics_law, prompt" in str(error.value)


def test_a_missing_path_and_an_empty_folder_are_refused_with_the_remedy(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DatasetLayoutError, match="hf download"):
            load_benchmark(path)


def test_check_names_a_row_without_instruction_of_the_level(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, 3)
    (file,) = folder.glob("*.parquet")
    table = parquet.read_table(file)
    column = table.schema.get_field_index("explicit_prompt")
    parquet.write_table(table.set_column(column, "explicit_prompt", pa.array(["a", " ", "c"])), file)
    assert check_benchmark(folder, PromptLevel.SUPERFICIAL, no_kind) == 3
    with pytest.raises(DatasetRowError, match="row 1 has no explicit instruction"):
        check_benchmark(folder, PromptLevel.EXPLICIT, no_kind)


def test_a_limit_spreads_over_the_rows(tmp_path: Path) -> None:
    items = load_benchmark(write_benchmark(tmp_path, 9))
    assert [item.index for item in select(items, limit=3)] == [0, 3, 6]
    assert select(items) == items
