"""Runs beside each other: differing settings, numbers, tests of every pair, Pareto front, the paper's rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from physedit.eval_hooks.comparing.differences import different_conditions, differing_settings, refuse_different
from physedit.eval_hooks.comparing.runs import CompareError, Evaluation, Run
from physedit.eval_hooks.comparing.tests import PairTest, Records, holm, pair_tests, records_of
from physedit.eval_hooks.picabench.names import law_name
from physedit.eval_hooks.report_file import change_record

FORMAT = 1
"""Of ``compare.json``; changes when a key changes its meaning."""
_OTHER_ITEMS = "benchmark.benchmark is "
"""Begins the difference that leaves no item in common, whatever its number."""
MOST_RUNS_ALL_PAIRS = 16
"""With more runs only the first is tested against each other one, so that the correction leaves something to find."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A row of the paper, to stand beside runs; numbers as reports hold them, accuracies 0 to 1."""

    model: str
    table: int
    accuracy: float
    aggregation: str
    psnr_db: float
    by_law: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HookComparison:
    """The runs by one hook.

    Attributes:
        hook: its name.
        headline: key of its first metric.
        psnr: key of its PSNR; None if it measures none.
        overall: keys of metrics over all items, the headline first.
        laws: key of the headline by law, in display names.
        lower_is_better: keys of metrics that are.
        evaluations: by run; runs that it did not evaluate are missing.
        front: runs that no other beats in both headline and PSNR; empty without both.
        differences: conditions that were not alike, allowed all the same.
        published: the paper's rows, if they were asked for and any belong here.
        notes: what a reader must know.
    """

    hook: str
    headline: str
    psnr: str | None
    overall: tuple[str, ...]
    laws: Mapping[str, str]
    lower_is_better: frozenset[str]
    evaluations: Mapping[str, Evaluation]
    front: frozenset[str]
    differences: tuple[str, ...]
    published: tuple[PublishedRow, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``compare_runs`` found.

    Attributes:
        runs: in the order given.
        differing: keys of settings that differ.
        hooks: in the order found.
        tests: of all pairs, hooks and metrics, corrected together.
        notes: what a reader must know of the runs.
    """

    runs: tuple[Run, ...]
    differing: tuple[str, ...]
    hooks: tuple[HookComparison, ...]
    tests: tuple[PairTest, ...]
    notes: tuple[str, ...]


def compare_runs(
    runs: Sequence[Run], *, allow_different: bool = False, published: bool = False, against: str | None = None
) -> Comparison:
    """Returns the runs beside each other.

    Args:
        runs: at least one, with unique names.
        allow_different: compare evaluations of other benchmarks, judges, samplers or levels too, and say so.
        published: put the paper's rows beside them where a report holds some.
        against: test every run against this one alone; None for every pair.

    Raises:
        CompareError: no runs, or no run of the name.
        DifferentConditions: evaluations were not made alike.
    """
    if not runs:
        raise CompareError("There is no run to compare. Give run folders, or a sweep's folder.")
    if against is not None and against not in {run.name for run in runs}:
        raise CompareError(f"--against {against}: no such run. There are {', '.join(run.name for run in runs)}.")
    names = dict.fromkeys(hook for run in runs for hook in run.evaluations)
    hooks: list[HookComparison] = []
    tests: list[PairTest] = []
    notes = [note for run in runs for note in run.notes]
    for hook in names:
        evaluations = {run.name: run.evaluations[hook] for run in runs if hook in run.evaluations}
        differences = different_conditions(evaluations)
        if not allow_different:
            refuse_different(hook, differences)
        compared = _hook(hook, evaluations, differences, published=published)
        hooks.append(compared)
        records = {name: records_of(each.folder) for name, each in evaluations.items() if each.folder is not None}
        notes += [_unreadable(hook, name) for name, known in records.items() if not known and compared.psnr]
        tests += _tests(compared, {name: known for name, known in records.items() if known}, against)
    notes += _notes_on_tests(runs, against)
    return Comparison(tuple(runs), differing_settings(runs), tuple(hooks), tuple(holm(tests)), tuple(notes))


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Returns the content of ``compare.json``; docs/compare.md tells its shape."""
    return {
        "format": FORMAT,
        "differing": list(comparison.differing),
        "runs": [
            {
                "name": run.name,
                "place": run.place,
                "state": run.state,
                "settings": {key: run.settings.get(key) for key in comparison.differing},
                "curves": {key: [list(point) for point in curve] for key, curve in run.curves.items()},
            }
            for run in comparison.runs
        ],
        "hooks": {hook.hook: _hook_record(hook) for hook in comparison.hooks},
        "tests": [
            {**asdict(test), "ci95": None if test.ci95 is None else list(test.ci95)} for test in comparison.tests
        ],
        "notes": list(comparison.notes),
    }


def pareto_front(points: Mapping[str, tuple[float, float]]) -> frozenset[str]:
    """Returns the names whose point no other one beats: is at least as high in both and higher in one."""
    return frozenset(
        name
        for name, (x, y) in points.items()
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points.values())
    )


def _hook(
    hook: str, evaluations: Mapping[str, Evaluation], differences: tuple[str, ...], *, published: bool
) -> HookComparison:
    keys = dict.fromkeys(key for each in evaluations.values() for key in each.metrics)
    headline = next(iter(keys))
    overall = tuple(key for key in keys if key.count("/") == 1)
    psnr = f"{hook}/psnr" if f"{hook}/psnr" in keys else None
    depth = headline.count("/") + 1
    by_law = [key for key in keys if key.startswith(f"{headline}/") and key.count("/") == depth]
    laws = {law_name(key.rpartition("/")[2]): key for key in by_law}
    lower = frozenset(key for each in evaluations.values() for key in each.lower_is_better)
    rows, why = _published(evaluations) if published else ((), ())
    return HookComparison(
        hook=hook,
        headline=headline,
        psnr=psnr,
        overall=overall,
        laws=laws,
        lower_is_better=lower,
        evaluations=evaluations,
        front=_front(evaluations, headline, psnr) if psnr and headline not in lower else frozenset(),
        differences=differences,
        published=rows,
        notes=tuple(dict.fromkeys(note for each in evaluations.values() for note in each.notes)) + why,
    )


def _front(evaluations: Mapping[str, Evaluation], headline: str, psnr: str) -> frozenset[str]:
    points = {}
    for name, each in evaluations.items():
        x, y = (each.metrics[key].tuned if key in each.metrics else None for key in (psnr, headline))
        if x is not None and y is not None:
            points[name] = (x, y)
    return pareto_front(points)


def _published(evaluations: Mapping[str, Evaluation]) -> tuple[tuple[PublishedRow, ...], tuple[str, ...]]:
    """The paper's rows of all placements, each once, and what is to be known of them."""
    held = {name: each.published for name, each in evaluations.items()}
    rows: dict[tuple[object, ...], PublishedRow] = {}  # the paper repeats rows from table to table
    notes: list[str] = []
    for name, placement in held.items():
        if placement is None:
            notes.append(f"{name}: its report holds no rows of the paper. Evaluate it again; its pictures are kept.")
            continue
        for row in placement["rows"]:
            key = (row["model"], row["overall"], row["overall_consistency_db"])
            rows[key] = rows.get(key) or PublishedRow(
                model=str(row["model"]),
                table=int(row["table"]),
                accuracy=float(row["overall"]),
                aggregation=str(row["overall_aggregation"]),
                psnr_db=float(row["overall_consistency_db"]),
                by_law=row["accuracy"],
            )
        notes += [str(note) for note in placement["notes"]]
        if placement["rows"]:
            notes.append(f"The paper's rows: {placement['source']}.")
    return tuple(rows.values()), tuple(dict.fromkeys(notes))


def _tests(compared: HookComparison, records: Mapping[str, Records], against: str | None) -> list[PairTest]:
    kinds = {each.measures for each in compared.evaluations.values()}
    measures = next(iter(kinds))
    if len(kinds) != 1 or measures is None or any(each.startswith(_OTHER_ITEMS) for each in compared.differences):
        return []
    keys = [key for key in (compared.headline, compared.psnr) if key is not None]
    names = list(records)
    first = names[0] if against is None and len(names) > MOST_RUNS_ALL_PAIRS else against
    pairs = None if first is None else [(first, name) for name in names if name != first and first in records]
    return pair_tests(compared.hook, measures, records, keys, pairs)


def _unreadable(hook: str, name: str) -> str:
    return (
        f"{name}: the answers or measurements of {hook} cannot be read, perhaps of an earlier version, so the run is "
        "not tested and not pictured. Evaluate it again; its pictures are kept."
    )


def _notes_on_tests(runs: Sequence[Run], against: str | None) -> list[str]:
    if against is None and len(runs) > MOST_RUNS_ALL_PAIRS:
        return [f"More than {MOST_RUNS_ALL_PAIRS} runs: only {runs[0].name} is tested against each; --against chooses."]
    return []


def _hook_record(hook: HookComparison) -> dict[str, Any]:
    return {
        "headline": hook.headline,
        "psnr": hook.psnr,
        "overall": list(hook.overall),
        "laws": dict(hook.laws),
        "lower_is_better": sorted(hook.lower_is_better),
        "front": sorted(hook.front),
        "differences": list(hook.differences),
        "evaluations": {
            name: {
                "step": each.step,
                "metrics": {key: change_record(change) for key, change in each.metrics.items()},
                "flips": {key: {"gained": f.gained, "lost": f.lost} for key, f in each.flips.items()},
            }
            for name, each in hook.evaluations.items()
        },
        "published": [asdict(row) for row in hook.published],
        "notes": list(hook.notes),
    }
