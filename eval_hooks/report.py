"""The report a person reads: one HTML file that needs nothing else, and the table the command line prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined

from physedit.eval_hooks.bars import BAR_HEIGHT, BARS_LEFT, BARS_RIGHT, BARS_WIDTH, BarChart, BarValue, draw_bars
from physedit.eval_hooks.curves import HEIGHT, LEFT, RIGHT, WIDTH, Curve, draw_curve
from physedit.eval_hooks.evidence import Evidence, PaperRow, evidence_of
from physedit.eval_hooks.files import write_text
from physedit.eval_hooks.gallery import Gallery, build_gallery
from physedit.eval_hooks.hook import EvalReport, Flips, MetricChange, MetricValue
from physedit.eval_hooks.metrics.metric import Answer
from physedit.eval_hooks.panel import COLUMNS, PanelItem, choose_panel, has_pictures
from physedit.eval_hooks.picabench.names import NAME_OF, law_name
from physedit.eval_hooks.picabench.published import Aggregation
from physedit.eval_hooks.thumbnails import data_uri, display_side

_TEMPLATE = "report.html.jinja"
_ABSENT = "n/a"
_TITLES = {
    "acc": "Accuracy, per question",
    "acc_item": "Accuracy, per item",
    "physics_acc": "Physics accuracy",
    "semantic_acc": "Semantic accuracy",
    "psnr": "PSNR outside the edit",
    "psnr_512": "PSNR outside the edit, at 512",
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line of the table: ``flips`` only for accuracies, ``input_copy`` only where the inputs were evaluated.

    ``lower_is_better`` tells which way a change is good.
    """

    label: str
    key: str
    change: MetricChange
    flips: Flips | None
    input_copy: MetricValue | None = None
    lower_is_better: bool = False


def headline_key(report: EvalReport) -> str:
    """Returns the key of the metric that stands for the report: its first."""
    return next(iter(report.metrics))


def law_table(report: EvalReport) -> list[TableRow]:
    """Returns the headline metric over all items, then by law."""
    headline = headline_key(report)
    depth = headline.count("/") + 1
    by_law = [key for key in report.metrics if key.startswith(f"{headline}/") and key.count("/") == depth]
    title = "All laws" if by_law else _TITLES.get(_label(headline), _label(headline))
    return [_row(report, headline, title)] + [_row(report, key, law_name(_label(key))) for key in by_law]


def overall_table(report: EvalReport) -> list[TableRow]:
    """Returns the metrics over all items."""
    keys = [key for key in report.metrics if key.count("/") == 1]
    return [_row(report, key, _TITLES.get(_label(key), _label(key))) for key in keys]


def group_table(report: EvalReport) -> list[TableRow]:
    """Returns the headline metric by category, operation and level, where the report has them."""
    headline = headline_key(report)
    depth = headline.count("/") + 2
    keys = [key for key in report.metrics if key.startswith(f"{headline}/") and key.count("/") == depth]
    return [_row(report, key, _label_of_group(key)) for key in keys]


def show_value(key: str, value: float | None) -> str:
    """Returns a metric's value as text: accuracies in percent, PSNR in dB."""
    if value is None:
        return _ABSENT
    words = _words_of_metric(key)
    if "acc" in words:
        return f"{100 * value:.1f} %"
    return f"{value:.2f} dB" if "psnr" in words else f"{value:.4f}"


def show_change(key: str, value: float | None) -> str:
    """Returns a difference as text with its sign: accuracies in percentage points, PSNR in dB."""
    if value is None:
        return _ABSENT
    words = _words_of_metric(key)
    if "acc" in words:
        return f"{100 * value:+.1f}"
    return f"{value:+.2f}" if "psnr" in words else f"{value:+.4f}"


def show_interval(key: str, change: MetricChange) -> str:
    """Returns the 95 % interval of a change as text."""
    if change.ci95 is None:
        return _ABSENT
    low, high = (show_change(key, bound) for bound in change.ci95)
    return f"{low} … {high}"


def _words_of_metric(key: str) -> list[str]:
    """Returns the words of a key's second part: the first is the hook's name, what follows is a law or a group."""
    return key.partition("/")[2].partition("/")[0].split("_")


def write_html_report(
    run_folder: Path,
    reports: Sequence[EvalReport],
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    per_law: int = 3,
    outputs: Path | None = None,
) -> Path:
    """Writes ``run_folder/report.html`` and returns its path.

    Args:
        run_folder: receives the file.
        reports: of one run, all hooks and steps in any order.
        title: heading.
        facts: short labelled facts about the run, shown under the heading.
        per_law: pictures of each law.
        outputs: where the pictures lie that the reports are about if no base stands beside them, as those of any
            editor; None for the reports of a run.

    Raises:
        ValueError: no reports.
        FileNotFoundError: pictures of the last report of a hook are gone.
    """
    if not reports:
        raise ValueError(f"{run_folder}: there is no report to write about. Evaluate at least one checkpoint first.")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_template),
    )
    hooks = dict.fromkeys(report.hook for report in reports)
    html = environment.get_template(_TEMPLATE).render(
        title=title,
        facts=facts or {},
        sections=[_section([r for r in reports if r.hook == hook], run_folder, per_law, outputs) for hook in hooks],
        has_base=outputs is None,
        edited="tuned" if outputs is None else "output",
        bars_width=BARS_WIDTH,
        bars_left=BARS_LEFT,
        bars_right=BARS_RIGHT,
        bar_height=BAR_HEIGHT,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=RIGHT,
        columns=COLUMNS,
        show_value=show_value,
        show_change=show_change,
        show_interval=show_interval,
        law_name=law_name,
        sign_of=_sign_of,
        worth_of=_worth_of,
        mark_of=_mark_of,
        picture_of=data_uri,
        side_of=display_side,
    )
    path = run_folder / "report.html"
    write_text(path, html)
    return path


@dataclass(frozen=True, slots=True)
class _Section:
    """What the template shows of one hook."""

    hook: str
    last: EvalReport
    overall: list[TableRow]
    laws: list[TableRow]
    groups: list[TableRow]
    curves: list[Curve]
    panel: tuple[PanelItem, ...]
    bars: BarChart | None
    evidence: Evidence
    paper_laws: list[str]
    paper: list[PaperRow]
    gallery: Gallery | None


def _template(name: str) -> str:
    return resources.files("physedit.eval_hooks").joinpath(name).read_text(encoding="utf-8")


def _section(reports: Sequence[EvalReport], run_folder: Path, per_law: int, outputs: Path | None) -> _Section:
    ordered = sorted(reports, key=lambda report: report.step)
    last = ordered[-1]
    evidence = evidence_of(last)
    laws = [row.label for row in law_table(last)[1:]]
    return _Section(
        hook=last.hook,
        last=last,
        overall=overall_table(last),
        laws=law_table(last),
        groups=group_table(last),
        curves=[curve for row in overall_table(last) if (curve := _curve(row, ordered)) is not None],
        panel=choose_panel(last, per_law=per_law) if outputs is None and has_pictures(last) else (),
        bars=_bars(last, evidence, "tuned" if outputs is None else "output"),
        evidence=evidence,
        paper_laws=laws,
        paper=evidence.paper_rows(laws),
        gallery=build_gallery(last, run_folder, outputs=outputs) if outputs or has_pictures(last) else None,
    )


def _bars(report: EvalReport, evidence: Evidence, edited: str) -> BarChart | None:
    """Returns the headline accuracy over all laws and by law beside the paper's, None if the headline is none."""
    headline = headline_key(report)
    if "acc" not in _words_of_metric(headline):
        return None
    overall, *laws = law_table(report)
    per_question = f"{overall.label}, per question" if headline == f"{report.hook}/acc" else overall.label
    groups = [(per_question, [*_bars_of(overall, edited), *evidence.bars_overall(Aggregation.PER_QUESTION)])]
    per_item = f"{report.hook}/acc_item"
    if per_item in report.metrics:
        row = _row(report, per_item, f"{overall.label}, per item")
        groups.append((row.label, [*_bars_of(row, edited), *evidence.bars_overall(Aggregation.PER_ITEM)]))
    groups += [(row.label, [*_bars_of(row, edited), *evidence.bars_of_law(row.label)]) for row in laws]
    return draw_bars(groups)


def _bars_of(row: TableRow, edited: str) -> list[BarValue]:
    """Returns the unchanged input's bar, the base's, and that of what was edited with the interval of its change."""
    bars, change = [], row.change
    if row.input_copy is not None and row.input_copy.value is not None:
        bars.append(BarValue("copy", "unchanged input", row.input_copy.value))
    if change.base is not None:
        bars.append(BarValue("base", "base", change.base))
    if change.tuned is not None:
        reach = None
        if change.ci95 is not None and change.base is not None:
            reach = (change.base + change.ci95[0], change.base + change.ci95[1])
        bars.append(BarValue("tuned", edited, change.tuned, reach))
    return bars


def _curve(row: TableRow, reports: Sequence[EvalReport]) -> Curve | None:
    points = [(report.step, report.metrics[row.key]) for report in reports if row.key in report.metrics]
    label_of: Callable[[float], str] = lambda value: show_value(row.key, value)  # noqa: E731  (closes over the row)
    return draw_curve(row.label, points, label_of)


def _row(report: EvalReport, key: str, label: str) -> TableRow:
    return TableRow(
        label=label,
        key=key,
        change=report.metrics[key],
        flips=report.flips.get(key),
        input_copy=report.input_copy.get(key),
        lower_is_better=key in report.lower_is_better,
    )


def _label_of_group(key: str) -> str:
    group, value = key.split("/")[-2:]
    return f"{group}: {NAME_OF[group](value) if group in NAME_OF else _label(key)}"


def _label(key: str) -> str:
    name = key.rpartition("/")[2]
    return name if name in _TITLES else name.replace("_", " ")


def _sign_of(change: MetricChange) -> str:
    """Returns which way the change goes beyond its interval: up, down or level."""
    if change.ci95 is None or change.ci95[0] <= 0 <= change.ci95[1]:
        return "level"
    return "up" if change.ci95[0] > 0 else "down"


def _worth_of(row: TableRow) -> str:
    """Returns the class of a change's colour: up for one that is good beyond its interval, down for one that is bad."""
    sign = _sign_of(row.change)
    return {"up": "down", "down": "up", "level": "level"}[sign] if row.lower_is_better else sign


def _mark_of(answer: Answer | None) -> tuple[str, str]:
    """Returns the class and the text of an answer; the text tells right from wrong without colour."""
    if answer is None:
        return "open", _ABSENT
    if answer.correct is None:
        return "open", f"? {answer.verdict}"
    return ("right", f"✓ {answer.verdict}") if answer.correct else ("wrong", f"✗ {answer.verdict}")
