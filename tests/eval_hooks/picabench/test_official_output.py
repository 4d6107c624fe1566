"""The answers as the leaderboard takes them: analysis.json is what the published arithmetic makes of output.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.stand_ins import png
from torch import Tensor

from physedit.eval_hooks.judges.judge import JudgeQuestion, JudgeUnavailable, Verdict
from physedit.eval_hooks.judges.protocols import JudgeProtocol, OfficialProtocol, StrictProtocol
from physedit.eval_hooks.judges.verdicts import failed_call, unsent
from physedit.eval_hooks.picabench.judging import JudgeSettings, judge_folder
from physedit.eval_hooks.picabench.measure import MeasuringRules, measure_folder
from physedit.eval_hooks.picabench.official import write_official_files
from physedit.eval_hooks.picabench.official_output import ADDED_KEYS

BOX = {"x": 100, "y": 100, "width": 200, "height": 200}


@dataclass
class SayingJudge:
    """Says what its question asks it to say: a question is the reply to it, or fails, or the judge leaves."""

    protocol: JudgeProtocol = field(default_factory=OfficialProtocol)
    judge_id: str = "saying-judge"
    note: str = "It repeats the question."
    num_askers: int = 1
    usage: Mapping[str, object] = field(default_factory=dict)

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        if question.text == "fails":
            return failed_call("HTTP 500", self.protocol)
        if question.text == "leaves":
            raise JudgeUnavailable("no connection")
        if self.protocol.shown(image, question.box) is None:
            return unsent(image, question.box)
        return self.protocol.parse(question.text)


def pair(question: str, answer: str = "Yes", **more: object) -> dict[str, object]:
    return {"question": question, "answer": answer, "box": BOX, **more}


ITEMS = [
    {
        "physics_law": "Reflection",
        "annotated_qa_pairs": [
            pair('{"answer": "Yes", "explanation": "it is there"}', keep="me"),
            {"question": "", "answer": "Yes"},
            pair("No.", error="of an earlier run", visualization_path="old.jpg", model_answer="Yes"),
            pair("Not sure"),
        ],
    },
    {
        "physics_law": "Global",
        "annotated_qa_pairs": {"Physics QA": [pair("Yes"), pair("fails")], "Editing QA": [pair("no idea", "No")]},
    },
    {"physics_law": "Global", "annotated_qa_pairs": {"question": ["Yes"], "answer": ["No"], "box": [None]}},
    {"physics_law": "Local", "annotated_qa_pairs": [pair("Yes", is_correct=True)], "output_path": None},
    {"physics_law": "Local", "annotated_qa_pairs": None},
]


def write_folder(folder: Path, items: list[dict[str, object]]) -> Path:
    for name in ("input_img", "output_img"):
        (folder / name).mkdir(parents=True)
        for place in range(len(items)):
            (folder / name / f"{place}.png").write_bytes(png(80, 32, 48))
    labels = {"physics_category": "Optics", "edit_operation": "add"}
    paths = [{"input_path": f"input_img/{i}.png", "output_path": f"output_img/{i}.png"} for i in range(len(items))]
    records = [{"index": i, **labels, **paths[i], **item} for i, item in enumerate(items)]
    (folder / "meta_info.json").write_text(json.dumps(records))
    return folder


def judged(folder: Path, judge: SayingJudge) -> tuple[list[dict[str, object]], dict[str, object]]:
    """Returns output.json and analysis.json."""
    judge_folder(folder, judge, kind_of=lambda _text: None, settings=JudgeSettings(1, 0.9))
    is_official = judge.protocol.name == "official"
    measure_folder(folder, rules=MeasuringRules.OFFICIAL if is_official else MeasuringRules.STRICT)
    write_official_files(folder)
    return json.loads((folder / "output.json").read_text()), json.loads((folder / "analysis.json").read_text())


def published_accuracies(items: list[dict[str, object]]) -> tuple[float, int, int]:
    """Returns overall accuracy, samples and questions by the arithmetic of PicaEval_gpt.py, written down once more."""
    total, samples, questions = 0.0, 0, 0
    for item in items:
        container = item.get("annotated_qa_pairs") or []
        groups = container.values() if isinstance(container, dict) else [container]
        marks = [bool(qa["is_correct"]) for group in groups for qa in group if "is_correct" in qa]
        if marks:
            total, samples, questions = total + sum(marks) / len(marks), samples + 1, questions + len(marks)
    return 100.0 * total / samples, samples, questions


def test_every_pair_that_was_asked_has_the_published_fields(tmp_path: Path) -> None:
    output, analysis = judged(write_folder(tmp_path / "edits", ITEMS), SayingJudge())
    first, skipped, second, third = output[0]["annotated_qa_pairs"]
    folder = "visualization_annotated_qa_crop_box_and_resize"
    assert first == {
        **ITEMS[0]["annotated_qa_pairs"][0],
        "model_answer": "Yes",
        "model_response": '{"answer": "Yes", "explanation": "it is there"}',
        "model_explanation": "it is there",
        "is_correct": True,
        "visualization_path": f"{folder}/0000_annotated_qa_000_crop_box_and_resize.jpg",
        "viz_mode": "crop_box_and_resize",
    }
    assert skipped == {"question": "", "answer": "Yes"}
    assert "error" not in second
    assert second["visualization_path"] == f"{folder}/0000_annotated_qa_002_crop_box_and_resize.jpg"
    assert (third["model_answer"], third["is_correct"]) == ("No", False)
    groups = output[1]["annotated_qa_pairs"]
    failed, other = groups["Physics QA"][1], groups["Editing QA"][0]
    assert (failed["model_answer"], failed["is_correct"], failed["error"]) == ("Error: all", False, "HTTP 500")
    assert other["visualization_path"] == f"{folder}/0001_Editing_qa_000_crop_box_and_resize.jpg"
    assert output[2]["annotated_qa_pairs"][0].keys().isdisjoint({"visualization_path", "viz_mode"})
    assert output[3] == json.loads((tmp_path / "edits/meta_info.json").read_text())[3]
    assert (analysis["overall_accuracy"], analysis["sample_count"], analysis["qa_total"]) == published_accuracies(
        output
    )


def test_a_question_that_is_not_scored_has_no_mark(tmp_path: Path) -> None:
    items = [{"physics_law": "Local", "annotated_qa_pairs": [pair("Yes"), pair("leaves", is_correct=True)]}]
    output, analysis = judged(write_folder(tmp_path / "edits", items), SayingJudge())
    answered, unanswered = output[0]["annotated_qa_pairs"]
    assert answered["is_correct"] is True
    assert unanswered.keys().isdisjoint(ADDED_KEYS)
    assert (analysis["overall_accuracy"], analysis["sample_count"], analysis["qa_total"]) == published_accuracies(
        output
    )
    assert analysis["qa_total"] == 1


@pytest.mark.parametrize("replies", [["Yes", "hm", "No"], ["hm", "Yes", "Yes"]])
def test_by_the_strict_protocol_what_is_no_answer_has_words_and_no_mark(tmp_path: Path, replies: list[str]) -> None:
    items = [{"physics_law": "Local", "annotated_qa_pairs": [pair(reply) for reply in replies]}]
    output, analysis = judged(write_folder(tmp_path / "edits", items), SayingJudge(StrictProtocol()))
    (unanswered,) = (qa for qa in output[0]["annotated_qa_pairs"] if qa["question"] == "hm")
    assert (unanswered["model_answer"], unanswered["model_response"]) == ("Unparsed", "hm")
    assert "is_correct" not in unanswered
    assert (analysis["overall_accuracy"], analysis["sample_count"], analysis["qa_total"]) == published_accuracies(
        output
    )
