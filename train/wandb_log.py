"""A ``.wandb`` log of this machine, as wandb's own reader (``wandb leet inspect``) prints it."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physedit.train.config import ConfigError, one_line

_TIMEOUT_S = 300
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """What one log holds of a run.

    Attributes:
        run_id: the run's; several logs may be of one run.
        name: as shown.
        place: the file.
        state: how it ended; None if it did not, as after a kill.
        config: the run's settings.
        rows: its history, in the order in which it was logged.
    """

    run_id: str
    name: str
    place: str
    state: str | None
    config: Row
    rows: Sequence[Row]


def read_log(file: Path) -> Log | None:
    """Returns what a log holds; None if it ended before wandb wrote of the run at all.

    wandb writes what it is told every 15 s, so a process that is killed leaves a log without its last numbers, and an
    early one leaves an empty log.

    Raises:
        ConfigError: wandb cannot read it.
    """
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise ConfigError(f"wandb cannot read {file}: {one_line(str(said))}. Give the run's own folder.") from error
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    opened = next((record["run"] for record in records if record.get("type") == "run"), None)
    if opened is None:
        return None
    history = [record["history"]["item"] for record in records if record.get("type") == "history"]
    config = {key: value for key, value in opened["config"]["update"].items() if not key.startswith("_")}
    exits = [record["exit"].get("exit_code", 0) for record in records if record.get("type") == "exit"]
    state = None if not exits else "finished" if exits[-1] == 0 else "failed"
    name = str(opened.get("display_name") or file.stem)
    return Log(str(opened.get("run_id") or file.stem), name, str(file), state, config, history)
