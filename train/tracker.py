"""Where a run's numbers go beside metrics.jsonl: wandb, as a view of it.

Only this module imports wandb, with ``wandb_destination``, which opens its runs, and ``wandb_runs`` and
``wandb_record``, which read runs back.
"""

import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from physedit.eval_hooks.files import read_json_lines, write_text
from physedit.train.checkpoint import step_folders
from physedit.train.config import ConfigError
from physedit.train.errands import Errands
from physedit.train.swept import SWEEP_VARIABLE, check_tracked
from physedit.train.wandb_destination import Destination
from physedit.train.wandb_log import Row
from physedit.train.wandb_record import STEP, Record, offline_rows, online_rows, server_rows

logger = logging.getLogger(__name__)

Extreme = Literal["max", "min"]


class Tracker(Protocol):
    """A view of a run beside its own files. Only rank 0 has one."""

    def start(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        """Opens the run; called once, with the resolved config as plain data."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records numbers of a step, which may be before those recorded last."""
        ...

    def keep_best(self, extremes: Mapping[str, Extreme]) -> None:
        """Has the run's summary tell the largest or smallest value of these numbers, recorded from now on."""
        ...

    def log_images(self, step: int, key: str, pictures: Mapping[Path, str]) -> None:
        """Records pictures of a step, each with its caption."""
        ...

    def log_table(self, step: int, key: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Records a table of a step."""
        ...

    def log_base(self, base_id: str, metrics: Mapping[str, float]) -> None:
        """Records the base's own evaluation apart from the run, once.

        Args:
            base_id: names the base, the benchmark and the judge; equal for all runs that share them.
            metrics: what the base got.
        """
        ...

    def log_adapter(self, step: int, file: Path, aliases: Sequence[str]) -> None:
        """Records the adapter of a checkpoint, if the tracker was asked to keep adapters."""
        ...

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Closes the run."""
        ...


class NoTracker:
    """Files only."""

    def start(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        """Does nothing."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Does nothing."""

    def keep_best(self, extremes: Mapping[str, Extreme]) -> None:
        """Does nothing."""

    def log_images(self, step: int, key: str, pictures: Mapping[Path, str]) -> None:
        """Does nothing."""

    def log_table(self, step: int, key: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Does nothing."""

    def log_base(self, base_id: str, metrics: Mapping[str, float]) -> None:
        """Does nothing."""

    def log_adapter(self, step: int, file: Path, aliases: Sequence[str]) -> None:
        """Does nothing."""

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Does nothing."""


class Wandb:
    """A wandb run in the run folder's ``wandb/``; ``offline`` needs no account and can be synced later.

    The step is logged as the metric ``trainer/step`` and all others are plotted against it, so that a resume from an
    older step loses no points (wandb drops lower steps of its own counter). A run that goes on tells wandb what
    metrics.jsonl has and wandb lacks, and nothing of a step that wandb has.

    A server that does not answer holds up a run by ``start_timeout_s`` and ``finish_timeout_s`` at most and ends none:
    what it lacks lies in the run folder and can be sent with ``wandb sync --no-skip-online``.
    """

    def __init__(
        self,
        mode: str = "offline",
        project: str = "physedit",
        entity: str | None = None,
        *,
        group: str | None = None,
        job_type: str = "train",
        tags: tuple[str, ...] = (),
        log_adapters: bool = False,
        start_timeout_s: float = 90.0,
        finish_timeout_s: float = 300.0,
    ) -> None:
        self._destination = Destination(
            mode=mode, project=project, entity=entity, group=group, job_type=job_type, tags=tags,
            start_timeout_s=start_timeout_s, finish_timeout_s=finish_timeout_s,
        )  # fmt: skip
        self._log_adapters = log_adapters
        self._run: Any = None
        self._run_folder, self._config = Path(), dict[str, Any]()
        self._kept: set[str] = set()
        self._record = Record(())
        self._is_lost = False
        self._errands = Errands()
        """A table or an artifact has wandb's client ask its server there and then."""

    def start(self, run_folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        """Opens the wandb run; a resumed run goes on under the id kept in ``wandb/run_id``.

        One that begins again, because it was never saved, has a new id. Under a sweep's agent it is the run that the
        agent named. Where the server does not answer, it is made offline.

        Raises:
            ConfigError: a sweep set values in wandb that this run does not use, or the server refuses the key.
        """
        os.environ.setdefault("WANDB_SILENT", "true")
        self._run_folder, self._config = run_folder, dict(config)
        folder = run_folder / "wandb"
        folder.mkdir(exist_ok=True)
        id_file = folder / "run_id"
        lines = read_json_lines(run_folder / "metrics.jsonl") if (run_folder / "metrics.jsonl").exists() else []
        is_saved = bool(step_folders(run_folder / "checkpoints"))
        goes_on = is_saved or _id_of_agent() is not None or all(line["step"] == 0 for line in lines)
        if not id_file.exists() or not goes_on:
            write_text(id_file, _id_of_agent() or secrets.token_hex(4))
        run_id = id_file.read_text(encoding="utf-8")
        self._run = self._destination.open_run(run_folder, run_name, run_id, config)
        try:
            check_tracked(dict(self._run.config), config)
        except ConfigError:
            self._run.finish(exit_code=1)
            raise
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)
        if goes_on and lines:
            self._catch_up(lines)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records numbers against the run's own step, unless an earlier start has."""
        if not self._record.has(step, metrics):
            self._record.forget(step, metrics)
            self._tell(lambda: self._run.log({STEP: step, **metrics}))

    def keep_best(self, extremes: Mapping[str, Extreme]) -> None:
        """Has the summary tell ``KEY.max`` or ``KEY.min`` instead of the value recorded last."""
        for key, extreme in extremes.items():
            if key not in self._kept:
                self._tell(partial(self._run.define_metric, key, step_metric=STEP, summary=extreme))
                self._kept.add(key)

    def log_images(self, step: int, key: str, pictures: Mapping[Path, str]) -> None:
        """Records pictures against the run's own step."""
        import wandb

        if self._record.has_key(step, key):
            return
        images = [wandb.Image(str(path), caption=caption) for path, caption in pictures.items()]
        self._tell(lambda: self._run.log({STEP: step, key: images}))

    def log_table(self, step: int, key: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Records a table against the run's own step."""
        import wandb

        if self._record.has_key(step, key):
            return
        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self._errands.add(f"{key} of step {step}", lambda: self._run.log({STEP: step, key: table}))

    def log_base(self, base_id: str, metrics: Mapping[str, float]) -> None:
        """Records the base's evaluation as a run of type ``base``, whose id is ``base_id``: once for all runs.

        It lies in ``base_cache/wandb/`` beside the run folders that share it. A server that has it keeps its own.
        """
        if self._is_lost:
            return
        cache = self._run_folder.parent / "base_cache"
        shown: dict[str, Any] = {key: self._config[key] for key in ("backbone", "eval", "judge") if key in self._config}
        self._destination.record_base(cache, base_id, metrics, shown, is_offline=bool(self._run.offline))

    def log_adapter(self, step: int, file: Path, aliases: Sequence[str]) -> None:
        """Records the file as an artifact ``adapter-RUN`` of type ``model``; equal files are one version of it."""
        import wandb

        if not self._log_adapters:
            return
        artifact = wandb.Artifact(f"adapter-{self._run.id}", type="model", metadata={"step": step})
        artifact.add_file(str(file), name=file.name)
        what = f"the adapter of step {step}"
        self._errands.add(what, lambda: self._run.log_artifact(artifact, aliases=list(aliases)))

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Writes the summary and closes the run; says what to do about what the server has not taken."""
        self._tell(lambda: self._run.summary.update(dict(summary)))
        if left := self._errands.finish(self._destination.finish_timeout_s):
            logger.warning("wandb's server kept back %d tables or adapters; the run folder has them.", left)
        if self._is_lost:
            with suppress(Exception):  # told of already; a run left open would be taken for the next one's
                self._run.finish(exit_code=exit_code)
            return
        try:
            self._tell(lambda: self._run.finish(exit_code=exit_code))
        except TimeoutError:
            logger.warning(
                "wandb's server did not take the rest of this run within tracker.finish_timeout_s=%g. All of it is in "
                "%s; send it with: wandb sync --no-skip-online %s",
                self._destination.finish_timeout_s, self._folder, self._folder,
            )  # fmt: skip

    def _catch_up(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Reads what earlier starts have told, and tells the rest of what metrics.jsonl has."""
        try:
            self._record = Record(self._earlier_rows())
        except ConfigError as error:
            logger.warning("wandb may get points twice that it has already: %s", error)
            return
        for line in lines:
            step, numbers = int(line["step"]), {key: v for key, v in line.items() if key != "step" and v is not None}
            if not self._record.has(step, numbers):
                self._tell(partial(self._run.log, {STEP: step, **numbers}))
                self._record.add(step, numbers)

    def _earlier_rows(self) -> list[Row]:
        run, folder = self._run, self._run_folder / "wandb"
        rows = offline_rows(folder, run.id, self._folder)
        if run.offline:
            return rows + online_rows(folder, run.id, self._folder)
        if not run.resumed:
            return rows
        return rows + server_rows(f"{run.entity}/{run.project}/{run.id}", self._destination.start_timeout_s)

    @property
    def _folder(self) -> Path:
        """Where wandb's client keeps what it was told."""
        return Path(str(self._run.settings.sync_dir))

    def _tell(self, say: Callable[[], object]) -> None:
        """Tells wandb's client something; a client that fails is told no more, and the run goes on.

        Raises:
            TimeoutError: it waits for its server, and not longer.
        """
        if self._is_lost:
            return
        try:
            say()
        except TimeoutError:
            raise
        except Exception as error:  # whatever a client raises: the run must not end by it
            self._is_lost = True
            logger.warning(
                "wandb's client has failed, so wandb gets no more of this run; metrics.jsonl has all. What it was told "
                "until now is in %s; send it with: wandb sync --no-skip-online %s (%r)",
                self._folder, self._folder, error,
            )  # fmt: skip


def _id_of_agent() -> str | None:
    return os.environ.get("WANDB_RUN_ID") if os.environ.get(SWEEP_VARIABLE) else None
