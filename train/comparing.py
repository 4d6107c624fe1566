"""Finding what ``physedit compare`` is to compare, and what a sweep compares when it ends."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from physedit.eval_hooks.comparing.comparison import Comparison, compare_runs
from physedit.eval_hooks.comparing.files import CSV, JSON, MARKDOWN, PAGE, write_page, write_tables
from physedit.eval_hooks.comparing.page import check_page_can_be_made
from physedit.eval_hooks.comparing.runs import CompareError, Run, When, is_run_folder, named_apart, read_run
from physedit.launch.sweep_trials import TRIALS_FILE
from physedit.train.config import ConfigError, one_line
from physedit.train.output import check_can_be_made
from physedit.train.wandb_runs import Project, offline_files, read_offline_runs, read_project


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What was asked.

    Attributes:
        paths: run folders, sweep folders, offline runs of wandb.
        project: what to read over wandb's API besides; None for nothing.
        out: where the files go.
        when: which step stands for a run.
        against: name of the run that all others are tested against; None for every pair.
        allow_different, published: as in ``compare_runs``.
        page: write compare.html too.
        per_law: items of each law on the page.
    """

    paths: tuple[Path, ...]
    project: Project | None = None
    out: Path = Path("runs/compare")
    when: When = When.NEWEST
    against: str | None = None
    allow_different: bool = False
    published: bool = False
    page: bool = True
    per_law: int = 2


def compare(request: CompareRequest) -> tuple[Comparison, list[Path]]:
    """Returns the comparison, and the files that were written.

    Raises:
        CompareError: as ``compare_runs``, or a path holds nothing to compare.
        ConfigError: the files cannot be written there, which is found before anything is read; or wandb cannot be read
            or reached.
        DamagedFileError: a run's file cannot be read.
    """
    _check_place(request.out)
    if request.page:
        check_page_can_be_made()
    runs = [run for path in request.paths for run in _runs_at(path, request.when)]
    if request.project is not None:
        runs += read_project(request.project, when=request.when)
    comparison = compare_runs(
        named_apart(runs),
        allow_different=request.allow_different,
        published=request.published,
        against=request.against,
    )
    written = write_tables(request.out, comparison)
    if request.page:
        written.append(write_page(request.out, comparison, per_law=request.per_law))
    return comparison, written


def _check_place(out: Path) -> None:
    check_can_be_made(out)
    for path in (out / name for name in (CSV, JSON, MARKDOWN, PAGE)):
        if path.is_dir():
            raise ConfigError(f"--out {out} cannot be written: {path} is a folder. Choose another, or remove it.")


def compare_sweep(folder: Path) -> tuple[list[Path], str | None]:
    """Writes the comparison of a sweep's trials to its folder; returns the files, and why some are missing.

    A sweep may vary how its runs are evaluated, so differences are named and not refused. What cannot be compared is
    said: the trials are done, and that is no reason to fail.
    """
    request = CompareRequest(paths=(folder,), out=folder, allow_different=True)
    try:
        try:
            check_page_can_be_made()
        except CompareError as error:
            return compare(replace(request, page=False))[1], str(error)
        return compare(request)[1], None
    except OSError as error:
        return [], f"The trials are not compared: {error}. Mend it, and run physedit compare {folder}."
    except ValueError as error:  # of a trial's files; a mistake of ours would be another class
        if not type(error).__module__.startswith("physedit."):
            raise
        return [], str(error)


def _runs_at(path: Path, when: When) -> list[Run]:
    if (path / TRIALS_FILE).exists():
        return _trials(path, when)
    if is_run_folder(path):
        return [read_run(path, when=when)]
    if files := offline_files(path):
        return read_offline_runs(files, when=when)
    if not path.exists():
        raise CompareError(f"{path} does not exist. Give run folders, a sweep's folder, or offline runs of wandb.")
    inner = sorted(entry for entry in path.iterdir() if is_run_folder(entry)) if path.is_dir() else []
    hint = f" It holds run folders, such as {inner[0]}: give those." if inner else ""
    raise CompareError(
        f"{path} is neither a run folder, nor a sweep's folder with {TRIALS_FILE}, nor an offline run of wandb.{hint}"
    )


def _trials(folder: Path, when: When) -> list[Run]:
    path = folder / TRIALS_FILE
    try:
        rows: Sequence[dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))["trials"]
        found = [
            (folder / str(row["run_folder"]), str(row["state"]), tuple(dict(row["parameters"])))  # type: ignore[call-overload]
            for row in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({one_line(str(error))}). Give the run folders of its trials.") from error
    runs = [
        read_run(trial, when=when, state=state, swept=swept) for trial, state, swept in found if is_run_folder(trial)
    ]
    if not runs:
        raise CompareError(f"No trial of {path} has a run folder yet. Start the sweep first.")
    missing = [trial.name for trial, _, _ in found if not is_run_folder(trial)]
    if missing:
        note = f"Trials of {folder.name} that left no run: {', '.join(missing)}."
        runs[0] = replace(runs[0], notes=(note, *runs[0].notes))
    return runs
