"""The page that ``physedit judge FOLDER`` writes: a run's page, without what only a base can tell."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.support.judge_server import NO, Asked, Reply, judge_server
from tests.support.plain_outputs import files_of, judge_at, verb, write_outputs, wrong_about

BASE_ALONE = ("base", "tuned", "95 %", "flips", "Gained", "gained", "unchanged")


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return write_outputs(tmp_path / "outputs")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def judged(outputs: Path, out: Path, *more: str) -> str:
    with judge_server(always=wrong_about("0.0", "0.1", "3.0")) as server:
        assert verb(outputs, f"out={out}", *judge_at(server), *more) == 0
    return (out / "report.html").read_text(encoding="utf-8")


def body(html: str) -> str:
    """What a reader reads: the page without style, script and pictures, and without the class names and attributes."""
    seen = re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.S)
    return re.sub(r"<[^>]*>", " ", seen)


def test_a_folder_gets_the_page_of_a_run_without_what_only_a_base_can_tell(outputs: Path, tmp_path: Path) -> None:
    before = files_of(outputs)
    html = judged(outputs, tmp_path / "results")
    assert files_of(outputs) == before
    said = body(html)
    assert not [word for word in BASE_ALONE if word in said]
    assert "Outputs in outputs" in said
    assert "75.0 %" in said
    assert "Reflection, output: 50.0 %" in said
    assert re.findall(r"<tr><td>(yes|no)</td><td>(\d+)</td></tr>", html) == [("yes", "9"), ("no", "3")]
    assert len(re.findall('<div class="card"', html)) == 6
    assert '<select data-filter="flips">' not in html
    assert re.findall(r'<option value="\d">(\w+)</option>', html) == ["Reflection", "Causality"]


@pytest.mark.parametrize("place", ["results", "outputs", "outputs/below"])
def test_every_item_shows_its_pictures_and_links_to_them(outputs: Path, tmp_path: Path, place: str) -> None:
    out = tmp_path / place
    html = judged(outputs, out)
    cards = html[html.index('<div class="cards">') :]
    links = re.findall(r'<a href="([^"]+)"><img[^>]*src="data:image/[^>]*>(\w+)</a>', cards)
    assert [name for _, name in links] == ["source", "output"] * 6
    targets = [(out / unquote(link)).resolve() for link, _ in links]
    assert targets == [outputs / part / f"{index}.png" for index in range(6) for part in ("in", "out")]
    assert re.findall(r'<td>Is 0.0 right\?</td><td>yes</td><td class="wrong">✗ no</td>', html)


def test_the_papers_rows_stand_on_the_page_where_they_fit(outputs: Path, tmp_path: Path) -> None:
    html = judged(outputs, tmp_path / "results", "editor=Qwen/Qwen-Image-Edit", "level=superficial")
    assert "Beside the paper" in html
    assert "None" not in body(html)


def test_what_other_tools_write_makes_a_page(outputs: Path, tmp_path: Path) -> None:
    meta = json.loads((outputs / "meta_info.json").read_text())
    meta[0]["output_path"] = None
    meta[1]["edit_instruction"] = "<script>alert('x')</script> & \ud83d"
    for key in ("physics_law", "physics_category", "edit_operation"):
        del meta[2][key]
    meta[3]["output_path"] = str(outputs / "out" / "gone.png")
    (outputs / "out" / "4.png").write_bytes(b"no picture")
    (outputs / "in" / "5.png").unlink()
    (outputs / "meta_info.json").write_text(json.dumps(meta))
    html = judged(outputs, tmp_path / "results")
    assert len(re.findall('<div class="card"', html)) == 5
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; \\ud83d" in html
    assert len(re.findall(r'<img[^>]*alt="output of', html)) == 3


def test_a_judge_that_left_leaves_a_page_of_what_it_answered(outputs: Path, tmp_path: Path) -> None:
    def busy(asked: Asked) -> Reply:
        return Reply(text=NO) if "Is 0." in asked.texts[0] else Reply(status=401, error={"message": "key"})

    with judge_server(always=busy) as server:
        assert verb(outputs, f"out={tmp_path / 'results'}", *judge_at(server)) == 1
    said = body((tmp_path / "results" / "report.html").read_text(encoding="utf-8"))
    assert "The judge left. Questions scored:" in said
