"""A folder of outputs with questions by number, a judge on the stand-in server, and what that says about which."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.judge_server import Asked, JudgeServer, Reply
from tests.support.stand_ins import png

from physedit.eval_hooks.judges.openai_compatible import OpenAICompatibleJudge


def write_folder(folder: Path, num_items: int, questions_each: int = 1) -> Path:
    """Writes outputs in the published layout; question N of item M reads ``Is M.N right?``, and yes is right."""
    items = []
    for index in range(num_items):
        name = f"output_img/{index:05d}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(index % 256, 32, 48))
        box = {"x": 0.0, "y": 0.0, "width": 512.0, "height": 512.0}
        pairs = [
            {"question": f"Is {index}.{number} right?", "answer": "Yes", "box": box} for number in range(questions_each)
        ]
        items.append({"index": index, "input_path": name, "output_path": name, "annotated_qa_pairs": pairs})
    (folder / "meta_info.json").write_text(json.dumps(items))
    return folder


def judge_of(server: JudgeServer, **settings: object) -> OpenAICompatibleJudge:
    defaults: dict[str, object] = {"model": "seer", "protocol": "strict", "concurrency": 4, "patience_s": 20.0}
    return OpenAICompatibleJudge(base_url=server.base_url, **(defaults | settings))  # type: ignore[arg-type]


def by_question(replies: dict[str, Reply]) -> Callable[[Asked], Reply]:
    """Answers a question as told, and any other with yes."""
    return lambda asked: next((reply for name, reply in replies.items() if f"Is {name} " in asked.texts[0]), Reply())


def mend(server: JudgeServer, always: Callable[[Asked], Reply] | Reply) -> None:
    """Lets the server answer otherwise from now on, and forget what it was asked."""
    server.always = always
    server.asked.clear()
