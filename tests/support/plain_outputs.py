"""Outputs of an editor that is not ours, and ``physedit judge`` about them, in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.judge_server import NO, YES, Asked, JudgeServer, Reply
from tests.support.stand_ins import png

from physedit.train.cli import app
from physedit.train.guarded import guarded


def verb(*arguments: object) -> int:
    """Runs the verb in this process; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: app(args=["judge", *map(str, arguments)]))
    code = ended.value.code
    return code if isinstance(code, int) else int(code is not None)


def write_outputs(folder: Path) -> Path:
    """Writes six items of two laws with two questions each and returns the folder.

    Yes is right. They name no manifest and no known editor.
    """
    box = {"x": 0, "y": 0, "width": 512, "height": 512}
    items = []
    for index in range(6):
        for part, grey in (("in", 40), ("out", 42)):
            (folder / part).mkdir(parents=True, exist_ok=True)
            (folder / part / f"{index}.png").write_bytes(png(grey + 10 * index, 32, 48))
        items.append(
            {
                "index": index,
                "input_path": f"in/{index}.png",
                "output_path": f"out/{index}.png",
                "physics_category": "Optics" if index < 2 else "Mechanics",
                "physics_law": "Reflection" if index < 2 else "Causality",
                "edit_operation": "add",
                "annotated_qa_pairs": [
                    {"question": f"Is {index}.{number} right?", "answer": "Yes", "box": box} for number in range(2)
                ],
                "edit_area": [],
            }
        )
    (folder / "meta_info.json").write_text(json.dumps(items))
    return folder


def judge_at(server: JudgeServer, *more: str) -> tuple[str, ...]:
    """Returns the overrides of a judge on the server."""
    return ("judge.model=seer", f"judge.base_url={server.base_url}", "judge.patience_s=0.3", *more)


def wrong_about(*names: str) -> Callable[[Asked], Reply]:
    """Returns a judge that says no about the questions of these names, and yes about all others."""

    def reply(asked: Asked) -> Reply:
        return Reply(text=NO if any(f"Is {name} " in "".join(asked.texts) for name in names) else YES)

    return reply


def files_of(folder: Path) -> dict[str, bytes]:
    """Returns every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
