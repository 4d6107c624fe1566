"""Other trackers than wandb, by accelerate's own classes: the numbers of metrics.jsonl, and pictures."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accelerate import PartialState

from physedit.data_loaders.images import read_rgb
from physedit.train.checkpoint import step_folders
from physedit.train.config import ConfigError
from physedit.train.tracker import NoTracker

_FOLDER = "tensorboard"


class TensorBoard(NoTracker):
    """Event files in the run folder's ``tensorboard/``; a run that goes on adds one, and steps keep their number.

    What a killed start wrote of steps that are done again is not shown, as tensorboard has it.
    """

    def __init__(self) -> None:
        """Verifies that tensorboard is there.

        Raises:
            ConfigError: it is not installed.
        """
        _need("tensorboard")
        self._tracker: Any = None

    def start(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        """Opens an event file, and writes the config as text."""
        from accelerate.tracking import TensorBoardTracker

        PartialState()  # what accelerate's trackers ask for their rank
        saved = step_folders(run_folder / "checkpoints")
        again = int(saved[-1].name.removeprefix("step_")) + 1 if saved else 0
        self._tracker = TensorBoardTracker(run_name=_FOLDER, logging_dir=run_folder, purge_step=again, flush_secs=15)
        self._tracker.start()
        lines = yaml.safe_dump({"run_name": run_name, **config}).splitlines()
        self._tracker.log({"config": "\n".join(f"    {line}" for line in lines)}, step=0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records numbers of a step."""
        self._tracker.log(dict(metrics), step=step)

    def log_images(self, step: int, key: str, pictures: Mapping[Path, str]) -> None:
        """Records pictures of a step; tensorboard has no captions."""
        for path in pictures:
            picture = np.asarray(read_rgb(path).permute(1, 2, 0))[None]  # [1, H, W, 3]
            self._tracker.log_images({f"{key}/{path.stem}": picture}, step=step, dataformats="NHWC")

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:  # noqa: ARG002
        """Closes the file; the summary is in summary.json."""
        self._tracker.finish()


class Trackio(NoTracker):
    """A run of trackio's own local database, which ``trackio show`` serves."""

    def __init__(self, project: str = "physedit") -> None:
        """Verifies that trackio is there.

        Raises:
            ConfigError: it is not installed.
        """
        _need("trackio")
        self._project = project
        self._tracker: Any = None

    def start(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Opens the run; one of that name goes on."""
        from accelerate.tracking import TrackioTracker

        PartialState()  # what accelerate's trackers ask for their rank
        self._tracker = TrackioTracker(self._project, name=run_name, resume="allow", config=dict(config))
        self._tracker.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records numbers of a step."""
        self._tracker.log(dict(metrics), step=step)

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:  # noqa: ARG002
        """Closes the run; the summary is in summary.json."""
        self._tracker.finish()


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(
            f"tracker={package} needs the package {package}, which is not installed. "
            f"pip install 'physedit[{package}]', or choose tracker=wandb or tracker=none."
        )
