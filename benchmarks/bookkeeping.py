"""What a question costs besides the judge, and whether it stays so: 500 against 4,000 questions, answered at once.

    python -m benchmarks.bookkeeping                      a minute on one core; nothing is asked over the network

The judge is in the process and answers without looking. Counted is the CPU time of ``judge_folder``: reading pictures
of 64x64, five questions each, keeping every answer as it comes, and writing ``items.jsonl``; and of judging the same
folder again, when every answer is known. Rounds are in turns; a question's cost is the least of its rounds.
"""

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.results import Result, add_json_option, report, spread_of
from benchmarks.synthetic import InstantJudge, items_of, write_outputs
from physedit.eval_hooks.picabench.judging import ITEMS_FILE, JudgeSettings, judge_folder

COUNTS = (500, 4000)
QUESTIONS_OF_ITEM = 5
WORKERS = 8


def main() -> None:
    """Prints a line a round, and the growth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    asked = parser.parse_args()
    costs_us: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as work:
        for count in COUNTS:
            write_outputs(Path(work) / str(count), items_of(count // QUESTIONS_OF_ITEM, count), seed=0)
        for _ in range(asked.rounds):
            for count in COUNTS:
                folder = Path(work) / str(count)
                (folder / ITEMS_FILE).unlink(missing_ok=True)
                for what in ("asked", "known"):
                    cost_us = judged(folder, count)
                    costs_us.setdefault((what, count), []).append(cost_us)
                    print(f"{count} questions, {what}: {cost_us:.0f} us of CPU time a question", flush=True)
    report(results_of(costs_us), asked.json)


def judged(folder: Path, num_questions: int) -> float:
    """Returns the CPU microseconds of a question in one judging of the folder."""
    started = time.process_time()
    outcome = judge_folder(folder, InstantJudge(), settings=JudgeSettings(workers=WORKERS))
    assert outcome.num_scored == num_questions
    return 1e6 * (time.process_time() - started) / num_questions


def results_of(costs_us: dict[tuple[str, int], list[float]]) -> list[Result]:
    """Returns the cost of a question in the larger folder, and how much more that is than in the smaller."""
    few, many = COUNTS
    found = []
    for what, words in (("asked", "asked and kept"), ("known", "found answered")):
        growth = min(costs_us[what, many]) / min(costs_us[what, few])
        print(f"{words}: {growth:.2f} times the cost of a question of {few}")
        rounds = costs_us[what, many]
        found.append(
            Result(
                f"a question {words}, {many:,} in a folder", min(rounds), "us of CPU", "", spread_of(rounds, "rounds")
            )
        )
        found.append(Result(f"a question {words}, {many:,} over {few} in a folder", growth, "times", "<= 1.25"))
    return found


if __name__ == "__main__":
    main()
