"""How long a slow judge takes: 200 questions at 1 s each, 50 at a time, against the ideal 4 s.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/judge.py        two cores, half a minute; the judge is another process
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.results import Result, add_json_option, report, spread_of
from physedit.eval_hooks.judges.openai_compatible import OpenAICompatibleJudge
from physedit.eval_hooks.picabench.judging import judge_folder

SERVER = Path(__file__).resolve().parents[1] / "tests" / "support" / "judge_server.py"
WIDTH, HEIGHT = 1024, 683
QUESTIONS_OF_ITEM = 4
"""PICABench's items have 4.57 on average."""


def main() -> None:
    """Prints a line a round: seconds, and how often the ideal they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds to every answer")
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    asked = parser.parse_args()
    ratios: list[float] = []
    ideal_s = -(-asked.questions // asked.concurrency) * asked.latency
    command = [sys.executable, str(SERVER), "--latency", str(asked.latency)]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None
        base_url = server.stdout.readline().strip()
        write_outputs(Path(folder), asked.questions)
        try:
            for _ in range(asked.rounds):
                judge = OpenAICompatibleJudge(
                    model="judge", base_url=base_url, api="responses", concurrency=asked.concurrency
                )
                started = time.monotonic()
                outcome = judge_folder(Path(folder), judge)
                seconds = time.monotonic() - started
                assert outcome.num_scored == asked.questions
                ratios.append(seconds / ideal_s)
                print(f"{asked.questions} questions: {seconds:.2f} s, {ratios[-1]:.2f} of the ideal {ideal_s:g} s")
                (Path(folder) / "items.jsonl").unlink()
        finally:
            server.terminate()
    name = f"{asked.questions} questions, {asked.concurrency} at once, {asked.latency:g} s each, over the ideal time"
    spread = spread_of(ratios, "rounds")
    report([Result(name, statistics.median(ratios), "", "<= 1.25", spread)], asked.json)


def write_outputs(folder: Path, num_questions: int) -> None:
    """Writes outputs of 1024 x 683 pixels in the published layout."""
    draw = np.random.default_rng(0)
    items = []
    for index in range(-(-num_questions // QUESTIONS_OF_ITEM)):
        picture = Image.fromarray(draw.integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3), dtype=np.uint8))
        name = f"output_img/{index:05d}.png"
        (folder / name).parent.mkdir(exist_ok=True)
        picture.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(folder / name)
        boxes = [
            {"x": float(draw.uniform(0, 700)), "y": float(draw.uniform(0, 400)), "width": 250.0, "height": 200.0}
            for _ in range(QUESTIONS_OF_ITEM)
        ]
        first = index * QUESTIONS_OF_ITEM
        items.append(
            {
                "index": index,
                "input_path": name,
                "output_path": name,
                "annotated_qa_pairs": [
                    {"question": f"Is detail {number} right?", "answer": "Yes", "box": box}
                    for number, box in enumerate(boxes, start=first)
                    if number < num_questions
                ],
            }
        )
    (folder / "meta_info.json").write_text(json.dumps(items))


if __name__ == "__main__":
    main()
