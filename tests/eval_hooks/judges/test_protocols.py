"""What a judge is shown and what its reply means, by either protocol; values follow from the published rules."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from physedit.data_loaders.sample import Box, DatasetRowError
from physedit.eval_hooks.judges.crops import falls_back
from physedit.eval_hooks.judges.judge import Verdict, VerdictKind
from physedit.eval_hooks.judges.protocols import (
    FAILED_CALL,
    OfficialPath,
    OfficialProtocol,
    StrictProtocol,
    choose_protocol,
    media_type,
    read_as_official,
)

GPT, QWEN, STRICT = OfficialProtocol(OfficialPath.GPT), OfficialProtocol(OfficialPath.QWEN), StrictProtocol()
PATCH = Box(400.0, 300.0, 200.0, 120.0)
"""In the frame whose long side is 1024: a picture of 4:3 is 1024x768 there."""


def with_patch(width: int, height: int) -> Tensor:
    """Black, with a red patch at the place of ``PATCH`` in pixels of this size."""
    picture = torch.zeros(3, height, width, dtype=torch.uint8)
    scale = max(width, height) / 1024
    rows = slice(round(PATCH.y * scale), round((PATCH.y + PATCH.height) * scale))
    columns = slice(round(PATCH.x * scale), round((PATCH.x + PATCH.width) * scale))
    picture[0, rows, columns] = 255
    return picture


def opened(content: bytes | None) -> Image.Image:
    assert content is not None
    return Image.open(io.BytesIO(content)).convert("RGB")


def jpeg(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=90)
    return buffer.getvalue()


def noise(width: int, height: int) -> Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def as_image(picture: Tensor) -> Image.Image:
    return Image.fromarray(picture.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("protocol", [GPT, QWEN, STRICT], ids=["gpt", "qwen", "strict"])
@pytest.mark.parametrize(("width", "height"), [(512, 384), (1536, 1152), (1024, 768)])
def test_p01_the_crop_shows_the_patch_whatever_the_outputs_size(
    protocol: StrictProtocol, width: int, height: int
) -> None:
    shown = np.asarray(opened(protocol.shown(with_patch(width, height), PATCH)))
    # The patch of 200x120 with 20 pixels around it is 240x160, enlarged to 1024 by 682 (4.27 times, truncated) or 683.
    assert shown.shape[1] == 1024
    assert shown.shape[0] in (682, 683)
    inside, margin = shown[100:-100, 100:-100], 70
    assert inside[..., 0].min() > 200
    assert inside[..., 1].max() < 60
    outside = [shown[:margin], shown[-margin:], shown[:, :margin], shown[:, -margin:]]
    assert max(side[..., 0].max() for side in outside) < 60


def test_the_gpt_path_sends_two_generations_of_jpeg_and_the_qwen_path_one() -> None:
    picture = noise(1024, 683)
    region = as_image(picture).crop((80, 30, 320, 230)).resize((1024, 853), Image.Resampling.LANCZOS)
    once = jpeg(region)
    assert QWEN.shown(picture, Box(100, 50, 200, 160)) == once
    assert GPT.shown(picture, Box(100, 50, 200, 160)) == jpeg(opened(once))


@pytest.mark.parametrize(("long", "expected"), [(98, 1023), (685, 1023), (1568, 1023), (512, 1024), (2048, 1024)])
def test_sizes_are_truncated_officially_and_rounded_strictly(long: int, expected: int) -> None:
    assert max(opened(GPT.shown(noise(long, 40), None)).size) == expected
    assert max(opened(STRICT.shown(noise(long, 40), None)).size) == 1024


def test_coordinates_are_clipped_and_rounded_half_to_even() -> None:
    picture = noise(1024, 683)
    for box, corners in (
        (Box(-50.5, -30, 200, 100.25), (0, 0, 170, 90)),  # 169.5 and 90.25
        (Box(200.5, 100.5, 100, 100), (180, 80, 320, 220)),  # 180.5, 80.5, 320.5 and 220.5
        (Box(900, 600, 500, 500), (880, 580, 1024, 683)),
    ):
        region = as_image(picture).crop(corners)
        scale = 1024 / max(region.size)
        size = int(region.width * scale), int(region.height * scale)
        assert QWEN.shown(picture, box) == jpeg(region.resize(size, Image.Resampling.LANCZOS))


WHOLE = {
    "beyond the right edge": Box(1100, 50, 20, 20),
    "below": Box(400, 800, 30, 30),
    "negative": Box(300, 200, -100, -100),
    "not usable": None,
}


@pytest.mark.parametrize("box", WHOLE.values(), ids=WHOLE)
def test_officially_a_box_that_cannot_be_cropped_shows_the_whole_picture_and_is_told_of(box: Box | None) -> None:
    picture = noise(1024, 683)
    assert falls_back(1024, 683, box)
    assert GPT.shown(picture, box) == jpeg(as_image(picture))
    lossless = QWEN.shown(picture, box)
    assert media_type(lossless) == "image/png"
    assert np.array_equal(np.asarray(opened(lossless)), picture.permute(1, 2, 0).numpy())


def test_strictly_a_box_that_does_not_meet_the_picture_shows_nothing() -> None:
    picture = noise(1024, 683)
    for box in (Box(1100, 50, 20, 20), Box(400, 800, 30, 30), Box(300, 200, -100, -100), Box(300, 200, 0, 0)):
        assert STRICT.shown(picture, box) is None
    assert STRICT.shown(picture, None) is not None


def test_a_box_of_no_area_inside_the_picture_is_cropped_with_its_margin() -> None:
    assert not falls_back(1024, 683, Box(300, 200, 0, 0))
    assert opened(GPT.shown(noise(1024, 683), Box(300, 200, 0, 0))).size == (1024, 1024)


def test_an_unreadable_picture_is_white_officially_and_nothing_strictly() -> None:
    for protocol in (GPT, QWEN):
        shown = opened(protocol.shown(None, PATCH))
        assert shown.size == (512, 512)
        assert shown.getextrema() == ((255, 255),) * 3
    assert STRICT.shown(None, PATCH) is None


def test_the_prompt_is_the_published_one() -> None:
    instruction = (
        "\n\nPlease provide a structured answer in the following JSON format:\n"
        '{"answer": "Yes" or "No", "explanation": "Brief explanation of your reasoning"}\n\n'
        "Output ONLY valid JSON. No extra text."
    )
    assert GPT.prompt("Is it wet?") == ("Is it wet?" + instruction,)
    assert QWEN.prompt("Is it wet?") == ("Is it wet?", instruction)
    assert choose_protocol("official", "responses").prompt("Q") == GPT.prompt("Q")
    assert choose_protocol("official", "chat").prompt("Q") == QWEN.prompt("Q")
    assert len({each.protocol_id for each in (GPT, QWEN, STRICT)}) == 3


REPLIES: list[tuple[str, str, str]] = [
    # reply, the official answer, the strict verdict
    ('{"answer": "Yes", "explanation": "x"}', "Yes", "yes"),
    ('{"answer": "no.", "explanation": "x"}', "No", "no"),
    ('{"answer": "true", "explanation": "x"}', "Yes", "unparsed"),
    ('```json\n{"answer": "No", "explanation": "x"}\n```', "No", "no"),
    ('{"answer": true, "explanation": "x"}', '{"answer":', "yes"),
    ('{"answer": false, "explanation": "no"}', "No", "no"),
    ('{"answer": "No", "explanation": null}', "No", "no"),
    ('{"answer": "Yes, it is", "explanation": "x"}', "Yes, it is", "yes"),
    ('{"answer": "Maybe", "explanation": "yes"}', "Maybe", "unparsed"),
    ('{"answer": "", "explanation": "yes"}', "Yes", "unparsed"),
    ('{"explanation": "yes", "answer": "No"}', "No", "no"),
    ('{"answer": "No", "explanation": "a"} {"answer": "Yes", "explanation": "b"}', "No", "yes"),
    ('{"answer": "No", "explanation": "the answer yes would', "Yes", "unparsed"),
    ('<think>yes</think>{"answer": "No", "explanation": "x"}', "No", "no"),
    ("<think>yes, yes</think>No", "Yes", "no"),
    ("<think>so the answer is yes", "Yes", "unparsed"),
    ("No, the answer is not yes", "No", "no"),
    ("The answer is not yes", "Yes", "unparsed"),
    ("not yes", "No", "unparsed"),
    ("No, although it is nearly there", "No", "no"),
    ("Not sure, it is dark", "No", "unparsed"),
    ("Nothing is wet", "No", "unparsed"),
    ("Now it is wet", "No", "unparsed"),
    ("no doubt: yes", "No", "yes"),
    ("The answer is yes.", "Yes", "yes"),
    ("**Yes**", "Yes", "yes"),
    ("YES", "Yes", "yes"),
    ("No. Actually, yes.", "No", "yes"),
    ("It looks right to me", "It looks r", "unparsed"),
    ("是的", "是的", "unparsed"),
    ("", "Unknown", "unparsed"),
    (FAILED_CALL, "Error: all", "unparsed"),
]


@pytest.mark.parametrize(("reply", "official", "strict"), REPLIES)
def test_replies_are_read_as_the_published_script_reads_them_and_strictly(
    reply: str, official: str, strict: str
) -> None:
    assert GPT.parse(reply).answer == official
    assert STRICT.parse(reply).kind.value == strict


def test_p07_a_denied_yes_is_no_yes() -> None:
    for reply in ("No, the answer is not yes", "It is not yes", '{"answer": "No", "explanation": "not yes"}'):
        assert STRICT.parse(reply).kind is not VerdictKind.YES
        assert STRICT.is_correct(STRICT.parse(reply), "Yes") is not True
    assert STRICT.parse("No, the answer is not yes").kind is VerdictKind.NO


def test_only_the_gpt_path_strips_a_reply() -> None:
    assert GPT.parse("   ").answer == "Unknown"
    assert QWEN.parse("   ").answer == "   "


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("Yes", "yes.", True),
        ("No", "NO", True),
        ("Maybe", " maybe.. ", True),
        ("Yes", "y", False),
        ("Unknown", "No", False),
    ],
)
def test_officially_texts_are_compared_whatever_they_are(answer: str, reference: str, expected: bool) -> None:
    verdict = Verdict(VerdictKind.UNPARSED, "", "", answer)
    assert GPT.is_correct(verdict, reference) is expected
    assert STRICT.is_correct(verdict, reference) is None


def test_officially_neither_orientation_nor_transparency_counts(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (40, 20), "blue").save(tmp_path / "turned.png", exif=turned)
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert tuple(read_as_official(tmp_path / "turned.png").shape) == (3, 20, 40)
    assert tuple(STRICT.read(tmp_path / "turned.png").shape) == (3, 40, 20)
    assert read_as_official(tmp_path / "clear.png")[:, 0, 0].tolist() == [255, 0, 0]
    assert STRICT.read(tmp_path / "clear.png")[:, 0, 0].tolist() == [255, 255, 255]


def test_what_is_no_picture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    for protocol in (GPT, STRICT):
        for name in ("broken.png", "absent.png"):
            with pytest.raises(DatasetRowError, match=name):
                protocol.read(tmp_path / name)
