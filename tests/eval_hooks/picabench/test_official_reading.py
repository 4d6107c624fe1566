"""How ``meta_info.json`` of every shape is read: officially as the published scripts read it, strictly with a name."""

import json
import math
from pathlib import Path

import pytest
from tests.support.judge_server import YES
from tests.support.official_folders import BOX, evaluate, pair, picture, write
from tests.support.stand_ins import read_items

from physedit.data_loaders.sample import Box, DatasetLayoutError
from physedit.eval_hooks.picabench.annotations import Reading
from physedit.eval_hooks.picabench.folder import read_all_items, read_meta_info
from physedit.eval_hooks.picabench.measure import measured_rows, read_records


def test_outputs_are_found_by_the_published_rules(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    write(
        folder,
        {"output_path": f"bench/{picture(folder, 'output_img/prefixed.png', 110)}"},
        {"output_path": str(folder / picture(folder, "output_img/absolute.png", 110))},
        {"output_path": "", "output_image_path": picture(folder, "output_img/second.png", 110)},
        {"output_path": None, "output_img_path": picture(folder, "output_img/third.png", 110)},
        {"output_path": None},
    )
    items = read_all_items(folder, Reading.OFFICIAL)
    assert [Path(item.output_path).name for item in items] == [
        "prefixed.png",
        "absolute.png",
        "second.png",
        "third.png",
        "",
    ]
    assert all((folder / item.output_path).is_file() for item in items[:4])
    assert len(read_meta_info(folder, Reading.OFFICIAL)) == 4
    evaluate(folder)
    # The PSNR script opens output_path just as it stands, and so neither finds the first nor opens the empty third.
    assert [row["psnr_db"] is None for row in measured_rows(folder)] == [True, False, True, False]
    assert [row["judged_size"] for row in measured_rows(folder)] == [[64, 48]] * 4
    with pytest.raises(DatasetLayoutError, match="An item without output cannot be scored"):
        read_meta_info(folder, Reading.STRICT)


QUESTIONS: dict[str, tuple[object, list[Box | None]]] = {
    "list": ([pair("Yes"), {"question": "", "answer": "No"}], [Box(100, 50, 200, 160)]),
    "dict of lists": ({"A": [pair("Yes")], "B": [pair("No")]}, [Box(100, 50, 200, 160)] * 2),
    "groups named as columns are": (
        {"question": [pair("Yes")], "answer": [pair("No")], "box": []},
        [Box(100, 50, 200, 160)] * 2,
    ),
    "slash in the group's name": ({"A/B": [pair("Yes")]}, [None]),
    "group's name as long as a file's may be": ({"A" * 222: [pair("Yes")]}, [Box(100, 50, 200, 160)]),
    "longer": ({"A" * 223: [pair("Yes")]}, [None]),
    "zero byte in the group's name": ({"A\0": [pair("Yes")]}, [None]),
    "half a character in the group's name": ({"A\ud83d": [pair("Yes")]}, [None]),
    "null": (None, []),
    "text": ("none", []),
    "no box": ([{"question": "Q", "answer": "Yes"}], [Box(0, 0, 0, 0)]),
    "null box": ([pair("Yes", box=None)], [None]),
    "part of a box": ([pair("Yes", box={"x": 7})], [Box(7, 0, 0, 0)]),
    "text in a box": ([pair("Yes", box={**BOX, "x": "7"})], [None]),
    "list for a box": ([pair("Yes", box=[1, 2, 3, 4])], [None]),
    "infinite width": ([pair("Yes", box={**BOX, "width": math.inf})], [Box(100, 50, 1e9, 160)]),
    "infinite start": ([pair("Yes", box={**BOX, "x": math.inf})], [None]),
    "infinite start, no width": ([pair("Yes", box={**BOX, "x": math.inf, "width": math.nan})], [None]),
    "infinite start back to nowhere": ([pair("Yes", box={**BOX, "x": math.inf, "width": -math.inf})], [None]),
    "no width": ([pair("Yes", box={**BOX, "width": math.nan})], [Box(100, 50, 1e9, 160)]),
    "no height, far above": ([pair("Yes", box={**BOX, "y": -1e9, "height": math.nan})], [Box(100, 0, 200, 1e9)]),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_of_every_shape_are_read_as_the_published_script_reads_them(tmp_path: Path, name: str) -> None:
    value, boxes = QUESTIONS[name]
    write(tmp_path, {"annotated_qa_pairs": value})
    (item,) = read_meta_info(tmp_path, Reading.OFFICIAL)
    assert [question.box for question in item.questions] == boxes


def test_a_question_or_reference_that_is_no_text_is_wrong_and_not_sent(tmp_path: Path) -> None:
    write(tmp_path, {"annotated_qa_pairs": [pair("yes", True), {"question": 17, "answer": "Error"}, pair("Yes")]})
    analysis = evaluate(tmp_path)["analysis"]
    assert (analysis["overall_accuracy"], analysis["qa_total"]) == (100.0 * (1 / 3), 3)
    assert [row["answer"] for row in read_items(tmp_path)] == ["Error", "Error", "Yes"]
    (output,) = json.loads((tmp_path / "output.json").read_text())
    assert ["visualization_path" in each for each in output["annotated_qa_pairs"]] == [False, False, True]


def test_repeated_and_missing_indices_are_numbered_anew_officially_and_refused_strictly(tmp_path: Path) -> None:
    write(tmp_path, {"index": 4}, {"index": 4})
    assert [item.index for item in read_all_items(tmp_path, Reading.OFFICIAL)] == [0, 1]
    with pytest.raises(DatasetLayoutError, match="the index 4 is there 2 times"):
        read_meta_info(tmp_path, Reading.STRICT)


def test_records_and_official_files_agree(tmp_path: Path) -> None:
    write(tmp_path, {"annotated_qa_pairs": [pair("Yes"), pair(YES), pair("Not so", "No")]})
    analysis = evaluate(tmp_path)["analysis"]
    (record,) = read_records(tmp_path)
    assert [answer.correct for answer in record.answers] == [True, True, True]
    assert analysis["overall_accuracy"] == 100.0
    assert record.psnr_db == pytest.approx(20 * math.log10(25.5))
    assert record.psnr_512_db == pytest.approx(20 * math.log10(25.5))


def test_a_path_that_ends_as_a_folders_does_is_judged_and_not_measured(tmp_path: Path) -> None:
    endings = [("input_path", "/"), ("input_path", "/."), ("output_path", "/"), ("output_path", "/.")]
    items = [{key: picture(tmp_path, f"{row}.png", 110) + end} for row, (key, end) in enumerate(endings)]
    write(tmp_path, *({**item, "annotated_qa_pairs": [pair("Yes")]} for item in items))
    found = evaluate(tmp_path)
    assert found["analysis"]["qa_total"] == 4
    assert [row["judged_size"] for row in measured_rows(tmp_path)] == [[64, 48]] * 4
    assert found["psnr_analysis"]["overall_statistics"]["count"] == 0  # type: ignore[index]


def test_a_folder_for_an_output_is_an_output_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path, {"output_path": "output_img", "annotated_qa_pairs": [pair("No", "No")]})
    found = evaluate(tmp_path)
    assert found["analysis"]["overall_accuracy"] == 100.0
    assert found["psnr_analysis"]["overall_statistics"]["count"] == 0  # type: ignore[index]
