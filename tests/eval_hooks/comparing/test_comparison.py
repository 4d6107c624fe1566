"""The comparison, its files and its page."""

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from physedit.eval_hooks.comparing import page as page_module
from physedit.eval_hooks.comparing.comparison import Comparison, compare_runs, comparison_record, pareto_front
from physedit.eval_hooks.comparing.files import write_page, write_tables
from physedit.eval_hooks.comparing.page import comparison_page
from physedit.eval_hooks.comparing.pictures import picture_rows
from physedit.eval_hooks.comparing.runs import CompareError, Evaluation, Run, read_run
from physedit.eval_hooks.comparing.tables import runs_table, write_markdown
from physedit.eval_hooks.hook import MetricChange
from physedit.eval_hooks.picabench.published import Evaluated, place, placement_record, published_source


@pytest.fixture(scope="module")
def runs(folders) -> list[Run]:
    return [read_run(folder) for folder in folders]


@pytest.fixture(scope="module")
def comparison(runs: list[Run]) -> Comparison:
    return compare_runs(runs)


def test_the_record_holds_numbers_settings_and_tests(comparison: Comparison) -> None:
    record = json.loads(json.dumps(comparison_record(comparison), allow_nan=False))
    assert record["differing"] == ["optimizer.lr"]
    assert [run["settings"] for run in record["runs"]] == [{"optimizer.lr": 1e-4}, {"optimizer.lr": 4e-3}]
    hook = record["hooks"]["picabench"]
    assert (hook["headline"], hook["psnr"]) == ("picabench/acc", "picabench/psnr")
    assert hook["laws"]["Global State Transition"] == "picabench/acc/Global"
    assert hook["evaluations"]["even"]["metrics"]["picabench/acc"]["tuned"] == 0.75
    assert hook["evaluations"]["all"]["metrics"]["picabench/acc"]["tuned"] == 1.0
    assert hook["evaluations"]["all"]["flips"]["picabench/acc"] == {"gained": 12, "lost": 0}
    keys = [(test["key"], test["first"], test["second"]) for test in record["tests"]]
    assert keys == [("picabench/acc", "even", "all"), ("picabench/psnr", "even", "all")]
    assert record["tests"][0]["difference"] == 0.25
    assert record["tests"][0]["p"] == 2 / 2**6
    assert all(test["p_holm"] >= test["p"] for test in record["tests"])


def test_the_front_holds_what_no_run_beats() -> None:
    points = {"a": (1.0, 5.0), "b": (2.0, 4.0), "c": (1.0, 4.0), "d": (2.0, 4.0)}
    assert pareto_front(points) == {"a", "b", "d"}


def test_tests_against_one_run_are_fewer(runs: list[Run]) -> None:
    three = [*runs, replace(runs[0], name="third")]
    assert len(compare_runs(three).tests) == 6
    against = compare_runs(three, against="all").tests
    assert [(test.first, test.second) for test in against] == [("all", "even")] * 2 + [("all", "third")] * 2
    with pytest.raises(CompareError, match="no such run"):
        compare_runs(three, against="nobody")


def test_items_of_another_benchmark_are_not_tested_against_these(runs: list[Run]) -> None:
    evaluation = runs[1].evaluations["picabench"]
    other = replace(evaluation, conditions={**evaluation.conditions, "benchmark.benchmark": "another"})
    changed = [runs[0], replace(runs[1], evaluations={"picabench": other})]
    assert compare_runs(changed, allow_different=True).tests == ()


def test_answers_that_cannot_be_read_are_said(runs: list[Run], tmp_path: Path) -> None:
    gone = replace(runs[1].evaluations["picabench"], folder=tmp_path / "gone" / "step")
    found = compare_runs([runs[0], replace(runs[1], evaluations={"picabench": gone})])
    assert found.tests == ()
    assert any(note.startswith("all: the answers or measurements") for note in found.notes)


def test_no_runs_are_refused() -> None:
    with pytest.raises(CompareError, match="no run to compare"):
        compare_runs([])


def test_rows_of_the_paper_stand_beside_runs_where_a_report_holds_them(runs: list[Run]) -> None:
    evaluated = Evaluated("black-forest-labs/FLUX.1-Kontext-dev", "gpt-5", "official", "superficial", 900, 4112)
    placement = placement_record(place(evaluated))
    placed = [
        replace(run, evaluations={"picabench": replace(run.evaluations["picabench"], published=placement)})
        for run in runs
    ]
    (hook,) = compare_runs(placed, published=True).hooks
    assert [(each.model, each.table, each.accuracy, each.psnr_db) for each in hook.published] == [
        ("FLUX.1-Kontext", 1, 0.4893, 24.57),
        ("FLUX.1-Kontext + PICA-100K SFT", 1, 0.5064, 25.23),
        ("FLUX.1-Kontext + MIRA400K SFT", 3, 0.4696, 32.08),
    ]
    assert hook.published[0].by_law["Reflection"] == 0.575
    assert f"The paper's rows: {published_source()}." in hook.notes
    table = runs_table(compare_runs(placed, published=True), hook)
    assert table.rows[2][:3] == ("FLUX.1-Kontext (paper, Table 1, per item, by inference)", "", "48.9 %")
    assert {len(each) for each in table.rows} == {len(table.headings)}
    assert compare_runs(placed).hooks[0].published == ()


def test_tables_hold_one_row_for_each_run(comparison: Comparison, tmp_path: Path) -> None:
    names = [path.name for path in write_tables(tmp_path, comparison)]
    assert names == ["compare.csv", "compare.json", "compare.md"]
    rows = list(csv.DictReader((tmp_path / "compare.csv").open(encoding="utf-8")))
    assert [row["run"] for row in rows] == ["even", "all"]
    assert float(rows[0]["picabench/acc"]) == 0.75
    assert float(rows[0]["picabench/acc/change"]) == 0.25
    assert float(rows[0]["picabench/acc/low"]) < 0.25 < float(rows[0]["picabench/acc/high"])
    assert float(rows[1]["optimizer.lr"]) == 4e-3
    assert float(rows[1]["train/loss"]) == 0.005
    markdown = (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert "| even | 400 | 75.0 % | +25.0 (" in markdown
    assert "all against even" in markdown
    lengths = {line.count("|") for line in markdown.split("## Paired tests")[0].splitlines() if line.startswith("|")}
    assert len(lengths) == 1


def test_runs_that_were_never_evaluated_are_compared_by_settings_and_loss(runs: list[Run]) -> None:
    bare = compare_runs([replace(run, evaluations={}) for run in runs])
    assert (bare.hooks, bare.tests, bare.differing) == ((), (), ("optimizer.lr",))
    assert "| optimizer.lr | 0.0001 | 0.004 |" in write_markdown(bare)
    assert 'data-plot="curve"' in comparison_page(bare)


def test_a_hook_of_losses_is_compared_without_tests_and_without_a_front(runs: list[Run]) -> None:
    def measured(run: Run, loss: float) -> Run:
        change = MetricChange(base=0.5, tuned=loss, change=loss - 0.5, ci95=(-0.4, 0.0), n=8)
        metrics = {"heldout_loss/all": change, "heldout_loss/all/Reflection": change}
        conditions = {"benchmark.data": "x", "benchmark.rows": [1, 2]}
        found = Evaluation("heldout_loss", 400, metrics, conditions=conditions, lower_is_better=frozenset(metrics))
        return replace(run, evaluations={"heldout_loss": found})

    found = compare_runs([measured(runs[0], 0.3), measured(runs[1], 0.2)])
    (hook,) = found.hooks
    assert (hook.headline, hook.psnr, hook.front, found.tests) == ("heldout_loss/all", None, frozenset(), ())
    assert runs_table(found, hook).rows[1][2:4] == ("0.2000", "-0.3000 (-0.4000 … +0.0000)")
    assert 'data-plot="pareto"' not in comparison_page(found)


def test_the_same_items_are_pictured_in_all_runs(comparison: Comparison) -> None:
    rows = picture_rows(comparison.hooks[0], per_law=1)
    assert [row.law for row in rows] == ["Causality", "Global State Transition", "Reflection"]
    assert all(row.index % 2 == 1 for row in rows)  # where the runs differ
    assert [cell.title for cell in rows[0].cells] == ["source", "base", "even", "all", "target"]
    assert [cell.flip for cell in rows[0].cells] == ["", "", "unchanged", "gained", ""]
    assert rows[0].cells[3].answers == ("✓ yes", "✓ no")


class _Page(HTMLParser):
    """Collects what a page refers to and checks that tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br", "input", "option"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "option":
            assert self.open.pop() == tag


def test_the_page_refers_to_nothing_and_escapes_what_it_is_given(runs: list[Run]) -> None:
    hostile = replace(runs[0], name='</script><b>"even', settings={**runs[0].settings, "x": "<i>&</i>"})
    html = comparison_page(compare_runs([hostile, runs[1]]))
    page = _Page()
    page.feed(html)
    assert page.open == []
    assert page.references
    assert all(reference.startswith("data:image/") for reference in page.references)
    assert "Content-Security-Policy" in html
    assert "<b>" not in html.split("<script")[0]
    data = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["runs"][0]["name"] == '</script><b>"even'


def test_without_plotly_the_page_is_refused_with_the_remedy(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(CompareError, match=r"physedit\[compare\]"):
        write_page(tmp_path, comparison)
    assert not (tmp_path / "compare.html").exists()
