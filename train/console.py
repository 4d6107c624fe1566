"""The tables a run ends with."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from physedit.eval_hooks.agreement import AgreementReport, RepeatabilityReport
from physedit.eval_hooks.hook import EvalReport
from physedit.eval_hooks.report import law_table, overall_table, show_change, show_interval, show_value
from physedit.train.checkpoint import step_folders

FILES = ("summary.json", "report.html", "metrics.jsonl", "wandb")


def print_results(folder: Path, reports: Sequence[EvalReport]) -> None:
    """Prints the newest report of every hook against the base, its notes, and where the run's files lie."""
    console = Console()
    newest = {report.hook: report for report in sorted(reports, key=lambda report: report.step)}
    for report in newest.values():
        console.print(_table(report))
        for note in report.notes:
            console.print(note, markup=False, highlight=False)
    paths = {name: folder / name for name in FILES}
    saved = step_folders(folder / "checkpoints")
    if saved:
        paths["adapter"] = saved[-1] / "adapter"
    for name, path in paths.items():
        if path.exists():
            console.print(f"{name:14} {path}", markup=False, highlight=False, soft_wrap=True)


def print_scores(report: EvalReport) -> None:
    """Prints the scores of a folder that has no base beside it, its notes, and where its files lie."""
    console = Console()
    table = Table(title=f"{report.hook}: {report.num_questions - report.num_unscored} questions scored")
    table.add_column("")
    for column in ("score", "n"):
        table.add_column(column, justify="right")
    rows = law_table(report)
    for row in (*rows, *(r for r in overall_table(report) if r.key != rows[0].key)):
        table.add_row(row.label, show_value(row.key, row.change.tuned), str(row.change.n))
    console.print(table)
    for note in report.notes:
        console.print(note, markup=False, highlight=False)
    for path in [*sorted(report.folder.glob("*.json*")), report.folder / "report.html"]:
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)


def print_repeatability(report: RepeatabilityReport) -> None:
    """Prints how far a judge agrees with itself, over all questions and by law."""
    table = _agreement_table(f"The judge with itself, {report.num_repeats} times", ("equal answers", "always equal"))
    for label, each in {"all laws": report.overall, **report.by_law}.items():
        shares = (_share(each.share), _share(each.share_always_equal))
        table.add_row(label, *shares, str(each.num_questions), str(each.num_unanswered))
    Console().print(table)


def print_agreement(report: AgreementReport, judges: Sequence[str]) -> None:
    """Prints how far two judges agree, over all questions and by law."""
    table = _agreement_table("Two judges", ("equal answers", "Cohen's kappa"))
    for label, each in {"all laws": report.overall, **report.by_law}.items():
        kappa = "-" if each.kappa is None else f"{each.kappa:.2f}"
        table.add_row(label, _share(each.share), kappa, str(each.num_questions), str(sum(each.num_unanswered)))
    console = Console()
    console.print(table)
    for judge in judges:
        console.print(judge, markup=False, highlight=False, soft_wrap=True)
    if report.num_left_out:
        console.print(f"{report.num_left_out} questions were asked on one side only and are left out.")


def _share(share: float | None) -> str:
    """Returns a share in percent, a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _agreement_table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    table.add_column("")
    for column in (*columns, "questions", "without yes or no"):
        table.add_column(column, justify="right")
    return table


def _table(report: EvalReport) -> Table:
    table = Table(title=f"{report.hook}: step {report.step} against the base")
    table.add_column("")
    for column in ("base", "tuned", "change", "95 % interval", "n"):
        table.add_column(column, justify="right")
    rows = law_table(report)
    for row in (*rows, *(r for r in overall_table(report) if r.key != rows[0].key)):
        change = row.change
        table.add_row(
            row.label,
            show_value(row.key, change.base),
            show_value(row.key, change.tuned),
            show_change(row.key, change.change),
            show_interval(row.key, change),
            str(change.n),
        )
    return table
