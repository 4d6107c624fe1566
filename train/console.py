"""The table a run ends with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PATHS = ("summary.json", "report.html", "metrics.jsonl", "wandb", "checkpoints")


def print_results(folder: Path, summary: Mapping[str, Any]) -> None:
    """Prints metric x base, tuned, change and interval of the newest checkpoint, and where the files lie."""
    console = Console()
    newest = summary.get("newest")
    if newest:
        table = Table(title=f"{summary['run_name']}: step {newest['step']} against the base")
        table.add_column("metric")
        for column in ("base", "tuned", "change", "95 % interval", "n"):
            table.add_column(column, justify="right")
        for key, value in newest["metrics"].items():
            table.add_row(key, *(_cells(key, value)))
        console.print(table)
    for note in summary.get("notes", ()):
        console.print(note, markup=False, highlight=False)
    for name in PATHS:
        path = folder / name
        if path.exists():
            console.print(f"{name:14} {path}", markup=False, highlight=False, soft_wrap=True)
    if newest:
        adapter = folder / newest["checkpoint"] / "adapter"
        console.print(f"{'adapter':14} {adapter}", markup=False, highlight=False, soft_wrap=True)


def _cells(key: str, value: Mapping[str, Any]) -> tuple[str, ...]:
    def show(number: float | None, sign: str = "") -> str:
        if number is None:
            return "-"
        return f"{number:{sign}.2f} dB" if "psnr" in key else f"{100 * number:{sign}.1f} %"

    interval = value["ci95"]
    between = "-" if interval is None else f"{show(interval[0], '+')} .. {show(interval[1], '+')}"
    return show(value["base"]), show(value["tuned"]), show(value["change"], "+"), between, str(value["n"])
