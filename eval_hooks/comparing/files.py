"""The files of a comparison."""

from pathlib import Path

from physedit.eval_hooks.comparing.comparison import Comparison, comparison_record
from physedit.eval_hooks.comparing.page import check_page_can_be_made, comparison_page
from physedit.eval_hooks.comparing.tables import frame_of, write_markdown
from physedit.eval_hooks.files import write_json, write_text

CSV, JSON, MARKDOWN, PAGE = "compare.csv", "compare.json", "compare.md", "compare.html"


def write_tables(folder: Path, comparison: Comparison) -> list[Path]:
    """Writes ``compare.csv``, ``compare.json`` and ``compare.md``, and returns their paths."""
    write_text(folder / CSV, frame_of(comparison).to_csv(index=False))
    write_json(folder / JSON, comparison_record(comparison))
    write_text(folder / MARKDOWN, write_markdown(comparison))
    return [folder / name for name in (CSV, JSON, MARKDOWN)]


def write_page(folder: Path, comparison: Comparison, *, per_law: int = 2) -> Path:
    """Writes ``compare.html`` and returns its path.

    Args:
        folder: receives it.
        comparison: what to show.
        per_law: items of each law that are pictured.

    Raises:
        CompareError: plotly is not installed.
    """
    check_page_can_be_made()
    write_text(folder / PAGE, comparison_page(comparison, per_law=per_law))
    return folder / PAGE
