"""What the page shows beside the numbers: the paper's rows, bars, verdicts, and a gallery of all items."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, write_benchmark

from physedit.eval_hooks.bars import BARS_LEFT, BARS_RIGHT, BarValue, draw_bars
from physedit.eval_hooks.evidence import evidence_of
from physedit.eval_hooks.gallery import build_gallery
from physedit.eval_hooks.hook import Cadence, EvalReport
from physedit.eval_hooks.judges.judge import VerdictKind
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.published import Evaluated, place, placement_record
from physedit.eval_hooks.report import write_html_report

GPT5 = "gpt-5@api.openai.com responses"
Evaluate = Callable[..., EvalReport]


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """Evaluates step 4 of an adapter that paints on even items, with the unchanged inputs beside it."""

    def run(judge: RedJudge | None = None, num_items: int = 6, **settings: object) -> EvalReport:
        hook = PicaBenchHook(
            name="picabench",
            benchmark=str(write_benchmark(tmp_path / "bench", num_items)),
            judge=judge or RedJudge(judge_id=GPT5),
            cadence=Cadence(),
            num_steps=1,
            reference=True,
            max_unanswered_share=0.5,
            **settings,  # type: ignore[arg-type]
        )
        return hook.run(context_for(PaintingEditor(only_even=True), tmp_path / "run", step=4))

    return run


def page_of(report: EvalReport, tmp_path: Path) -> str:
    return write_html_report(tmp_path / "run", [report], title="run").read_text(encoding="utf-8")


def test_the_papers_rows_of_the_same_base_judge_and_level_stand_beside_the_runs(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    html = page_of(evaluate(editor="Qwen/Qwen-Image-Edit@abc"), tmp_path)
    assert "PICABench, arXiv 2510.17681v3, 4 January 2026: Qwen-Image-Edit, GPT-5, superficial." in html
    table = html[html.index('<table class="paper">') :]
    table = table[: table.index("</table>")]
    assert re.findall(r"<td>(Qwen[^<]+)</td><td>(\d)</td>", table) == [
        ("Qwen-Image-Edit", "1"),
        ("Qwen-Image-Edit + PICA-100K SFT", "1"),
    ]
    assert re.findall(r"[\d.]+ %", table)[:4] == ["62.90 %", "48.95 %", "67.33 %", "58.29 %"]  # laws in use, overall
    assert "laws per question; overall per item, by inference" in table
    assert "laws not known; overall per item, by inference" in table
    assert "49.71" not in html  # of the other judge
    assert html.count("paper: Qwen-Image-Edit + PICA-100K SFT *</text>") == 3  # laws
    assert "All laws, per item, paper: Qwen-Image-Edit: 58.3 %" in html
    assert "All laws, per question, paper" not in html  # Table 1's overall is not per question


def test_where_no_row_fits_the_page_says_so(evaluate: Evaluate, tmp_path: Path) -> None:
    html = page_of(evaluate(RedJudge(), editor="Qwen/Qwen-Image-Edit"), tmp_path)
    assert "No row of the paper stands beside these numbers: it has none by this judge" in html
    assert '<table class="paper">' not in html
    assert "paper: " not in html


def test_the_unchanged_input_stands_beside_base_and_tuned_in_the_bars(evaluate: Evaluate, tmp_path: Path) -> None:
    html = page_of(evaluate(), tmp_path)
    assert "Reflection, unchanged input: 50.0 %" in html
    assert "Reflection, base: 50.0 %" in html
    assert "Reflection, tuned: 75.0 %" in html


def test_what_is_open_is_counted_with_its_reason(evaluate: Evaluate, tmp_path: Path) -> None:
    report = evaluate(RedJudge(replies=[VerdictKind.REFUSED, VerdictKind.UNPARSED]))
    evidence = evidence_of(report)
    assert ("refused", 1, 0) in evidence.verdicts
    assert [(row.verdict, row.reason, row.base, row.tuned) for row in evidence.open_rows] == [
        ("refused", "the judge declined to answer", 1, 0),
        ("unparsed", "no yes or no can be read from the reply", 1, 0),
    ]
    html = page_of(report, tmp_path)
    assert "<td>refused: the judge declined to answer</td><td>1</td><td>0</td>" in html
    assert "<dt>protocol</dt><dd>strict-1-" in html
    assert "<dt>instructions</dt><dd>superficial</dd>" in html


def test_the_gallery_tells_flips_and_laws_of_every_item(evaluate: Evaluate, tmp_path: Path) -> None:
    report = evaluate()
    gallery = build_gallery(report, tmp_path / "run")
    assert [item.flips for item in gallery.items] == [("gained",), ("unchanged",)] * 3
    assert gallery.counts == {"gained": 3, "lost": 0, "unchanged": 3}
    assert gallery.laws == ("Reflection", "Causality", "Global")
    html = page_of(report, tmp_path)
    cards = re.findall(r'<div class="card" data-flips="([^"]+)" data-law="(\d)">', html)
    assert cards == [
        ("gained", "0"),
        ("unchanged", "1"),
        ("gained", "2"),
        ("unchanged", "0"),
        ("gained", "1"),
        ("unchanged", "2"),
    ]
    assert '<option value="gained">gained (3)</option>' in html
    assert '<option value="2">Global State Transition</option>' in html


def test_an_item_can_gain_and_lose(evaluate: Evaluate, tmp_path: Path) -> None:
    report = evaluate()
    for folder in (report.folder, report.folder.parent / "base"):
        rows = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
        rows[1]["correct"] = folder.name == "base"
        (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gallery = build_gallery(report, tmp_path / "run")
    assert gallery.items[0].flips == ("gained", "lost")
    assert gallery.counts == {"gained": 3, "lost": 1, "unchanged": 3}


def test_pictures_beyond_the_number_that_is_shown_are_linked(evaluate: Evaluate, tmp_path: Path) -> None:
    gallery = build_gallery(evaluate(), tmp_path / "run", num_with_pictures=4)
    shown = [item.index for item in gallery.items if item.pictures[0].data_uri is not None]
    assert shown == [0, 1, 2, 4]  # the flipped ones, then the first of the first law left
    assert gallery.num_with_pictures == 4
    links = [picture.link for item in gallery.items for picture in item.pictures]
    assert links[:3] == [
        "eval/picabench/step_00000004/input_img/00000.png",
        "eval/picabench/base/output_img/00000.png",
        "eval/picabench/step_00000004/output_img/00000.png",
    ]
    assert all((tmp_path / "run" / link).is_file() for link in links)


def test_large_pictures_become_small_jpegs(evaluate: Evaluate, tmp_path: Path) -> None:
    report = evaluate()
    path = report.folder / "output_img" / "00000.png"
    Image.effect_noise((1024, 768), 60).convert("RGB").save(path)
    picture = build_gallery(report, tmp_path / "run").items[0].pictures[2]
    assert picture.data_uri is not None
    assert picture.data_uri.startswith("data:image/jpeg;base64,")
    assert len(picture.data_uri) < 20_000
    assert not picture.is_pixel_art


def test_bars_lie_within_the_page_whatever_their_interval() -> None:
    chart = draw_bars(
        [("none", []), ("law", [BarValue("tuned", "tuned", 1.0, (0.9, 1.2)), BarValue("base", "base", 0)])]
    )
    assert chart is not None
    (group,) = chart.groups
    first, second = group.bars
    assert (first.length, second.length) == (BARS_RIGHT - BARS_LEFT, 0)
    assert first.whisker == (round(BARS_LEFT + 0.9 * (BARS_RIGHT - BARS_LEFT), 1), BARS_RIGHT)
    assert first.top < second.top < chart.height
    assert draw_bars([("none", [])]) is None


def test_evidence_of_the_papers_rows_keeps_their_averaging_apart() -> None:
    record = placement_record(place(Evaluated("Qwen/Qwen-Image-Edit", GPT5, "official", "explicit", 900, 4112)))
    rows = record["rows"]
    assert isinstance(rows, list)
    assert [row["overall_aggregation"] for row in rows] == ["per question", "per item, by inference"]
