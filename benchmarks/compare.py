"""What comparing runs costs, and how it grows: 5, 50 and 200 run folders, and five with evaluations of 900 items.

    python -m benchmarks.compare                          three minutes on one core

The folders are written by the project's own writers, without an editor: pictures of noise, answers by lot. Ten runs
are evaluated; the others are links to their evaluations, with settings of their own. Seconds are of
``physedit compare`` with its page, from the start of the process to its end. Growth is of CPU time in one process that
has compared before, so that imports do not count: what a further run costs from 50 to 200 over what it costs from 5 to
50. With more than 16 runs only the first is tested against each, so that a further run is one more test.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import Result, add_json_option, report, spread_of
from benchmarks.synthetic import HOOK, STEP, InstantJudge, items_of, link_run, write_run, write_side
from benchmarks.synthetic import report as write_evaluation
from physedit.train.comparing import CompareRequest, compare

NUM_RUNS = (5, 50, 200)
ITEMS, QUESTIONS = 40, 160
ALL_ITEMS, ALL_QUESTIONS = 900, 4112
"""PICABench's."""
DIFFERENT = 10


def main() -> None:
    """Prints a line for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        small = runs_in(work / "small", NUM_RUNS[-1], ITEMS, QUESTIONS, DIFFERENT)
        results = [
            compared(small[:count], work / "out", asked.rounds, f"{ITEMS} items and {QUESTIONS} questions")
            for count in NUM_RUNS
        ]
        results += growth(small, work / "out", asked.rounds)
        results += whole_evaluations(work, asked.rounds)
    report(results, asked.json)


def runs_in(root: Path, count: int, num_items: int, num_questions: int, different: int) -> list[Path]:
    """Writes ``count`` runs, of which ``different`` are evaluated, and returns their folders."""
    items = items_of(num_items, num_questions)
    folders = [root / f"run_{number:03d}" for number in range(count)]
    started = time.monotonic()
    for seed, folder in enumerate(folders):
        if seed < different:
            write_run(folder, items, seed=seed, base_of=folders[0] if seed else None)
        else:
            link_run(folders[seed % different], folder, seed=seed)
    print(f"{count} runs of {num_items} items written in {time.monotonic() - started:.1f} s", flush=True)
    return folders


def compared(folders: list[Path], out: Path, rounds: int, size: str) -> Result:
    """Compares runs by the command, and returns the seconds of the fastest round."""
    command = [str(Path(sys.executable).parent / "physedit"), "compare", *map(str, folders), "--out", str(out)]
    seconds = []
    for _ in range(rounds):
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds.append(time.monotonic() - started)
        if done.returncode:
            raise SystemExit(done.stderr)
        assert (out / "compare.html").exists()
    print(f"{len(folders)} runs of {size}: {min(seconds):.1f} s", flush=True)
    return Result(f"comparing {len(folders)} runs of {size}", min(seconds), "s", "", spread_of(seconds, "rounds"))


def growth(folders: list[Path], out: Path, rounds: int) -> list[Result]:
    """Returns what a further run costs late, and that against early."""
    few, some, many = NUM_RUNS
    cpu_s: dict[int, list[float]] = {count: [] for count in NUM_RUNS}
    in_process(folders[:few], out)  # imports, and whatever is made once
    for _ in range(rounds):
        for count in NUM_RUNS:
            cpu_s[count].append(in_process(folders[:count], out))
    least = {count: min(each) for count, each in cpu_s.items()}
    early, late = (least[some] - least[few]) / (some - few), (least[many] - least[some]) / (many - some)
    print(f"a further run: {1e3 * early:.1f} ms of CPU time up to {some} runs, {1e3 * late:.1f} ms up to {many}")
    return [
        Result(f"comparing one run more, {some} to {many}", 1e3 * late, "ms of CPU", "", f"least of {rounds} rounds"),
        Result(f"one run more, {some} to {many} over {few} to {some}", late / early, "times", "<= 1.25"),
    ]


def in_process(folders: list[Path], out: Path) -> float:
    """Returns the CPU seconds of a comparison in this process."""
    started = time.process_time()
    compare(CompareRequest(paths=tuple(folders), out=out))
    return time.process_time() - started


def whole_evaluations(work: Path, rounds: int) -> list[Result]:
    """Returns what PICABench's size takes: bookkeeping and report of one evaluation, and comparing five runs."""
    size = f"{ALL_ITEMS} items and {ALL_QUESTIONS:,} questions"
    judge = InstantJudge(seed=1)
    started = time.process_time()
    write_side(work / "alone", items_of(ALL_ITEMS, ALL_QUESTIONS), judge)
    stored_s = time.process_time() - started
    folders = runs_in(work / "large", 5, ALL_ITEMS, ALL_QUESTIONS, 2)
    hook = folders[0] / "eval" / HOOK
    reports_s = [timed_report(hook / "base", hook / f"step_{STEP:08d}", judge) for _ in range(rounds)]
    print(f"{size}: stored, judged at once and measured in {stored_s:.1f} s, reported in {min(reports_s):.1f} s of CPU")
    return [
        compared(folders, work / "out", rounds, size),
        Result(f"report of {size}", min(reports_s), "s of CPU", "", spread_of(reports_s, "rounds")),
        Result(f"storing, judging at once and measuring {size}, 64x64", stored_s, "s of CPU"),
    ]


def timed_report(base: Path, tuned: Path, judge: InstantJudge) -> float:
    """Returns the CPU seconds of writing a report."""
    started = time.process_time()
    write_evaluation(base, tuned, judge, ALL_ITEMS)
    return time.process_time() - started


if __name__ == "__main__":
    main()
