"""The page as a reader has it: opened from the disk in a real browser."""

from collections.abc import Iterator

import pytest
from tests.support.browser import Tab, needs_browser, opened

from physedit.eval_hooks.comparing.comparison import compare_runs
from physedit.eval_hooks.comparing.files import write_page
from physedit.eval_hooks.comparing.runs import read_run

pytestmark = needs_browser

DRAWN = "Number(document.body?.dataset.drawn || 0)"
PLOTS = ["change", "change-psnr", "laws", "pareto", "curve", "parallel"]


@pytest.fixture(scope="module")
def tab(folders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    folder = tmp_path_factory.mktemp("page")
    page = write_page(folder, compare_runs([read_run(each) for each in folders]))
    with opened(page, tmp_path_factory.mktemp("profile")) as tab:
        tab.wait_for(f"{DRAWN} > 0")
        yield tab


@pytest.fixture
def fresh(tab: Tab) -> Tab:
    """The page with no filter set."""
    choose(tab, "law", "")
    choose(tab, "flip", "")
    for name in ("even", "all"):
        check(tab, name, shown=True)
    return tab


def choose(tab: Tab, control: str, value: str) -> None:
    _change(tab, f"document.getElementById('{control}')", f"value = '{value}'")


def check(tab: Tab, run: str, *, shown: bool) -> None:
    _change(tab, f"document.querySelector('#runs input[value=\"{run}\"]')", f"checked = {str(shown).lower()}")


def _change(tab: Tab, element: str, assignment: str) -> None:
    before = tab.evaluate(DRAWN)
    tab.evaluate(f"(() => {{ const e = {element}; e.{assignment}; e.dispatchEvent(new Event('change')); }})()")
    tab.wait_for(f"{DRAWN} > {before}")


def traces(tab: Tab, plot: str, what: str) -> list[object]:
    found = tab.evaluate(f"document.querySelector('[data-plot=\"{plot}\"]').data.map(t => {what})")
    assert isinstance(found, list)
    return found


def visible(tab: Tab, selector: str) -> int:
    return int(tab.evaluate(f"[...document.querySelectorAll('{selector}')].filter(e => e.offsetParent).length"))


def test_the_page_asks_for_nothing_and_complains_of_nothing(fresh: Tab) -> None:
    assert fresh.errors == []
    assert fresh.requests
    assert all(url.startswith(("file://", "data:", "blob:")) for url in fresh.requests)
    assert sum(url.startswith("file://") for url in fresh.requests) == 1


def test_every_plot_is_drawn(fresh: Tab) -> None:
    places = fresh.evaluate("[...document.querySelectorAll('[data-plot]')].map(e => e.dataset.plot)")
    assert places == PLOTS
    for plot in PLOTS:
        marks = fresh.evaluate(f"document.querySelectorAll('[data-plot=\"{plot}\"] :is(.point, .js-line)').length")
        assert marks >= 2, plot
    assert traces(fresh, "laws", "t.name") == ["even", "all"]
    assert traces(fresh, "laws", "t.x.length") == [3, 3]
    assert traces(fresh, "change", "t.x") == [[50, 25]]
    assert visible(fresh, ".item img") == 6 * 5


def test_a_law_filters_pictures_and_plots(fresh: Tab) -> None:
    choose(fresh, "law", "Reflection")
    assert visible(fresh, ".item") == 2
    assert visible(fresh, '.item[data-law="Reflection"]') == 2
    assert traces(fresh, "laws", "t.x") == [["Reflection"], ["Reflection"]]
    title = fresh.evaluate("document.querySelector('[data-plot=\"curve\"]').layout.yaxis.title.text")
    assert title == "picabench/acc/Reflection (%)"


def test_a_flip_filters_pictures(fresh: Tab) -> None:
    choose(fresh, "flip", "gained")
    gained = visible(fresh, ".item")
    choose(fresh, "flip", "lost")
    assert gained == 6
    assert visible(fresh, ".item") == 0
    choose(fresh, "flip", "unchanged")
    assert visible(fresh, ".item") == 6  # those the first run left as they were
    check(fresh, "even", shown=False)
    assert visible(fresh, ".item") == 0


def test_a_run_that_is_left_out_is_gone_everywhere(fresh: Tab) -> None:
    check(fresh, "even", shown=False)
    assert visible(fresh, "table.runs tbody tr") == 1
    assert visible(fresh, "table.tests tbody tr") == 0
    assert visible(fresh, 'figure[data-run="even"]') == 0
    assert visible(fresh, 'figure[data-run="all"]') == 6
    assert traces(fresh, "laws", "t.name") == ["all"]
    assert "even" not in traces(fresh, "curve", "t.name")
    assert traces(fresh, "parallel", "t.name") == ["all"]
    assert fresh.errors == []


def test_another_curve_can_be_chosen(fresh: Tab) -> None:
    before = fresh.evaluate(DRAWN)
    fresh.evaluate(
        "(() => { const e = document.querySelector('select.curve'); e.value = 'train/loss'; "
        "e.dispatchEvent(new Event('change')); })()"
    )
    fresh.wait_for(f"{DRAWN} > {before}")
    assert traces(fresh, "curve", "t.y") == [[0.01, 0.005], [0.01, 0.005]]
