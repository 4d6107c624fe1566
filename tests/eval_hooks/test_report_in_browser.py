"""The report as a reader has it: opened from the disk in a real browser, its gallery filtered."""

from pathlib import Path

from tests.support.browser import Tab, needs_browser, opened
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, write_benchmark

from physedit.eval_hooks.hook import Cadence
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.report import write_html_report

pytestmark = needs_browser


def choose(tab: Tab, name: str, value: str) -> None:
    tab.evaluate(
        f"(() => {{ const s = document.querySelector('select[data-filter={name}]'); s.value = '{value}'; "
        "s.dispatchEvent(new Event('change')) })()"
    )


def shown(tab: Tab) -> tuple[list[str], str]:
    """Returns the items whose card is to be seen, and what the page says of their number."""
    cards = tab.evaluate(
        "[...document.querySelectorAll('.card')].filter(c => c.offsetParent)"
        ".map(c => c.innerText.match(/item (\\d+)/)[1])"
    )
    return cards, tab.evaluate("document.querySelector('.shown').textContent")


def test_the_gallery_is_filtered_by_flip_and_law_without_asking_for_anything(tmp_path: Path) -> None:
    hook = PicaBenchHook(
        name="picabench",
        benchmark=str(write_benchmark(tmp_path / "bench", 6)),
        judge=RedJudge(),
        cadence=Cadence(),
        num_steps=1,
    )
    report = hook.run(context_for(PaintingEditor(only_even=True), tmp_path / "run", step=4))
    page = write_html_report(tmp_path / "run", [report], title="run")
    with opened(page, tmp_path / "profile") as tab:
        tab.wait_for("document.readyState === 'complete' && document.querySelector('.shown')")
        assert shown(tab) == (["0", "1", "2", "3", "4", "5"], "6 of 6 items")
        choose(tab, "flips", "gained")
        assert shown(tab) == (["0", "2", "4"], "3 of 6 items")
        choose(tab, "law", "1")
        assert shown(tab) == (["4"], "1 of 6 items")
        choose(tab, "flips", "lost")
        assert shown(tab) == ([], "0 of 6 items")
        choose(tab, "flips", "")
        assert shown(tab) == (["1", "4"], "2 of 6 items")
        assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        assert tab.errors == []
        assert [url for url in tab.requests if not url.startswith(("data:", page.as_uri()))] == []
