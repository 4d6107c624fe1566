"""Runs as wandb has them: an offline run by wandb's own reader, runs of a project over its API.

They have numbers, settings and curves, but no answers and pictures: the run folder keeps those.
"""

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physedit.eval_hooks.comparing.runs import Curve, Evaluation, Run, When, configured_conditions, flat, thinned
from physedit.eval_hooks.hook import MetricChange
from physedit.train.config import ConfigError, one_line
from physedit.train.summary import delta_key, is_delta_key

API_TIMEOUT_S = 30
_READER_TIMEOUT_S = 300
_STEP_KEYS = ("trainer/step", "step", "_step")
"""What holds the run's own step, in the order of trust; ``step`` is that of older runs."""
Row = Mapping[str, Any]


def offline_files(path: Path) -> tuple[Path, ...]:
    """Returns the wandb logs at ``path``: the file itself, that of a run's folder, or of the runs in ``wandb/``."""
    if path.is_file():
        return (path,) if path.suffix == ".wandb" else ()
    return tuple(sorted({*path.glob("*.wandb"), *path.glob("offline-run-*/*.wandb"), *path.glob("run-*/*.wandb")}))


def read_offline_runs(files: Sequence[Path], *, when: When = When.NEWEST) -> list[Run]:
    """Returns the runs of ``.wandb`` logs; those of one run, which went on several times, are one.

    Read by wandb's own reader (``wandb leet inspect``).

    Raises:
        ConfigError: wandb cannot read one, or it holds no run.
    """
    by_id: dict[str, list[_Log]] = {}
    for log in map(_read_log, files):
        by_id.setdefault(log.run_id, []).append(log)
    return [
        _run(
            logs[-1].name, logs[-1].place, logs[-1].state, logs[-1].config, [r for log in logs for r in log.rows], when
        )
        for logs in by_id.values()
    ]


@dataclass(frozen=True, slots=True)
class _Log:
    """What one ``.wandb`` file holds of a run."""

    run_id: str
    name: str
    place: str
    state: str | None
    config: Row
    rows: Sequence[Row]


def _read_log(file: Path) -> _Log:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_READER_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise ConfigError(f"wandb cannot read {file}: {one_line(str(said))}. Give the run's own folder.") from error
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    opened = next((record["run"] for record in records if record.get("type") == "run"), None)
    if opened is None:
        raise ConfigError(f"{file} holds no run: wandb wrote nothing of it before it ended. Give the run's own folder.")
    history = [record["history"]["item"] for record in records if record.get("type") == "history"]
    config = {key: value for key, value in opened["config"]["update"].items() if not key.startswith("_")}
    exits = [record["exit"].get("exit_code", 0) for record in records if record.get("type") == "exit"]
    state = None if not exits else "finished" if exits[-1] == 0 else "failed"
    name = str(opened.get("display_name") or file.stem)
    return _Log(str(opened.get("run_id") or file.stem), name, str(file), state, config, history)


def read_project(path: str, *, when: When = When.NEWEST) -> tuple[Run, ...]:
    """Returns the runs of ``ENTITY/PROJECT`` over wandb's API, the oldest first.

    Raises:
        ConfigError: wandb cannot be reached, knows no such project, or the project holds no training run.
    """
    if path.count("/") != 1 or not all(path.split("/")):
        raise ConfigError(f"--wandb {path}: expected ENTITY/PROJECT, as in the address of the project's page.")
    import wandb

    try:
        found = list(wandb.Api(timeout=API_TIMEOUT_S).runs(path, order="+created_at"))
        runs = [_from_api(run, when) for run in found if getattr(run, "job_type", None) in (None, "train")]
    except Exception as error:  # wandb raises its own errors, those of requests, and plain ones, by release
        raise ConfigError(
            f"--wandb {path}: wandb's API gave no answer ({type(error).__name__}: {one_line(str(error))}). Log in with "
            "wandb login, check the name and the network; without them, give the run folders or the offline runs "
            "(RUN/wandb/offline-run-*) instead."
        ) from error
    if not runs:
        raise ConfigError(f"--wandb {path}: the project holds no training run.")
    return tuple(runs)


def _from_api(run: Any, when: When) -> Run:
    config = {key: value for key, value in dict(run.config).items() if not key.startswith("_")}
    place = run.path if isinstance(run.path, str) else "/".join(run.path)
    return _run(str(run.name), place, str(run.state), config, list(run.scan_history()), when)


def _run(
    name: str, place: str, state: str | None, config: Mapping[str, Any], history: Sequence[Row], when: When
) -> Run:
    settings = flat(config)
    evaluations = _evaluations(history, when, settings)
    said = "holds no finished evaluation" if not evaluations else "holds neither intervals nor answers"
    return Run(
        name=name,
        place=place,
        state=state,
        settings=settings,
        swept=(),
        evaluations=evaluations,
        curves=_curves(history),
        notes=(f"{name}: wandb {said}; the run folder does.",),
    )


def _evaluations(history: Sequence[Row], when: When, settings: Mapping[str, object]) -> dict[str, Evaluation]:
    """The evaluations of one step: rows that hold a metric and its change."""
    by_step: dict[int, dict[str, MetricChange]] = {}
    for row in history:
        step = _step(row)
        for key in row:
            tuned, change = row.get(key), row.get(delta_key(key)) if "/" in key else None
            if step is not None and isinstance(tuned, int | float) and isinstance(change, int | float):
                found = MetricChange(float(tuned - change), float(tuned), float(change), ci95=None, n=0)
                by_step.setdefault(step, {})[key] = found
    trained = {step: metrics for step, metrics in by_step.items() if step > 0} or by_step
    chosen: dict[str, tuple[int, dict[str, MetricChange]]] = {}
    for step in _by_preference(trained, when, settings):
        for key, found in sorted(trained[step].items(), key=_headline_first):
            hook = key.split("/")[0]
            of_hook = chosen.setdefault(hook, (step, {}))
            if of_hook[0] == step:
                of_hook[1][key] = found
    return {
        hook: Evaluation(hook=hook, step=step, metrics=metrics, configured=configured_conditions(settings, hook))
        for hook, (step, metrics) in chosen.items()
    }


def _by_preference(
    metrics: Mapping[int, Mapping[str, MetricChange]], when: When, settings: Mapping[str, object]
) -> list[int]:
    """Steps, the one to show first: the newest, or that with the best ``best_metric`` of the run's config."""
    steps = sorted(metrics, reverse=True)
    key = settings.get("best_metric")
    if when is When.NEWEST or not isinstance(key, str):
        return steps
    sign = 1.0 if "loss" in key else -1.0
    values = {step: metrics[step][key].tuned for step in steps if key in metrics[step]}
    return sorted(steps, key=lambda step: math.inf if values.get(step) is None else sign * float(values[step] or 0.0))


def _headline_first(pair: tuple[str, object]) -> tuple[str, bool, str]:
    """The keys of a row are sorted by wandb; accuracies come first again, as hooks report them."""
    hook, _, rest = pair[0].partition("/")
    return hook, rest.split("/")[0] not in ("acc", "physics_acc"), pair[0]


def _step(row: Row) -> int | None:
    return next((int(row[key]) for key in _STEP_KEYS if row.get(key) is not None), None)


def _curves(history: Sequence[Row]) -> dict[str, Curve]:
    points: dict[str, dict[int, float]] = {}
    for row in history:
        step = _step(row)
        if step is None:
            continue
        for key, value in row.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and _is_curve(key):
                points.setdefault(key, {})[step] = float(value)
    return {key: thinned(list(values.items())) for key, values in points.items()}


def _is_curve(key: str) -> bool:
    inner = key in _STEP_KEYS or key.startswith(("_", "time/", "trainer/"))
    return "/" in key and not inner and not is_delta_key(key)
