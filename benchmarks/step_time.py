"""Times one optimizer step of the demo by part: where the training time goes.

.venv/bin/python benchmarks/step_time.py              200 steps of experiment=demo, one thread
.venv/bin/python benchmarks/step_time.py num_threads=2 --steps 50
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.results import Result, add_json_option, report
from physedit.train import loop, sft
from physedit.train.compose import compose_config
from physedit.train.signals import StopFlag

PARTS = ("accumulate", "forward", "update")


def main() -> int:
    """Prints milliseconds a step of every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--steps", type=int, default=200)
    add_json_option(parser)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    for name in PARTS:
        setattr(loop, name, timed(name, getattr(loop, name), seconds))
    with tempfile.TemporaryDirectory() as folder:
        given = [
            "experiment=demo",
            "eval=none",
            "eval_steps=[]",
            "best_metric=null",
            "tracker=none",
            f"num_steps={arguments.steps}",
            f"output_root={folder}",
            f"scenes.folder={Path(folder) / 'scenes'}",
            "scenes.num_train=200",
            *arguments.overrides,
        ]
        config = compose_config(given)
        build = sft.build_checked

        def build_timed(key: str, node: object) -> object:
            part = build(key, node)  # type: ignore[arg-type]
            if key == "backbone":
                part.encode = timed("encode", part.encode, seconds)
            return part

        sft.build_checked = build_timed
        sft.train(config, given, "benchmarks/step_time.py", StopFlag())
    results = []
    for name, values in seconds.items():
        per_step = [1000 * value for value in values[len(values) // 10 :]]
        p90 = sorted(per_step)[9 * len(per_step) // 10]
        print(f"{name:12} median {statistics.median(per_step):7.1f} ms  p90 {p90:7.1f} ms")
        median = statistics.median(per_step)
        results.append(
            Result(f"{name}, a step of the demo", median, "ms", "", f"median of {len(per_step)}, p90 {p90:.0f}")
        )
    report(results, arguments.json)
    print("accumulate = forward + backward; forward = encode + transformer + loss")
    return 0


def timed(name: str, function: Callable[..., object], seconds: dict[str, list[float]]) -> Callable[..., object]:
    """Returns ``function`` with its wall time noted."""

    def run(*arguments: object, **named: object) -> object:
        started = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            seconds.setdefault(name, []).append(time.perf_counter() - started)

    return run


if __name__ == "__main__":
    sys.exit(main())
