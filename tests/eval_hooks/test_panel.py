from pathlib import Path

import pytest
import torch
from PIL import ImageDraw

from physedit.eval_hooks.panel import SheetRow, draw_sheet


def drawn_caption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> tuple[str, int]:
    """Returns what a sheet of 88 pixels writes for ``text``, and how often it measured."""
    written: list[str] = []
    measured: list[str] = []
    real_text, real_length = ImageDraw.ImageDraw.text, ImageDraw.ImageDraw.textlength

    def write(self, place, said, **rest):  # type: ignore[no-untyped-def]
        written.append(said)
        return real_text(self, place, said, **rest)

    def measure(self, said, **rest):  # type: ignore[no-untyped-def]
        measured.append(said)
        return real_length(self, said, **rest)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", write)
    monkeypatch.setattr(ImageDraw.ImageDraw, "textlength", measure)
    picture = torch.zeros((3, 16, 64), dtype=torch.uint8)
    draw_sheet(tmp_path / "sheet.png", ["source"], [SheetRow("title", text, {"source": picture})], scale=1)
    return written[-1], len(measured)


@pytest.mark.parametrize("text", ["i" * 100_000, "mirror the lamp " * 10_000], ids=["narrow", "words"])
def test_a_long_text_is_cut_to_what_has_room_in_a_few_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    caption, num_measured = drawn_caption(tmp_path, monkeypatch, text)
    assert num_measured <= 10
    assert caption.endswith("…")
    assert text.startswith(caption[:-1])
    assert 5 <= len(caption) <= 64


def test_a_text_that_has_room_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn_caption(tmp_path, monkeypatch, "a. lamp.")[0] == "a. lamp."


def test_a_text_of_several_lines_is_written_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn_caption(tmp_path, monkeypatch, "a\nb\r\n\tc")[0] == "a b c"
