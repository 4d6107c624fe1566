"""Samples a second of two processes against one, with the same global batch and a core for each process.

    python -m benchmarks.scaling                          six minutes on two cores with nothing else running
    python -m benchmarks.scaling --batch 32 --steps 30

``experiment=demo``'s toy at a larger batch, so that the forward and backward passes are what counts; one thread a
process, DDP over gloo (``launch=cpu_ddp2``). Runs are in turns. The rate is the one that a run writes to metrics.jsonl
itself, the median of its windows without the first; a round's ratio is of the two runs beside each other in time. The
two processes need a core each: beside other work the ratio says what was left of them.

No row comes twice. An editor keeps what it has encoded, and in a second epoch one process finds all of it, each of two
only the half that it has had before: with 400 rows for 640 samples the two encoded 29 % more than the one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.results import Result, add_json_option, report, spread_of

LAUNCHES = {1: "launch=single", 2: "launch=cpu_ddp2"}
LEAST = 1.8
LOG_EVERY = 5


def main() -> None:
    """Prints a line for each run, and the median of the rounds' ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32, help="global batch, half of it for each of two processes")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    asked = parser.parse_args()
    if asked.batch % 2 or asked.steps < 2 * LOG_EVERY:
        parser.error(f"--batch must be even, and --steps at least {2 * LOG_EVERY}: the first window does not count")
    found: dict[int, list[float]] = {processes: [] for processes in LAUNCHES}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.rounds):
            for processes, rates in found.items():
                run = Path(folder) / f"round{number}_processes{processes}"
                rates.append(trained(run, processes, asked.batch, asked.steps, world=Path(folder) / "world"))
                print(f"round {number}, {processes} processes: {rates[-1]:.2f} samples/s", flush=True)
    report(results_of(found, asked.batch), asked.json)


def trained(run: Path, processes: int, batch: int, steps: int, *, world: Path) -> float:
    """Trains, and returns samples a second by the run's own clock."""
    overrides = [
        "experiment=demo", LAUNCHES[processes], "eval=none", "eval_steps=[]", "best_metric=null", "tracker=none",
        f"run_name={run.name}", f"output_root={run.parent}", f"scenes.folder={world}",
        f"scenes.num_train={batch * steps}", f"num_steps={steps}", f"log_every={LOG_EVERY}", f"global_batch={batch}",
        f"micro_batch={batch // processes}",
    ]  # fmt: skip
    command = [str(Path(sys.executable).parent / "physedit"), "train", *overrides]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    windows = [float(line["time/samples_per_s"]) for line in lines if "time/samples_per_s" in line]
    return statistics.median(windows[1:])


def results_of(found: dict[int, list[float]], batch: int) -> list[Result]:
    """Returns both rates and their ratio."""
    ratios = [two / one for one, two in zip(found[1], found[2], strict=True)]
    cores = len(os.sched_getaffinity(0))
    ratio = statistics.median(ratios)
    print(f"two processes over one: {ratio:.2f} ({spread_of(ratios, 'rounds')}), on {cores} cores")
    rates = [
        Result(
            f"{processes} {'process' if processes == 1 else 'processes'}, global batch {batch}",
            statistics.median(rounds),
            "samples/s",
            "",
            spread_of(rounds, "rounds"),
        )
        for processes, rounds in found.items()
    ]
    return [
        *rates,
        Result("samples a second, 2 processes over 1", ratio, "times", f">= {LEAST}", spread_of(ratios, "rounds")),
    ]


if __name__ == "__main__":
    main()
