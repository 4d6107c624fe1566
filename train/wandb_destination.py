"""Where in wandb a run is recorded: how its runs are opened, and how long one waits for the server."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from physedit.train.config import ConfigError
from physedit.train.wandb_record import STEP

logger = logging.getLogger(__name__)

BASE_JOB = "base"
"""The type of the run that holds the base's own evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """What ``tracker.KEY`` says of the runs that are opened.

    Raises:
        ValueError: an unknown mode, a type of run that is the base's, or no time to wait.
    """

    mode: str
    project: str
    entity: str | None
    group: str | None
    job_type: str
    tags: tuple[str, ...]
    start_timeout_s: float
    finish_timeout_s: float

    def __post_init__(self) -> None:
        if self.mode not in ("offline", "online"):
            raise ValueError(f"tracker.mode={self.mode} is not known. Use offline or online, or tracker=none.")
        if self.job_type == BASE_JOB:
            raise ValueError(f"tracker.job_type={BASE_JOB} is what the base's own evaluation has. Use another word.")
        waits = {"start_timeout_s": self.start_timeout_s, "finish_timeout_s": self.finish_timeout_s}
        for name, seconds in waits.items():
            if seconds <= 0:
                raise ValueError(f"tracker.{name}={seconds} must be positive: a run waits so many seconds at most.")

    def open_run(self, run_folder: Path, run_name: str, run_id: str, config: Mapping[str, Any]) -> Any:
        """Returns wandb's run of that id, new or gone on with; offline where the server does not answer.

        Raises:
            ConfigError: wandb's client or server refuses it.
        """
        import wandb

        init = partial(
            wandb.init,
            project=self.project,
            entity=self.entity,
            name=run_name,
            id=run_id,
            resume="allow",
            dir=str(run_folder),
            config=dict(config),
            group=self.group,
            job_type=self.job_type,
            tags=list(self.tags),
            settings=self._settings(),
        )
        try:
            return init(mode=self.mode)  # type: ignore[arg-type]
        except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
            raise ConfigError(
                f"tracker.mode={self.mode}: wandb refuses to open the run: {error} Run wandb login, or set "
                "tracker.mode=offline or tracker=none."
            ) from error
        except wandb.errors.CommError as error:
            wandb.teardown()  # the client holds the run's id as one in use otherwise
            run = init(mode="offline")
            logger.warning(
                "wandb's server could not open the run within tracker.start_timeout_s=%g, so it is recorded offline. "
                "Send it later with: wandb sync %s (%s)",
                self.start_timeout_s, run.settings.sync_dir, error,
            )  # fmt: skip
            return run

    def record_base(
        self, cache: Path, base_id: str, metrics: Mapping[str, float], config: Mapping[str, Any], *, is_offline: bool
    ) -> None:
        """Records the base's evaluation as a run of its own below ``cache``, unless one of that id lies there.

        Where wandb's client fails, that is said and nothing is raised.

        Args:
            cache: the folder that run folders share.
            base_id: the run's id.
            metrics: what the base got.
            config: what the run shows of the settings.
            is_offline: whether the run that tells it is.
        """
        import wandb

        if any((cache / "wandb").glob(f"*run-*-{base_id}")):
            return
        (cache / "wandb").mkdir(parents=True, exist_ok=True)
        hooks = ", ".join(sorted({key.split("/")[0] for key in metrics}))
        try:
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                name=f"base {hooks}",
                id=base_id,
                resume="never",
                reinit="create_new",
                mode="offline" if is_offline else "online",
                dir=str(cache),
                config=dict(config),
                group=self.group,
                job_type=BASE_JOB,
                tags=list(self.tags),
                settings=self._settings(),
            )
            run.log({STEP: 0, **metrics})
            run.finish()
        except Exception as error:  # whatever a client raises: its numbers are in the run's own summary too
            logger.info("The base's evaluation is not recorded as a run of its own: %s", error)

    def _settings(self) -> Any:
        import wandb

        return wandb.Settings(
            console="off",
            x_disable_stats=self.mode == "offline",
            init_timeout=self.start_timeout_s,
            finish_timeout=self.finish_timeout_s,
            finish_timeout_raises=True,
        )
