"""What trackers show beside numbers."""

from pathlib import Path

import pytest
from PIL import Image
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, write_benchmark

from physedit.eval_hooks.hook import Cadence, EvalReport
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.tracked import ANSWER_COLUMNS, answer_rows, write_fixed_panel


@pytest.fixture
def reports(tmp_path: Path) -> list[EvalReport]:
    """Reports of steps 0, 200 and 400 of an adapter that paints on even items only."""
    hook = PicaBenchHook(
        name="picabench",
        benchmark=str(write_benchmark(tmp_path / "bench", 12)),
        judge=RedJudge(),
        cadence=Cadence(),
        num_steps=1,
    )
    editor = PaintingEditor(only_even=True)
    return [hook.run(context_for(editor, tmp_path / "run", step=step)) for step in (0, 200, 400)]


def test_the_panel_has_the_same_items_at_every_step(reports: list[EvalReport]):
    panels = [write_fixed_panel(report) for report in reports]
    assert [each.caption for each in panels[0]] == [each.caption for each in panels[2]]
    assert [each.path.name for each in panels[1]] == ["0000.jpg", "0001.jpg", "0002.jpg"]
    with Image.open(panels[2][0].path) as row:
        assert (row.format, row.size) == ("JPEG", (3 * 320, 320))
    assert len(write_fixed_panel(reports[1], per_law=2)) == 6


def test_every_question_is_a_row_with_both_answers(reports: list[EvalReport]):
    rows = [dict(zip(ANSWER_COLUMNS, row, strict=True)) for row in answer_rows(reports[-1])]
    assert len(rows) == reports[-1].num_questions / 2  # of base and tuned
    right = sum(row["tuned_correct"] is True for row in rows)
    assert right / len(rows) == reports[-1].metrics["picabench/acc"].tuned
    assert (rows[0]["item"], rows[0]["base_correct"], rows[0]["tuned_correct"]) == (0, False, True)
