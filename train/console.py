"""The tables a run ends with."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

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
    for path in sorted(report.folder.glob("*.json*")):
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)


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
