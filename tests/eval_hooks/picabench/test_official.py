"""A folder of odd shapes, judged and measured officially: values follow from the published scripts' rules."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support.judge_server import NO, Asked, Reply, failing, judge_server
from tests.support.official_folders import BOX, SayingJudge, evaluate, pair, picture, told, write
from tests.support.stand_ins import read_items

from physedit.data_loaders.images import read_rgb
from physedit.data_loaders.sample import DatasetRowError
from physedit.eval_hooks.judges.openai_compatible import OpenAICompatibleJudge
from physedit.eval_hooks.judges.protocols import OfficialProtocol
from physedit.eval_hooks.picabench.annotations import Reading
from physedit.eval_hooks.picabench.folder import read_meta_info
from physedit.eval_hooks.picabench.judging import JudgeSettings, judge_folder
from physedit.eval_hooks.picabench.measure import MeasuringRules, measure_folder, measured_rows
from physedit.eval_hooks.picabench.official import write_official_files


def test_accuracies_are_means_over_items_in_every_breakdown(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"annotated_qa_pairs": [pair("Yes"), pair("No"), pair("Yes")]},  # 2 of 3
        {
            "annotated_qa_pairs": {"A QA": [pair("no", "No.")], "B QA": [pair("maybe")]},
            "edit_operation": "move",
        },  # 1 of 2
        {"annotated_qa_pairs": [pair("Yes")], "physics_law": "Refraction"},  # 1 of 1
        {"annotated_qa_pairs": [], "physics_law": "Global"},  # asks nothing
        {"annotated_qa_pairs": [pair("", "unknown")], "physics_category": None, "edit_operation": 3},  # right
    )
    analysis = evaluate(tmp_path)["analysis"]
    reflection = 100.0 * (2 / 3 + 1 / 2) / 2
    assert analysis == {
        "overall_accuracy": 100.0 * (2 / 3 + 1 / 2 + 1 + 1) / 4,
        "sample_count": 4,
        "qa_total": 7,
        "by_category": {
            "Optics": {"accuracy": 100.0 * (2 / 3 + 1 / 2 + 1) / 3, "sample_count": 3, "qa_total": 6},
            "null": {"accuracy": 100.0, "sample_count": 1, "qa_total": 1},
        },
        "by_law": {
            "Reflection": {"accuracy": pytest.approx((reflection * 2 + 100) / 3), "sample_count": 3, "qa_total": 6},
            "Refraction": {"accuracy": 100.0, "sample_count": 1, "qa_total": 1},
        },
        "by_operation": {
            "add": {"accuracy": 100.0 * (2 / 3 + 1) / 2, "sample_count": 2, "qa_total": 4},
            "move": {"accuracy": 50.0, "sample_count": 1, "qa_total": 2},
            "3": {"accuracy": 100.0, "sample_count": 1, "qa_total": 1},
        },
    }
    assert "1 questions have a reference other than yes or no" in told(tmp_path, "reference")
    assert "1 replies without a yes or no count as wrong (1 unparsed, 0 refused)" in told(tmp_path, "replies")


def test_values_of_an_earlier_run_count_where_nothing_is_asked(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "annotated_qa_pairs": [pair("Yes", is_correct=False), pair("No", None, is_correct=True)],
            "qa_pairs": [pair("No", is_correct=False), pair("No")],
        },
        {"output_path": None, "annotated_qa_pairs": [pair("Yes", is_correct=True)]},
        {"output_path": None, "annotated_qa_pairs": [pair("Yes")]},
    )
    analysis = evaluate(tmp_path)["analysis"]
    assert (analysis["sample_count"], analysis["qa_total"]) == (2, 4)
    assert analysis["overall_accuracy"] == 100.0 * (2 / 3 + 1) / 2
    assert "3 values is_correct of an earlier run" in told(tmp_path, "earlier run")
    assert "2 of 3 items have no output" in told(tmp_path, "no output")
    assert "1 pairs lack a question or an answer" in told(tmp_path, "lack")


def test_p04_officially_a_corrupt_output_and_a_failed_call_are_wrong_answers_and_that_is_said(tmp_path: Path) -> None:
    write(tmp_path, *({"annotated_qa_pairs": [pair(f"{index}", "No")]} for index in range(10)))
    (tmp_path / "output_img/3.png").write_bytes(b"no picture")
    with judge_server(always=_fails_on_seven) as server:
        judge = OpenAICompatibleJudge(
            model="m", base_url=server.base_url, api="responses", concurrency=1, patience_s=0.1, max_failures=1
        )
        judge_folder(tmp_path, judge)
    measure_folder(tmp_path, rules=MeasuringRules.OFFICIAL)
    write_official_files(tmp_path)
    rows = read_items(tmp_path)
    assert [row["correct"] for row in rows] == [index != 7 for index in range(10)]
    assert (rows[7]["verdict"], rows[7]["answer"]) == ("error", "Error: all")
    white = [asked.picture for asked in server.asked if asked.texts[0].startswith("Say this: 3")]
    assert white == [OfficialProtocol().shown(None, None)]
    assert json.loads((tmp_path / "analysis.json").read_text())["overall_accuracy"] == 90.0
    assert "1 outputs are missing or cannot be read: the published script asks 1" in told(tmp_path, "white picture")
    assert "1 of which count as right" in told(tmp_path, "white picture")
    assert "1 questions whose call failed" in told(tmp_path, "call failed")


def test_p04_strictly_both_are_errors_and_nothing_is_sent_for_the_corrupt_one(tmp_path: Path) -> None:
    write(tmp_path, *({"annotated_qa_pairs": [pair(f"{index}", "No")]} for index in range(10)))
    (tmp_path / "output_img/3.png").write_bytes(b"no picture")
    with judge_server(always=_fails_on_seven) as server:
        judge = OpenAICompatibleJudge(
            model="m", base_url=server.base_url, protocol="strict", concurrency=1, patience_s=0.1, max_failures=1
        )
        judge_folder(tmp_path, judge, settings=JudgeSettings(max_unanswered_share=0.5))
    rows = read_items(tmp_path)
    assert [row["verdict"] for row in rows] == ["error" if index in (3, 7) else "no" for index in range(10)]
    assert [row["correct"] for row in rows] == [None if index in (3, 7) else True for index in range(10)]
    assert not any(asked.texts[0].startswith("Say this: 3") for asked in server.asked)


def _fails_on_seven(asked: Asked) -> Reply:
    return failing(500) if asked.texts[0].startswith("Say this: 7") else Reply(NO)


def test_boxes_that_show_something_else_are_counted(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"annotated_qa_pairs": [pair("Yes"), pair("Yes", box=None), pair("Yes", box={**BOX, "x": 2000})]},
        {"annotated_qa_pairs": [{"question": "Say this: Yes", "answer": "Yes"}, pair("No", box={"x": "1"})]},
        {"output_path": picture(tmp_path, "output_img/wide.png", 110, (64, 32)), "annotated_qa_pairs": [pair("Yes")]},
    )
    evaluate(tmp_path)
    assert "3 of 6 questions have a box that cannot be cropped" in told(tmp_path, "cannot be cropped")
    assert "1 questions have no box" in told(tmp_path, "no box")
    assert "1 outputs have other proportions" in told(tmp_path, "proportions")


P10_AREAS: dict[str, object] = {
    "list": [{"x": 0, "y": 0, "width": 31, "height": 47, "id": "a", "order": 1}],
    "empty": [],
    "unknown": "unknown",
    "other text": "everywhere",
}


def test_p10_an_edit_area_is_a_list_or_the_whole_picture_or_drops_the_item(tmp_path: Path) -> None:
    write(tmp_path, *({"edit_area": area} for area in P10_AREAS.values()))
    for index in range(4):  # the left half, columns 0 to 31, is 50 apart and the right half 10
        halves = np.full((48, 64, 3), 110, np.uint8)
        halves[:, :32] = 150
        Image.fromarray(halves).save(tmp_path / f"output_img/{index}.png")
    psnr = evaluate(tmp_path)["psnr_analysis"]
    outside, whole = 20 * math.log10(255 / 10), 10 * math.log10(255**2 / ((50**2 + 10**2) / 2))
    rows = measured_rows(tmp_path)
    assert [row["psnr_db"] for row in rows] == pytest.approx([outside, whole, whole, None], abs=1e-9)
    assert [row["fault"] for row in rows] == [None, None, None, "edit_area is the text 'everywhere'"]
    assert psnr["total_items"] == 4
    assert psnr["evaluation_type"] == "non_edited_region"
    assert psnr["overall_statistics"] == pytest.approx(
        {
            "count": 3,
            "mean": (outside + 2 * whole) / 3,
            "std": math.sqrt(2) / 3 * (outside - whole),
            "min": whole,
            "max": outside,
            "median": whole,
        }
    )
    assert "1 because edit_area is the text 'everywhere'" in told(tmp_path, "not defined for 1 of 4")
    with pytest.raises(DatasetRowError, match="everywhere"):
        read_meta_info(tmp_path, Reading.STRICT)


def test_groups_without_a_value_are_there_with_nulls(tmp_path: Path) -> None:
    everything = [{"x": 0, "y": 0, "width": 64, "height": 48}]
    write(tmp_path, {"edit_area": everything, "physics_law": "Global"}, {"output_path": "output_img/nowhere.png"})
    found = evaluate(tmp_path)
    nothing = {"count": 0, "mean": None, "std": None}
    for name in ("psnr_analysis", "psnr_analysis_512"):
        assert found[name]["physics_law_statistics"] == {"Global": nothing, "Reflection": nothing}
        assert found[name]["physics_category_statistics"] == {"Optics": nothing}
        assert found[name]["overall_statistics"] == {**nothing, "min": None, "max": None, "median": None}
    assert found["analysis"]["overall_accuracy"] == 0.0


def test_p02_the_number_of_scaled_outputs_is_reported(tmp_path: Path) -> None:
    sizes = [(64, 48), (32, 24), (66, 48)]
    outputs = [picture(tmp_path, f"output_img/of_{width}.png", 110, (width, height)) for width, height in sizes]
    write(tmp_path, *({"output_path": output} for output in outputs))
    evaluate(tmp_path)
    assert [row["was_resized"] for row in measured_rows(tmp_path)] == [False, True, True]
    # The published evaluator scales in float32, and so does this.
    assert [row["psnr_db"] for row in measured_rows(tmp_path)] == pytest.approx([20 * math.log10(25.5)] * 3, abs=1e-4)
    assert told(tmp_path, "scaled for the PSNR").startswith("2 edited pictures had another size")


def test_p01_the_frame_of_each_box_is_stated(tmp_path: Path) -> None:
    write(tmp_path, {"annotated_qa_pairs": [pair("Yes")], "edit_area": [{"x": 0, "y": 0, "width": 4, "height": 4}]})
    evaluate(tmp_path)
    assert "edit areas in the stored input's own pixels" in told(tmp_path, "Boxes of questions lie in the frame")
    assert "1 inputs with an edit area have a long side other than 1024" in told(tmp_path, "masks the wrong places")
    measure_folder(tmp_path, rules=MeasuringRules.STRICT)
    assert "in the frame in which the input's long side is 1024" in told(
        tmp_path, "Boxes of questions lie in the frame"
    )
    assert "scaled from that frame to the stored input" in told(tmp_path, "1 inputs have a long side other")


def test_strictly_edit_areas_are_scaled_from_the_frame_of_1024_to_the_stored_input(tmp_path: Path) -> None:
    # The frame is 16 times the input: columns 0 to 511 of it are columns 0 to 31 of the input.
    write(tmp_path, {"edit_area": [{"x": 0, "y": 0, "width": 511, "height": 767}]})
    halves = np.full((48, 64, 3), 110, np.uint8)
    halves[:, :32] = 150
    Image.fromarray(halves).save(tmp_path / "output_img/0.png")
    for rules, expected in (
        (MeasuringRules.STRICT, 20 * math.log10(25.5)),
        (MeasuringRules.OFFICIAL, None),
        (MeasuringRules.PLAIN, None),
    ):
        measure_folder(tmp_path, rules=rules)
        (row,) = measured_rows(tmp_path)
        assert row["psnr_db"] == (None if expected is None else pytest.approx(expected))
        assert row["area_scale"] == (64 / 1024 if rules is MeasuringRules.STRICT else 1.0)


def test_p08_the_input_on_disk_is_what_is_compared_with_and_its_distance_from_the_original_is_known(
    tmp_path: Path,
) -> None:
    original = np.random.default_rng(3).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    write(tmp_path, {"input_path": "input_img/0.jpg"})
    Image.fromarray(original).save(tmp_path / "original.png")
    Image.fromarray(original).save(tmp_path / "input_img/0.jpg", quality=95)
    Image.fromarray(original).save(tmp_path / "output_img/0.png")
    judge_folder(tmp_path, SayingJudge())
    measure_folder(
        tmp_path, rules=MeasuringRules.OFFICIAL, original_of=lambda _item: read_rgb(tmp_path / "original.png")
    )
    (row,) = measured_rows(tmp_path)
    assert row["input_format"] == "JPEG"
    assert row["psnr_db"] == row["input_to_original_db"]
    assert row["psnr_db"] < 100  # type: ignore[operator]
    note = told(tmp_path, "stored in the folder, not with their originals; 1 are lossy")
    assert f"{row['psnr_db']:.2f} dB from their originals" in note
    measure_folder(tmp_path, rules=MeasuringRules.OFFICIAL)
    assert "by how much is not known" in told(tmp_path, "stored in the folder")
