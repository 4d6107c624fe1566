import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, write_benchmark

from physedit.eval_hooks.curves import draw_curve
from physedit.eval_hooks.hook import Cadence, EvalReport, MetricChange
from physedit.eval_hooks.panel import choose_panel, write_sheet
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.report import (
    group_table,
    headline_key,
    law_table,
    overall_table,
    show_change,
    show_interval,
    show_value,
    write_html_report,
)
from physedit.eval_hooks.report_file import ReportKeys, load_report, save_report


@pytest.fixture
def reports(tmp_path: Path) -> list[EvalReport]:
    """Reports of steps 0, 200 and 400 of an adapter that paints on even items only."""
    hook = PicaBenchHook(
        name="picabench",
        benchmark=str(write_benchmark(tmp_path / "bench", 12, targets=True)),
        judge=RedJudge(note="A rule <not a model> answers."),
        cadence=Cadence(),
        num_steps=1,
    )
    editor = PaintingEditor(only_even=True)
    return [hook.run(context_for(editor, tmp_path / "run", step=step)) for step in (0, 200, 400)]


class _Page(HTMLParser):
    """Collects what a page refers to and checks that tags are balanced."""

    _VOID = ("meta", "img", "br", "hr", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_is_well_formed(reports: list[EvalReport], tmp_path: Path) -> None:
    path = write_html_report(tmp_path / "run", reports, title="A & B", facts={"backbone": "painting"})
    html = path.read_text(encoding="utf-8")
    page = _Page()
    page.feed(html)
    assert page.open == []
    assert path == tmp_path / "run/report.html"
    links = [reference for reference in page.references if not reference.startswith("data:image/png;base64,")]
    assert len(links) == 12 * 3
    assert all((tmp_path / "run" / link).is_file() for link in links)
    assert not re.search(r"@import|url\(|http", html)
    assert page.count["img"] == 3 * 3 * 4 + 12 * 3  # laws, items of each, pictures of each; then those of all items
    assert page.count["svg"] == 4 + 1  # acc, acc_item, psnr, psnr_512; the laws
    assert "A &amp; B" in html
    assert "Judge: A rule &lt;not a model&gt; answers." in html
    assert "✓ yes" in html
    assert "✗ no" in html


def test_the_panel_shows_what_improved_and_what_is_still_wrong(reports: list[EvalReport]) -> None:
    panel = choose_panel(reports[-1], per_law=2)
    assert [(item.law, item.story) for item in panel[:2]] == [
        ("Reflection", "put right"),
        ("Reflection", "still wrong"),
    ]
    assert [set(item.pictures) for item in panel] == [{"source", "base", "tuned", "target"}] * 6
    asked = panel[0].asked[0]
    assert asked.base is not None
    assert asked.tuned is not None
    assert (asked.base.correct, asked.tuned.correct) == (False, True)


def test_the_sheet_has_a_row_for_each_law(reports: list[EvalReport], tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "sheet.png", reports[-1], scale=4)
    with Image.open(path) as sheet:
        assert sheet.width == 4 * (64 + 12) + 12
        red = sum(sheet.crop((164, 0, 228, sheet.height)).getpixel((20, y)) == (255, 0, 0) for y in range(sheet.height))
    assert red == 3 * 4 * 4  # the adapter's patch of 4 pixels, enlarged, on three rows


def test_law_table_begins_with_all_laws(reports: list[EvalReport]) -> None:
    rows = law_table(reports[-1])
    assert headline_key(reports[-1]) == "picabench/acc"
    assert [row.label for row in rows] == ["All laws", "Reflection", "Causality", "Global State Transition"]
    assert sum(row.change.n for row in rows[1:]) == rows[0].change.n == 12
    assert rows[0].flips is not None
    assert rows[0].flips.gained == 6
    overall = ["picabench/acc", "picabench/acc_item", "picabench/psnr", "picabench/psnr_512"]
    assert [row.key for row in overall_table(reports[-1])] == overall
    assert group_table(reports[-1])[0].label == "category: Optics"


def test_a_report_is_read_back_as_it_was_written(reports: list[EvalReport]) -> None:
    assert load_report(reports[-1].folder) == reports[-1]
    assert load_report(reports[-1].folder).seconds > 0


def test_values_are_shown_with_their_unit() -> None:
    change = MetricChange(base=0.5, tuned=0.625, change=0.125, ci95=(-0.01, 0.26), n=8)
    assert show_value("picabench/acc/Reflection", 0.625) == "62.5 %"
    assert show_value("picabench/psnr", 23.456) == "23.46 dB"
    assert show_value("heldout/loss", 0.25) == "0.2500"
    assert show_value("picabench/acc", None) == "n/a"
    assert show_change("picabench/acc", 0.125) == "+12.5"
    assert show_interval("picabench/acc", change) == "-1.0 … +26.0"


def test_the_unit_belongs_to_the_metric_whatever_the_hook_and_the_law_are_called() -> None:
    assert show_value("accidents/psnr", 23.456) == "23.46 dB"
    assert show_change("accidents/psnr/acc", 1.25) == "+1.25"
    assert show_value("accidents/loss", 0.25) == "0.2500"
    assert show_value("accidents/accuracy_loss", 0.25) == "0.2500"
    assert show_value("psnr/physics_acc/psnr", 0.25) == "25.0 %"
    assert show_change("psnr/acc_item", 0.25) == "+25.0"


def test_no_reports_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no report"):
        write_html_report(tmp_path, [], title="empty")


def test_a_report_without_pictures_is_shown_as_numbers(tmp_path: Path) -> None:
    change = MetricChange(base=0.5, tuned=0.25, change=-0.25, ci95=None, n=8)
    report = EvalReport(hook="heldout", step=4, metrics={"heldout/loss": change}, folder=tmp_path / "eval")
    html = write_html_report(tmp_path, [report], title="numbers").read_text(encoding="utf-8")
    assert "0.2500" in html
    assert "<img" not in html


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_a_level_curve_can_be_drawn(value: float) -> None:
    change = MetricChange(base=value, tuned=value, change=0.0, ci95=(0.0, 0.0), n=4)
    label: Callable[[float], str] = lambda number: f"{number:.2f}"  # noqa: E731
    curve = draw_curve("level", [(0, change), (10, change)], label)
    assert curve is not None
    assert len(curve.dots) == 2
    assert draw_curve("nothing", [(0, MetricChange(None, None, None, None, 0))], label) is None


def test_a_loss_that_falls_is_shown_as_good_and_its_report_is_read_back(tmp_path: Path) -> None:
    fallen = MetricChange(base=0.5, tuned=0.4, change=-0.1, ci95=(-0.2, -0.05), n=9)
    report = EvalReport("loss", 400, {"loss/all": fallen}, tmp_path / "step", lower_is_better=frozenset({"loss/all"}))
    save_report(report, keys=ReportKeys("a", "b"), evidence={})
    read = load_report(tmp_path / "step")
    assert read == report
    html = write_html_report(tmp_path, [read], title="t").read_text(encoding="utf-8")
    assert '<span class="up">▼ -0.1000</span>' in html
    assert [row.label for row in law_table(read)] == ["all"]
