"""Starting runs of the smoke experiment and reading what they leave."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from physedit.train.signals import StopFlag


def smoke_overrides(world: Path, root: Path, name: str, more: Sequence[str]) -> list[str]:
    return [
        "experiment=smoke",
        "tracker=none",
        f"run_name={name}",
        f"output_root={root}",
        f"scenes.folder={world}",
        "scenes.write=false",
        *more,
    ]


def physedit(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the console script as a user would."""
    command = [str(Path(sys.executable).parent / "physedit"), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300, check=False)


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Returns metrics.jsonl without its times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def adapter_bytes(folder: Path, step: int) -> bytes:
    path = folder / "checkpoints" / f"step_{step:08d}" / "adapter" / "pytorch_lora_weights.safetensors"
    return path.read_bytes()


class StopAfter(StopFlag):
    """A stop flag that a signal raises once the loop has asked ``times`` times, which it does once a step."""

    def __init__(self, times: int) -> None:
        self._left = times

    @property
    def signal_number(self) -> int | None:
        self._left -= 1
        return signal.SIGTERM if self._left <= 0 else None

    @signal_number.setter
    def signal_number(self, _number: int | None) -> None:
        """The ranks' agreement changes nothing here."""


class StopAtOnce(StopAfter):
    """A stop flag that is raised from the third question on."""

    def __init__(self) -> None:
        super().__init__(3)
