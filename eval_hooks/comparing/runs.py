"""What there is to compare: runs, read from their folders.

A run folder is the truth; runs read from elsewhere (``train.wandb_runs``) become the same values, without pictures and
answers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from physedit.eval_hooks.files import DamagedFileError, read_json, read_json_lines
from physedit.eval_hooks.hook import EvalReport, Flips, MetricChange
from physedit.eval_hooks.report_file import load_report

CONFIG, METRICS, SUMMARY = "config.yaml", "metrics.jsonl", "summary.json"
MOST_POINTS = 400
"""Of a curve; longer ones are thinned evenly, first and last point kept."""
_STEP_FOLDER = re.compile(r"step_\d{8}")
_OF_THE_EDITOR_OR_MACHINE = frozenset(
    {"step", "adapter", "backbone", "editor", "torch", "device", "batch_size", "hook", "default_guidance",
     "default_num_steps", "source", "sizes", "num_items"}
)  # fmt: skip
"""Settings of an evaluation that two comparable ones may have different: what was evaluated, and where it ran."""
_CHOOSES_ITEMS = frozenset({"benchmark", "limit", "per_law", "data", "rows", "num_quantiles"})
"""Settings that say what was edited or, by hooks that measure losses, what they were measured on."""
Curve = tuple[tuple[int, float], ...]
"""Pairs of step and value, by ascending step."""


class CompareError(ValueError):
    """What was asked cannot be compared."""


class When(StrEnum):
    """Which evaluated step of a run stands for it."""

    NEWEST = "newest"
    BEST = "best"
    """That of the run's own rule, as ``summary.json`` has it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a hook found at the step that stands for the run.

    Attributes:
        hook, step, metrics, flips, lower_is_better, notes: as in ``EvalReport``.
        conditions: what must be equal for two evaluations to be comparable, as the report proves it: ``benchmark.*``,
            ``judge.*``, ``sampler.*`` and ``level``; empty where there is no report.
        configured: the same as the run's config asks for it, for evaluations without a report.
        measures: how the answers were measured; None if not known.
        folder: pictures and answers of this step, with those of the base in ``base`` beside it; None if not at hand.
        published: the paper's rows beside it, as its report holds them; None if it holds none.
    """

    hook: str
    step: int
    metrics: Mapping[str, MetricChange]
    flips: Mapping[str, Flips] = field(default_factory=dict)
    lower_is_better: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    conditions: Mapping[str, object] = field(default_factory=dict)
    configured: Mapping[str, object] = field(default_factory=dict)
    measures: str | None = None
    folder: Path | None = None
    published: Mapping[str, Any] | None = None

    @property
    def base_folder(self) -> Path | None:
        """Where the base's pictures and answers lie."""
        return None if self.folder is None else self.folder.parent / "base"


@dataclass(frozen=True, slots=True)
class Run:
    """A run to compare.

    Attributes:
        name: unique among the compared.
        place: its folder, or its path in wandb.
        state: of a trial of a sweep, or as wandb has it; None for a plain run folder.
        settings: its whole config by dotted key; lists as text.
        swept: keys that a sweep varies.
        evaluations: by hook.
        curves: by metric key.
        notes: what a reader must know about it.
    """

    name: str
    place: str
    state: str | None
    settings: Mapping[str, object]
    swept: tuple[str, ...]
    evaluations: Mapping[str, Evaluation]
    curves: Mapping[str, Curve]
    notes: tuple[str, ...] = ()


def is_run_folder(folder: Path) -> bool:
    """True if a run or an evaluation wrote to the folder."""
    return folder.is_dir() and any((folder / name).exists() for name in (METRICS, SUMMARY, "eval"))


def read_run(folder: Path, *, when: When = When.NEWEST, state: str | None = None, swept: Sequence[str] = ()) -> Run:
    """Returns the run of a folder, under the folder's name.

    Args:
        folder: a run folder.
        when: which step stands for it.
        state: of a trial.
        swept: keys that a sweep varies.

    Raises:
        CompareError: nothing of a run is there.
        DamagedFileError: a report, the config or metrics.jsonl cannot be read.
    """
    if not is_run_folder(folder):
        raise CompareError(
            f"{folder} is no run folder: it has neither {METRICS} nor {SUMMARY} nor eval/. Give folders below runs/, "
            "or a sweep's folder with trials.json."
        )
    settings = flat(_config(_config_file(folder)))
    reports = {path.name: _reports(path) for path in sorted((folder / "eval").glob("*")) if path.is_dir()}
    best = _best_step(folder / SUMMARY) if when is When.BEST else None
    chosen = {hook: _chosen(found, best) for hook, found in reports.items() if found}
    notes = [f"{folder.name} has no finished evaluation."] if not chosen else []
    if when is When.BEST and best is None:
        notes.append(f"{folder.name}: its summary names no best checkpoint, so its newest is shown.")
    return Run(
        name=folder.name,
        place=str(folder),
        state=state,
        settings=settings,
        swept=tuple(swept),
        evaluations={hook: _evaluation(report, settings) for hook, report in chosen.items()},
        curves=_logged(folder / METRICS) | {k: v for found in reports.values() for k, v in _evaluated(found).items()},
        notes=tuple(notes + _failures(folder / SUMMARY)),
    )


def named_apart(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Returns the runs with names that tell them apart: those that share one are called by more of their place."""
    depth, names = 1, [run.name for run in runs]
    while len(set(names)) < len(names) and depth < 8:
        depth += 1
        shared = {name for name in names if names.count(name) > 1}
        names = [
            "/".join(Path(run.place).parts[-depth:]) if name in shared else name
            for run, name in zip(runs, names, strict=True)
        ]
    if len(set(names)) < len(names):
        twice = ", ".join(sorted({name for name in names if names.count(name) > 1}))
        raise CompareError(f"The same run was given twice: {twice}. Name each once.")
    return tuple(replace(run, name=name) for run, name in zip(runs, names, strict=True))


def flat(value: object, key: str = "") -> dict[str, object]:
    """Returns a nested config by dotted key, with lists as text."""
    if isinstance(value, Mapping) and (value or not key):
        return {k: v for name, each in value.items() for k, v in flat(each, f"{key}.{name}" if key else name).items()}
    return {key: value if value is None or isinstance(value, bool | int | float | str) else str(value)}


def configured_conditions(settings: Mapping[str, object], hook: str) -> dict[str, object]:
    """Returns what a config asks of a hook that must be equal for its evaluations to be comparable."""
    own = {k.removeprefix(f"eval.{hook}."): v for k, v in settings.items() if k.startswith(f"eval.{hook}.")}
    found: dict[str, object] = {}
    for key, value in own.items():
        if key in _CHOOSES_ITEMS:
            found[f"benchmark.{key}"] = value
        elif key.split(".")[0] == "judge":
            found[key] = value
        elif key in ("seed", "num_steps", "guidance"):
            found[f"sampler.{key}"] = value
        elif key == "level":
            found[key] = value
    return found


def thinned(points: Sequence[tuple[int, float]]) -> Curve:
    """Returns at most ``MOST_POINTS`` of the points, evenly chosen, by ascending step."""
    ordered = sorted(points)
    last = len(ordered) - 1
    if last < MOST_POINTS:
        return tuple(ordered)
    return tuple(ordered[round(last * i / (MOST_POINTS - 1))] for i in range(MOST_POINTS))


def _config_file(folder: Path) -> Path:
    """The config of a run, or that of the run which an evaluation in ``RUN/evaluations/`` is of."""
    is_of_a_run = folder.parent.name == "evaluations" and not (folder / CONFIG).exists()
    return folder.parents[1] / CONFIG if is_of_a_run else folder / CONFIG


def _config(path: Path) -> Mapping[str, object]:
    if not path.exists():
        return {}
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"{path} is damaged: no yaml ({' '.join(str(error).split())}).") from error
    return config if isinstance(config, Mapping) else {}


def _reports(folder: Path) -> list[EvalReport]:
    """The finished reports of a hook, the oldest step first; step 0 is the base beside itself."""
    steps = [path for path in sorted(folder.iterdir()) if path.name == "base" or _STEP_FOLDER.fullmatch(path.name)]
    reports = [load_report(path) for path in steps if (path / "report.json").exists()]
    return sorted(reports, key=lambda report: report.step)


def _chosen(reports: Sequence[EvalReport], best: int | None) -> EvalReport:
    return next((report for report in reports if report.step == best), reports[-1])


def _best_step(path: Path) -> int | None:
    entry = read_json(path).get("best") if path.exists() else None
    return int(entry["step"]) if isinstance(entry, dict) else None


def _failures(path: Path) -> list[str]:
    rows = read_json(path).get("failed_evaluations", []) if path.exists() else []
    name = path.parent.name
    if not isinstance(rows, list):
        return []
    return [f"{name}: the evaluation {row['hook']} at step {row['step']} failed: {row['error']}" for row in rows]


def _evaluation(report: EvalReport, settings: Mapping[str, object]) -> Evaluation:
    record: Mapping[str, Any] = read_json(report.folder / "report.json")
    published = record.get("published")
    return Evaluation(
        hook=report.hook,
        step=report.step,
        metrics=report.metrics,
        flips=report.flips,
        lower_is_better=report.lower_is_better,
        notes=report.notes,
        conditions=_conditions(record),
        configured=configured_conditions(settings, report.hook),
        measures=None if record.get("measures") is None else str(record["measures"]),
        folder=report.folder,
        published=published if isinstance(published, Mapping) else None,
    )


def _conditions(record: Mapping[str, Any]) -> dict[str, object]:
    """What the report proves about benchmark, judge, sampler and level."""
    settings = dict(record.get("settings", {}))
    if settings.get("guidance", 0) is None:
        settings["guidance"] = settings.get("default_guidance")
    found: dict[str, object] = {}
    for key, value in settings.items():
        if key in _CHOOSES_ITEMS:
            found[f"benchmark.{key}"] = value
        elif key == "level":
            found[key] = value
        elif key not in _OF_THE_EDITOR_OR_MACHINE:
            found[f"sampler.{key}"] = value
    judge = record.get("judge", {})
    found |= {f"judge.{key}": judge[key] for key in ("id", "protocol") if key in judge}
    if "in_use" in record.get("items", {}):
        found["benchmark.items"] = record["items"]["in_use"]
    if "command" in record:
        found["judge.command"] = record["command"]
    if "measures" in record:
        found["judge.measures"] = record["measures"]
    return found


def _logged(path: Path) -> dict[str, Curve]:
    """The curves of training in ``metrics.jsonl``; evaluations are read from their reports."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in read_json_lines(path, ("step",)) if path.exists() else []:
        for key, value in row.items():
            if key.startswith("train/") and isinstance(value, int | float):
                points.setdefault(key, []).append((int(str(row["step"])), float(value)))
    return {key: thinned(values) for key, values in points.items()}


def _evaluated(reports: Sequence[EvalReport]) -> dict[str, Curve]:
    points: dict[str, list[tuple[int, float]]] = {}
    for report in reports:
        for key, change in report.metrics.items():
            value = change.base if report.step == 0 else change.tuned
            if value is not None:
                points.setdefault(key, []).append((report.step, value))
    return {key: thinned(values) for key, values in points.items()}
