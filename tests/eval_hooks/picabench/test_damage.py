import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for

from physedit.eval_hooks.files import DamagedFileError
from physedit.eval_hooks.hook import EvalReport
from physedit.eval_hooks.panel import choose_panel
from physedit.eval_hooks.picabench.folder import read_meta_info
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.manifest import read_manifest
from physedit.eval_hooks.report_file import load_report, report_keys

Make = Callable[..., PicaBenchHook]
DAMAGE = [b"", b"[]", b"{}", b'{"key": "cut o']


def run(make_hook: Make, folder: Path) -> tuple[EvalReport, PaintingEditor, RedJudge]:
    editor, judge = PaintingEditor(), RedJudge()
    return make_hook(judge).run(context_for(editor, folder, step=400)), editor, judge


@pytest.fixture
def finished(make_hook: Make, tmp_path: Path) -> EvalReport:
    return run(make_hook, tmp_path / "run")[0]


@pytest.mark.parametrize("side", ["base", "step_00000400"])
def test_only_pictures_that_differ_are_edited_anew(
    make_hook: Make, tmp_path: Path, finished: EvalReport, side: str
) -> None:
    outputs = finished.folder.parent / side / "output_img"
    kept = {file.name: file.read_bytes() for file in outputs.iterdir()}
    (outputs / "00001.png").unlink()
    (outputs / "00003.png").unlink()  # a new file: the old one may be linked to the shelf
    (outputs / "00003.png").write_bytes(b"junk")
    again, editor, judge = run(make_hook, tmp_path / "run")
    assert sum(editor.calls) == 2
    assert judge.asked == []
    assert {file.name: file.read_bytes() for file in outputs.iterdir()} == kept
    assert again.metrics == finished.metrics
    assert choose_panel(again)


def test_all_pictures_gone_are_edited_anew(make_hook: Make, tmp_path: Path, finished: EvalReport) -> None:
    shutil.rmtree(finished.folder / "output_img")
    again, editor, _ = run(make_hook, tmp_path / "run")
    assert sum(editor.calls) == 7
    assert again.metrics == finished.metrics


@pytest.mark.parametrize("content", DAMAGE)
@pytest.mark.parametrize("name", ["report.json", "manifest.json", "meta_info.json", "timing.json"])
def test_damaged_file_of_a_side_is_redone(
    make_hook: Make, tmp_path: Path, finished: EvalReport, name: str, content: bytes
) -> None:
    whole = (finished.folder / name).read_bytes()
    (finished.folder / name).write_bytes(content)
    again, _, _ = run(make_hook, tmp_path / "run")
    assert again.metrics == finished.metrics
    assert name == "timing.json" or (finished.folder / name).read_bytes() == whole
    assert choose_panel(again)


@pytest.mark.parametrize("name", ["items.jsonl", "consistency.jsonl"])
def test_damaged_answers_are_named_and_redone_once_deleted(
    make_hook: Make, tmp_path: Path, finished: EvalReport, name: str
) -> None:
    path = finished.folder / name
    whole = path.read_bytes()
    path.write_text('{"index": 0}\n')
    with pytest.raises(DamagedFileError, match=rf"{name}, line 1 is damaged: .* missing.*Delete the file"):
        run(make_hook, tmp_path / "run")
    path.unlink()
    again, editor, _ = run(make_hook, tmp_path / "run")
    assert again.metrics == finished.metrics
    assert editor.calls == []
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", ["manifest.json", "meta_info.json", "items.jsonl", "consistency.jsonl"])
def test_damaged_base_cache_is_replaced(make_hook: Make, tmp_path: Path, finished: EvalReport, name: str) -> None:
    shelves = [file for file in tmp_path.rglob(name) if "eval" not in file.parts]
    assert len(shelves) == 1
    whole = shelves[0].read_bytes()
    shelves[0].unlink()
    shelves[0].write_text("junk\n{}\n")
    report, _, _ = run(make_hook, tmp_path / "other")
    assert report.metrics == finished.metrics
    assert shelves[0].read_bytes() == whole


@pytest.mark.parametrize("content", DAMAGE)
def test_readers_name_what_is_damaged(finished: EvalReport, content: bytes) -> None:
    for name, read in (("report.json", load_report), ("manifest.json", read_manifest)):
        (finished.folder / name).write_bytes(content)
        with pytest.raises(DamagedFileError, match=rf"{name} is damaged"):
            read(finished.folder)
    assert report_keys(finished.folder) is None


def test_meta_info_that_is_no_json_is_named(finished: EvalReport) -> None:
    (finished.folder / "meta_info.json").write_text("[{")
    with pytest.raises(DamagedFileError, match=r"meta_info\.json is damaged"):
        read_meta_info(finished.folder)
