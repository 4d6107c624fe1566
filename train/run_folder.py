"""The run folder: claimed once, and what it says of how the run was started."""

import fcntl
import importlib.metadata
import logging
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import torch
import yaml
from accelerate import Accelerator
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from physedit.eval_hooks.files import read_json, read_steps, write_json, write_text
from physedit.train.build import build
from physedit.train.checkpoint import check_reachable, step_folders
from physedit.train.config import ConfigError, TrainConfig, one_line
from physedit.train.optim import Schedule

logger = logging.getLogger(__name__)

FREE_TO_CHANGE = frozenset(
    {"resume", "num_workers", "device", "num_threads", "tracker", "checkpoint", "micro_batch", "num_steps", "eval",
     "eval_steps", "output_root", "best_metric", "max_dropped_share", "encode", "launch",
     "best_psnr_floor_db", "eval_failures", "collective_timeout_s", "judge", "picabench", "backbone.encoders",
     "backbone.gradient_checkpointing", "backbone.edit_steps", "backbone.edit_guidance"}
)  # fmt: skip
"""Settings a resumed run may change: they decide where and how long it runs, not what a finished step computed."""

PACKAGES = ("accelerate", "datasets", "deepspeed", "diffusers", "numpy", "peft", "physedit", "safetensors", "torch",
            "transformers", "wandb")  # fmt: skip


METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class Environment:
    """What really ran, for ``environment.json``."""

    distributed_type: str
    num_processes: int
    device: str
    mixed_precision: str
    num_threads: int
    python: str
    platform: str
    git_commit: str | None
    git_is_dirty: bool | None
    packages: dict[str, str]


def run_folder_of(config: DictConfig) -> Path:
    """Returns ``OUTPUT_ROOT/RUN_NAME``: a pure function of the config, so all ranks agree."""
    return Path(str(config.output_root)) / str(config.run_name)


def base_cache_of(config: DictConfig) -> Path:
    """Returns the folder of base evaluations that all runs below ``output_root`` share."""
    return Path(str(config.output_root)) / "base_cache"


def check_run_folder(config: DictConfig) -> None:
    """Verifies that the run may use its folder; writes nothing.

    Raises:
        ConfigError: the folder holds something that the run must not touch, or lacks checkpoints that it tells of.
        CheckpointIncomplete: its checkpoints are behind a broken link.
        DamagedFileError: its summary.json or metrics.jsonl cannot be read.
    """
    folder = run_folder_of(config)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, but the run folder is to be there. Choose another run_name.")
    if folder.is_symlink() and not folder.exists():
        raise ConfigError(
            f"{folder} is a link to {folder.readlink()}, where nothing is. Mount that disk or mend the link, or choose "
            f"another run_name."
        )
    if not folder.exists() or all(_is_before_a_run(entry.name) for entry in folder.iterdir()):
        return
    if config.resume == "never":
        raise ConfigError(
            f"The run folder {folder} exists and resume=never was asked. "
            f"Choose another run_name, use resume=auto, or remove the folder."
        )
    saved = folder / "config.yaml"
    if not saved.exists():
        raise ConfigError(f"{folder} holds files but no config.yaml, so it is no run folder. Choose another run_name.")
    before = _read_config(saved)
    check_reachable(folder / "checkpoints")
    if step_folders(folder / "checkpoints"):  # before the first checkpoint there is nothing to go on from
        _check_same_run(folder, before, config)
        _read_metrics(folder)
    else:
        _check_never_saved(folder)


def set_records_aside(folder: Path) -> None:
    """Keeps, under another name, the numbers of a run that ended before its first checkpoint and begins again.

    Rank 0 calls it where a run begins at step 0.

    Raises:
        DamagedFileError: metrics.jsonl cannot be read.
    """
    path = folder / METRICS_FILE
    last = max((int(str(line["step"])) for line in _read_metrics(folder)), default=0)
    if last == 0:
        return
    number = 1 + sum(1 for _ in folder.glob("metrics_before_restart_*.jsonl"))
    aside = folder / f"metrics_before_restart_{number}.jsonl"
    path.rename(aside)
    logger.warning(
        "%s told of step %d, but there is no checkpoint, so the run begins again. Its numbers so far are kept in %s.",
        path, last, aside,
    )  # fmt: skip


def check_is_free(folder: Path) -> None:
    """Verifies that no process is writing the run in ``folder``; takes no lock.

    Raises:
        ConfigError: one is.
    """
    if (folder / ".lock").exists():
        lock_run_folder(folder).close()


def claim_run_folder(config: DictConfig, overrides: Sequence[str], command: str, accelerator: Accelerator) -> BinaryIO:
    """Creates the run folder and writes config, overrides, command and environment. Rank 0 calls it.

    Returns:
        The lock: the folder belongs to this process until the file is closed or the process ends.

    Raises:
        ConfigError: another process is writing this run.
    """
    folder = run_folder_of(config)
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_run_folder(folder)
    write_text(folder / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
    write_text(folder / "overrides.txt", "".join(f"{line}\n" for line in overrides))
    write_text(folder / "command.txt", command + "\n")
    write_json(folder / "environment.json", asdict(describe_environment(accelerator)))
    return lock


def lock_run_folder(folder: Path) -> BinaryIO:
    """Returns the lock: the run's folder belongs to this process until the file is closed or the process ends.

    Raises:
        ConfigError: another process is writing this run.
    """
    lock = (folder / ".lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise ConfigError(
            f"Another process is writing the run in {folder}. Wait for it, or choose another name."
        ) from error
    return lock


def describe_environment(accelerator: Accelerator) -> Environment:
    """Returns the processes, versions and commit of this run."""
    commit, dirty = _git()
    return Environment(
        distributed_type=str(accelerator.distributed_type.value),
        num_processes=accelerator.num_processes,
        device=str(accelerator.device),
        mixed_precision=str(accelerator.mixed_precision),
        num_threads=torch.get_num_threads(),
        python=platform.python_version(),
        platform=platform.platform(),
        git_commit=commit,
        git_is_dirty=dirty,
        packages={name: version for name in PACKAGES if (version := _version(name)) is not None},
    )


def _is_before_a_run(name: str) -> bool:
    """True for what a launch writes before the run begins, and what a kill or a full disk then leaves of its start."""
    return name in ("launch", ".lock") or re.fullmatch(r"\..+\.part", name) is not None


def _read_config(saved: Path) -> dict[str, object]:
    """Returns the config that a run was started with, as plain data."""
    remedy = "Put back the config.yaml of the run's newest checkpoint, or choose another run_name."
    try:
        content = OmegaConf.to_container(OmegaConf.load(saved), resolve=True)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{saved} cannot be read ({one_line(str(error))}). {remedy}") from error
    if not isinstance(content, dict) or not content.keys() >= {"run_name", "num_steps"}:
        raise ConfigError(f"{saved} is not the config of a run. Choose another run_name.")
    if type(content["num_steps"]) is not int:
        raise ConfigError(f"{saved} is damaged: its num_steps is {content['num_steps']!r}, no whole number. {remedy}")
    return {str(key): value for key, value in content.items()}


def _read_metrics(folder: Path) -> list[dict[str, object]]:
    remedy = (
        "Mend or remove what is wrong, or move the file away: the run then goes on without the numbers of its steps so "
        "far."
    )
    path = folder / METRICS_FILE
    return read_steps(path, remedy=remedy) if path.exists() else []


def _check_never_saved(folder: Path) -> None:
    """Refuses to begin a run again whose checkpoints were evaluated, but are not here."""
    summary = folder / "summary.json"
    newest = read_json(summary).get("newest") if summary.exists() else None
    step = newest.get("step") if isinstance(newest, dict) else None
    if step is not None:
        raise ConfigError(
            f"{summary} tells of the checkpoint of step {step}, but {folder / 'checkpoints'} holds none, so the run "
            f"would begin again at step 0 over its own records. Put the checkpoints back (is a disk not mounted?), "
            f"choose another run_name, or remove {folder} to start over."
        )


def _check_same_run(folder: Path, saved: Mapping[str, object], config: DictConfig) -> None:
    now = _flat(OmegaConf.to_container(config, resolve=True))
    # A setting that is newer than the run was what it is by default.
    defaults = _flat(OmegaConf.to_container(OmegaConf.structured(TrainConfig)))
    before = {key: value for key, value in defaults.items() if key in now} | _flat(dict(saved))
    changed = [
        f"{key} was {before.get(key)}, is {now.get(key)}"
        for key in sorted(before.keys() | now.keys())
        if not FREE_TO_CHANGE.intersection((key, key.split(".")[0])) and before.get(key) != now.get(key)
    ]
    finished, asked = int(str(before["num_steps"])), int(str(now["num_steps"]))
    if asked < finished:
        changed.append(f"num_steps was {finished}, is {asked} (it may only grow)")
    elif asked > finished and _rates_differ(build(config.schedule), finished, asked):
        changed.append(
            f"num_steps was {finished}, is {asked}, and this schedule's rate of past steps depends on it "
            f"(a run can only be made longer with schedule=constant)"
        )
    if changed:
        raise ConfigError(
            f"The run in {folder} was started with other settings: {'; '.join(changed[:5])}. "
            f"Resume with the settings it was started with, or choose another run_name."
        )


def _rates_differ(schedule: Schedule, before: int, now: int) -> bool:
    return any(schedule.factor(step, before) != schedule.factor(step, now) for step in range(before))


def _flat(value: object, key: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in _flat(item, f"{key}.{name}" if key else name).items()}
    return {key: value}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> tuple[str | None, bool | None]:
    """Returns commit and dirty flag of the checkout this package runs from, or None outside one."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None, None
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        status = subprocess.run(
            ["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True, timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit, bool(status.strip())
