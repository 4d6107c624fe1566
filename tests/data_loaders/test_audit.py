"""Whatever is wrong with a row, the audit goes on and says what a run would make of it."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tests.support.plain_pairs import PlainPairs
from torch import Tensor

from physedit.data_loaders.audit import Audit, audited
from physedit.data_loaders.loader import CHANGED
from physedit.data_loaders.marks import KnownPictures, Match, pixel_digest
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import EditSample, PictureSizeError, PromptLevel, RowHeader
from physedit.data_loaders.slots import UNFIT_SIZE
from physedit.data_loaders.tally import Counting
from physedit.data_loaders.text_limits import Overlong, TextLimit, TextRefusal
from physedit.train.check_record import text_said

EXPLICIT = frozenset([PromptLevel.EXPLICIT])


class Odd(PlainPairs):
    """Row 0 raises what no row should, rows 1 and 2 changed since they were indexed, row 3 has a narrow reference."""

    def header(self, index: int) -> RowHeader:
        header = super().header(index)
        return replace(header, references=((1, 9),)) if index == 3 else header

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        sample = super().sample(index, level)
        if index == 0:
            raise RuntimeError("a fault of the reader")
        if index == 1:
            return replace(sample, source=sample.source.new_zeros(3, 9, 9))
        return replace(sample, references=(sample.source[:, :1],)) if index == 2 else sample


def sizes_of(height: int, width: int) -> tuple[int, int]:
    if height < 2:
        raise PictureSizeError("too narrow")
    return height, width


def area_of(_bucket: Hashable) -> int:
    return 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_whatever_a_row_raises_the_others_are_looked_at(num_workers: int) -> None:
    dataset = Odd(9, broken=frozenset([4]), problems={6: "no source picture"}, levels=EXPLICIT)
    audit = Audit(dataset, sizes_of, area_of=area_of)
    reports = list(audited(audit, range(9), num_workers=num_workers))
    assert [report.index for report in reports] == list(range(9))
    assert {report.index: report.stops for report in reports if report.stops} == {
        0: "RuntimeError: a fault of the reader",
    }
    dropped = {report.index: report.dropped.reason for report in reports if report.dropped is not None}
    assert dropped == {1: CHANGED, 2: CHANGED, 3: UNFIT_SIZE, 4: "damaged picture", 6: "no source picture"}
    counting = Counting(9, ())
    for report in reports:
        counting.add(report)
    assert (counting.tally.num_kept, counting.tally.num_dropped, counting.tally.num_stopping) == (3, 5, 1)
    assert counting.examples(2) == {"none": [5, 7]}


def test_a_row_of_no_size_for_the_editor_is_not_decoded() -> None:
    dataset = PlainPairs(2, sizes=((1, 5), (4, 4)), levels=EXPLICIT)
    audit = Audit(dataset, sizes_of, area_of=area_of)
    narrow, fine = (audit.look_at(index) for index in range(2))
    assert narrow.dropped is not None
    assert (narrow.dropped.reason, narrow.dropped.message) == (UNFIT_SIZE, "too narrow")
    assert fine.dropped is None
    assert dataset.decoded == [1]


def test_an_instruction_that_the_editor_cannot_take_drops_the_row_and_is_counted() -> None:
    dataset = PlainPairs(11, levels=EXPLICIT)
    limit = TextLimit("letters", 10, Overlong.DROPPED, "too long", len)
    audit = Audit(dataset, sizes_of, area_of=area_of, limits=[limit], text_rule=refuses_explicit_10)
    fine, refused = (audit.look_at(index) for index in (9, 10))
    assert fine.dropped is None
    assert refused.dropped is not None
    assert (refused.dropped.reason, refused.stops) == (RowProblem.PROMPT_TOO_LONG, "")
    assert refused.dropped.message == "The explicit instruction of plain.parquet, row 10 is too long for [(2, 2)]."
    counting = Counting(2, [limit])
    for report in (fine, refused):
        counting.add(report)
    (text,) = counting.texts
    assert (text.num_instructions, text.longest, text.num_over) == (2, 11, 1)
    assert text_said(text) == "the longest instruction has 11 of 10 tokens, 1 of 2 instructions are longer; too long"


def refuses_explicit_10(sizes: Sequence[tuple[int, int]], instruction: str) -> TextRefusal | None:
    refusal = TextRefusal(RowProblem.PROMPT_TOO_LONG, f"is too long for {list(sizes)}.")
    return refusal if instruction == "explicit 10" else None


def test_rows_without_a_common_level_are_refused() -> None:
    with pytest.raises(ValueError, match="no prompt level in common"):
        Audit(PlainPairs(levels=frozenset()), sizes_of, area_of=area_of)


def soft(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    cells = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize(size, Image.Resampling.BICUBIC)


def pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_known_pictures_are_found_through_scaling_and_dimming_and_others_are_not() -> None:
    known = KnownPictures(pixels(soft(seed)) for seed in range(20))

    def match(image: Image.Image) -> Match | None:
        return known.match(pixels(image), pixel_digest(pixels(image)))

    assert len(known) == 20
    assert match(soft(7)) == Match(7, 0, is_exact=True)
    near = match(soft(7).resize((333, 250)).point(lambda level: round(level * 0.97)))
    assert near is not None
    assert (near.number, near.is_exact) == (7, False)
    assert [match(soft(seed)) for seed in range(100, 160)] == [None] * 60
    assert match(soft(7).transpose(Image.Transpose.FLIP_LEFT_RIGHT)) is None


def test_flat_pictures_of_other_grey_are_no_copies_though_their_hashes_agree() -> None:
    flat = [torch.full((3, 20, 20), level, dtype=torch.uint8) for level in (10, 200)]
    known = KnownPictures(flat[:1])
    assert known.match(flat[1], pixel_digest(flat[1])) is None
    assert known.match(flat[0] + 3, pixel_digest(flat[0] + 3)) == Match(0, 0, is_exact=False)


def test_a_digest_tells_shapes_of_equal_bytes_apart() -> None:
    assert pixel_digest(torch.zeros(3, 2, 8, dtype=torch.uint8)) != pixel_digest(
        torch.zeros(3, 8, 2, dtype=torch.uint8)
    )
