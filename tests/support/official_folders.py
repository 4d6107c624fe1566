"""Folders of outputs in the published layout, with a judge that says what the question's own words tell it to."""

import json
from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from torch import Tensor

from physedit.eval_hooks.judges.judge import JudgeQuestion, Verdict
from physedit.eval_hooks.judges.protocols import OfficialProtocol
from physedit.eval_hooks.picabench.judging import judge_folder
from physedit.eval_hooks.picabench.measure import MeasuringRules, measure_folder
from physedit.eval_hooks.picabench.official import write_official_files
from physedit.eval_hooks.picabench.official_notes import notes_of

BOX = {"x": 100, "y": 50, "width": 200, "height": 160}
PLAIN: Mapping[str, object] = {
    "physics_category": "Optics",
    "physics_law": "Reflection",
    "edit_operation": "add",
    "edit_area": None,
}


class SayingJudge:
    """Says of every question what the question's own words end with, by the official protocol."""

    judge_id, note, num_askers = "saying", "A stand-in that repeats.", 1
    usage: Mapping[str, object] = {}

    def __init__(self) -> None:
        self.protocol = OfficialProtocol()

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        assert self.protocol.shown(image, question.box)
        return self.protocol.parse(question.text.split(": ", 1)[1])


def pair(says: str, answer: object = "Yes", **more: object) -> dict[str, object]:
    """Returns a question to which the judge says ``says``."""
    return {"question": f"Say this: {says}", "answer": answer, "box": BOX, **more}


def picture(folder: Path, name: str, level: int, size: tuple[int, int] = (64, 48)) -> str:
    """Writes a grey picture and returns its name."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level,) * 3).save(path, quality=95)
    return name


def write(folder: Path, *items: Mapping[str, object]) -> Path:
    """Writes items; input 100 and output 110, 64x48 each, unless an item says otherwise."""
    records = []
    for index, item in enumerate(items):
        paths = {
            "input_path": picture(folder, f"input_img/{index}.png", 100),
            "output_path": picture(folder, f"output_img/{index}.png", 110),
        }
        records.append({"index": index, **PLAIN, **paths, **item})
    (folder / "meta_info.json").write_text(json.dumps(records))
    return folder


def evaluate(folder: Path) -> dict[str, dict[str, object]]:
    """Judges and measures officially; returns the published files by name."""
    judge_folder(folder, SayingJudge())
    measure_folder(folder, rules=MeasuringRules.OFFICIAL)
    write_official_files(folder)
    names = ("analysis", "psnr_analysis", "psnr_analysis_512")
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in names}


def told(folder: Path, words: str) -> str:
    """Returns the one note that has these words."""
    (found,) = [note for note in notes_of(folder) if words in note]
    return found
