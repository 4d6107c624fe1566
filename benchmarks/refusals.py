"""Times how long a wrong setting takes to be refused: the promise is 5 s, exit code 2, one paragraph.

.venv/bin/python benchmarks/refusals.py
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    failed = 0
    for overrides in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            command = [str(Path(sys.executable).parent / "physedit"), "train", *overrides.split()]
            result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            seconds = time.monotonic() - started
            kept = result.returncode == 2 and seconds < LIMIT_S and not any(Path(folder).iterdir())
        failed += not kept
        print(f"{'ok    ' if kept else 'BROKEN'} {seconds:4.1f} s  exit {result.returncode}  {overrides}")
        print(f"       {result.stderr.strip()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
