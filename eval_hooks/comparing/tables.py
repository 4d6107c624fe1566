"""A comparison as a data frame, as CSV and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from physedit.eval_hooks.comparing.comparison import Comparison, HookComparison
from physedit.eval_hooks.comparing.differences import show_setting
from physedit.eval_hooks.comparing.runs import Run
from physedit.eval_hooks.comparing.tests import PairTest
from physedit.eval_hooks.report import show_change, show_value

if TYPE_CHECKING:
    import pandas as pd

_ABSENT = "-"
_LEVEL = 0.05
_LOSS = "train/loss"


@dataclass(frozen=True, slots=True)
class Shown:
    """A table as text: a row of headings, rows of cells, and the run that each row is about, if it is about one."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    runs: tuple[str | None, ...]


def frame_of(comparison: Comparison) -> pd.DataFrame:
    """Returns a row for each run: name, state, differing settings, last loss, then step and numbers by hook and metric.

    The columns of a metric ``KEY`` over all items are ``KEY/base``, ``KEY``, ``KEY/change``, ``KEY/low``, ``KEY/high``
    (the 95 % interval of the change) and ``KEY/n``; of the headline's laws ``KEY`` and ``KEY/change``.
    """
    import pandas as pd

    return pd.DataFrame([_frame_row(comparison, place) for place in range(len(comparison.runs))])


def runs_table(comparison: Comparison, hook: HookComparison) -> Shown:
    """Returns the table of a hook: the headline and the PSNR with their changes, then settings that differ."""
    settings = comparison.differing
    keys = [key for key in dict.fromkeys((hook.headline, hook.psnr)) if key is not None]
    headings = ["run", "step"]
    for key in keys:
        headings += [key.partition("/")[2], "change"]
    headings += ["flips", "front"] if hook.front else ["flips"]
    headings += _short(settings)
    rows = [_run_row(run, hook, settings, keys) for run in comparison.runs]
    names: list[str | None] = [run.name for run in comparison.runs]
    for paper in hook.published:
        psnr = [f"{paper.psnr_db:.2f} dB", ""] if hook.psnr else []
        row = [f"{paper.model} (paper, Table {paper.table}, {paper.aggregation})", ""]
        row += [show_value(hook.headline, paper.accuracy), "", *psnr]
        rows.append((*row, *[""] * (len(headings) - len(row))))
        names.append(None)
    return Shown(hook.hook, tuple(headings), tuple(rows), tuple(names))


def settings_table(comparison: Comparison) -> Shown:
    """Returns the settings that differ, a row each, and a column for each run."""
    names = [run.name for run in comparison.runs]
    rows = [(key, *(show_setting(run.settings.get(key)) for run in comparison.runs)) for key in comparison.differing]
    return Shown("Settings that differ", ("setting", *names), tuple(rows), tuple(None for _ in rows))


def tests_table(tests: Sequence[PairTest]) -> Shown:
    """Returns the table of paired tests; a star marks those that hold after the correction."""
    rows = [
        (
            f"{test.second} against {test.first}",
            test.key,
            _with_interval(test.key, test.difference, test.ci95),
            str(test.n),
            _ABSENT if test.gained is None else f"+{test.gained} -{test.lost}",
            show_p(test.p),
            show_p(test.p_holm) + (" *" if test.p_holm < _LEVEL else ""),
            _ABSENT if test.p_mcnemar is None else show_p(test.p_mcnemar),
        )
        for test in tests
    ]
    headings = ("pair", "metric", "difference", "items", "flips", "p", "p, Holm", "McNemar")
    return Shown("Paired tests", headings, tuple(rows), tuple(None for _ in rows))


def write_markdown(comparison: Comparison) -> str:
    """Returns the comparison as Markdown, to paste."""
    parts = ["# Comparison", f"{len(comparison.runs)} runs."]
    for hook in comparison.hooks:
        parts += [f"## {hook.hook}", _markdown(runs_table(comparison, hook))]
        parts += [f"Not alike, and compared all the same: {each}." for each in hook.differences]
        parts += list(hook.notes)
    if not comparison.hooks and comparison.differing:
        parts.append(_markdown(settings_table(comparison)))
    if comparison.tests:
        parts += ["## Paired tests", _markdown(tests_table(comparison.tests)), how_tested(comparison.tests)]
    return "\n\n".join([*parts, *comparison.notes]) + "\n"


def how_tested(tests: Sequence[PairTest]) -> str:
    """Returns what stands under the table of tests."""
    return (
        "On the items that both runs answered: interval by paired bootstrap, p by sign-flip permutation, both over "
        f"items; Holm's correction over all {len(tests)} tests here; * is below {_LEVEL}. McNemar's p takes questions "
        "for independent and is not corrected. A difference says that these two adapters differ on such items, not "
        "that a setting is better with another training seed."
    )


def show_p(p: float) -> str:
    """Returns a p-value as text."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _frame_row(comparison: Comparison, place: int) -> dict[str, object]:
    run = comparison.runs[place]
    row: dict[str, object] = {"run": run.name, "place": run.place, "state": run.state}
    row |= {key: run.settings.get(key) for key in comparison.differing}
    if loss := run.curves.get(_LOSS):
        row[_LOSS] = loss[-1][1]
    for hook in comparison.hooks:
        each = hook.evaluations.get(run.name)
        if each is None:
            continue
        row[f"{hook.hook}/step"] = each.step
        for key in hook.overall:
            if key in each.metrics:
                change = each.metrics[key]
                low, high = change.ci95 if change.ci95 is not None else (None, None)
                row |= {f"{key}/base": change.base, key: change.tuned, f"{key}/change": change.change}
                row |= {f"{key}/low": low, f"{key}/high": high, f"{key}/n": change.n}
        for key in hook.laws.values():
            if key in each.metrics:
                row |= {key: each.metrics[key].tuned, f"{key}/change": each.metrics[key].change}
    return row


def _run_row(run: Run, hook: HookComparison, settings: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    label = run.name if run.state in (None, "finished") else f"{run.name} ({run.state.replace('_', ' ')})"
    each = hook.evaluations.get(run.name)
    cells = [label, _ABSENT if each is None else str(each.step)]
    for key in keys:
        change = None if each is None else each.metrics.get(key)
        if change is None:
            cells += [_ABSENT] * 2
        else:
            cells += [show_value(key, change.tuned), _with_interval(key, change.change, change.ci95)]
    flips = None if each is None else each.flips.get(hook.headline)
    cells.append(_ABSENT if flips is None else f"+{flips.gained} -{flips.lost}")
    if hook.front:
        cells.append("●" if run.name in hook.front else "")
    return (*cells, *(show_setting(run.settings.get(key)) for key in settings))


def _with_interval(key: str, change: float | None, ci95: tuple[float, float] | None) -> str:
    if ci95 is None:
        return show_change(key, change)
    return f"{show_change(key, change)} ({show_change(key, ci95[0])} … {show_change(key, ci95[1])})"


def _short(keys: Sequence[str]) -> list[str]:
    """The last words of dotted keys where they tell the keys apart; a group for the class that it names."""
    last = [key.removesuffix("._target_").rpartition(".")[2] for key in keys]
    return [word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)]


def _markdown(table: Shown) -> str:
    lines = [table.headings, tuple("---" for _ in table.headings), *table.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
