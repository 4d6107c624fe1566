"""Runs as wandb has them: an offline run by wandb's own reader, runs of a project over its API.

They have numbers, settings and curves, but no answers and pictures: the run folder keeps those.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physedit.eval_hooks.comparing.runs import Curve, Evaluation, Run, When, configured_conditions, flat, thinned
from physedit.eval_hooks.hook import MetricChange
from physedit.train.config import ConfigError, one_line
from physedit.train.summary import delta_key, is_delta_key
from physedit.train.wandb_destination import BASE_JOB
from physedit.train.wandb_log import Log, Row, read_log

API_TIMEOUT_S = 30
_STEP_KEYS = ("trainer/step", "step", "_step")
"""What holds the run's own step, in the order of trust; ``step`` is that of older runs."""


def offline_files(path: Path) -> tuple[Path, ...]:
    """Returns the wandb logs at ``path``: the file itself, that of a run's folder, or of the runs in ``wandb/``."""
    if path.is_file():
        return (path,) if path.suffix == ".wandb" else ()
    return tuple(sorted({*path.glob("*.wandb"), *path.glob("offline-run-*/*.wandb"), *path.glob("run-*/*.wandb")}))


def read_offline_runs(files: Sequence[Path], *, when: When = When.NEWEST) -> list[Run]:
    """Returns the runs of ``.wandb`` logs; those of one run, which went on several times, are one.

    Logs that a kill left empty are passed over. Read by wandb's own reader (``wandb leet inspect``).

    Raises:
        ConfigError: wandb cannot read one, or none holds a run.
    """
    by_id: dict[str, list[Log]] = {}
    for log in map(read_log, files):
        if log is not None:
            by_id.setdefault(log.run_id, []).append(log)
    if not by_id:
        raise ConfigError(f"{files[0]} holds no run: wandb wrote nothing of it before it ended. Give the run's folder.")
    return [
        _run(
            logs[-1].name, logs[-1].place, logs[-1].state, logs[-1].config, [r for log in logs for r in log.rows], when
        )
        for logs in by_id.values()
    ]


@dataclass(frozen=True, slots=True)
class Project:
    """What to read over wandb's API.

    Attributes:
        path: ``ENTITY/PROJECT``, or ``ENTITY/PROJECT/SWEEP`` for the runs of one sweep, as ``wandb agent`` has it.
        group: only runs of this group (``tracker.group``); None for all.
    """

    path: str
    group: str | None = None


def read_project(project: Project, *, when: When = When.NEWEST) -> tuple[Run, ...]:
    """Returns the runs of a project or sweep, the oldest first; without the runs that are a base's own evaluation.

    Raises:
        ConfigError: wandb cannot be reached, knows no such project, or there is no training run.
    """
    names = project.path.split("/")
    if len(names) not in (2, 3) or not all(names):
        raise ConfigError(
            f"--wandb {project.path}: expected ENTITY/PROJECT, as in the address of the project's page, or "
            "ENTITY/PROJECT/SWEEP, as for wandb agent."
        )
    chosen = {"sweep": "/".join(names[2:]), "group": project.group or ""}
    filters = {key: value for key, value in chosen.items() if value}
    import wandb

    try:
        found = wandb.Api(timeout=API_TIMEOUT_S).runs(
            "/".join(names[:2]), filters=filters, order="+created_at", lazy=False
        )
        runs = [_from_api(run, when) for run in found if getattr(run, "job_type", None) != BASE_JOB]
    except Exception as error:  # wandb raises its own errors, those of requests, and plain ones, by release
        raise ConfigError(
            f"--wandb {project.path}: wandb's API gave no answer ({type(error).__name__}: {one_line(str(error))}). Log "
            "in with wandb login, check the name and the network; without them, give the run folders or the offline "
            "runs (RUN/wandb/offline-run-*) instead."
        ) from error
    if not runs:
        which = "".join(f" of {key} {value}" for key, value in filters.items())
        raise ConfigError(f"--wandb {project.path}: the project holds no training run{which}.")
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
