"""Times how long a wrong setting takes to be refused: the promise is 5 s, exit code 2, one paragraph.

python -m benchmarks.refusals
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import Result, add_json_option, report, spread_of

LIMIT_S = 5.0

COMMANDS = (
    "experiment=demo optimiser.lr=1",
    "experiment=demo +optimizer.lrr=1",
    "experiment=demo data=scenez",
    "num_steps=4",
    "experiment=demo scenes.write=false scenes.folder=nowhere/scenes",
    "experiment=demo backbone.weights=./nowhere/weights",
    "experiment=demo global_batch=12",
)


def main() -> int:
    """Prints a line per command; returns 1 if one is too slow or not refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json_option(parser)
    asked = parser.parse_args()
    failed, wrong = 0, 0
    took_s: list[float] = []
    cpu_s: list[float] = []
    for overrides in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            started, before_s = time.monotonic(), children_cpu_s()
            command = [str(Path(sys.executable).parent / "physedit"), "train", *overrides.split()]
            result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            seconds = time.monotonic() - started
            refused = result.returncode == 2 and not any(Path(folder).iterdir())
            kept = refused and seconds < LIMIT_S
        failed, wrong = failed + (not kept), wrong + (not refused)
        took_s.append(seconds)
        cpu_s.append(children_cpu_s() - before_s)
        print(f"{'ok    ' if kept else 'BROKEN'} {seconds:4.1f} s  exit {result.returncode}  {overrides}")
        print(f"       {result.stderr.strip()}")
    results = [
        Result("a refusal, the slowest", max(took_s), "s", f"<= {LIMIT_S:g}", spread_of(took_s, "commands")),
        Result("a refusal, the slowest in CPU time", max(cpu_s), "s of CPU", "", spread_of(cpu_s, "commands")),
        Result("wrong settings taken, or files left by a refusal", wrong, "", "== 0", f"of {len(COMMANDS)} commands"),
    ]
    report(results, asked.json)
    return 1 if failed else 0


def children_cpu_s() -> float:
    """Returns the CPU time of all processes that ended for this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
