from pathlib import Path

import pytest

from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.selection import Selection, is_held_out

LAWS = ["Reflection", "Refraction", "Reflection", None, "Global", "Refraction"]
OPERATIONS = ["add", "add", "remove", "add", "weather", "remove"]


def rows_of(data: Pica100k | Pairs) -> list[int]:
    return [data.name(index).origin.row for index in range(len(data))]


@pytest.fixture
def path(write_pica) -> str:
    return str(write_pica(law=LAWS, op=OPERATIONS))


def test_laws_and_operations_narrow_the_rows_together(path: str) -> None:
    assert rows_of(Pica100k(path=path, laws=["Reflection", "Refraction"])) == [0, 1, 2, 5]
    assert rows_of(Pica100k(path=path, operations=["remove"])) == [2, 5]
    assert rows_of(Pica100k(path=path, laws=["Refraction"], operations=["remove"])) == [5]


def test_law_that_no_row_has_is_refused_with_near_matches_and_the_names_found(path: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"asks for reflection, which no row has\. Did you mean 'Reflection' for 'reflection'\? "
        r"Column 'law' holds Reflection \(2 rows\), Refraction \(2 rows\), Global \(1 rows\)\.",
    ):
        Pica100k(path=path, laws=["reflection", "Global"])
    with pytest.raises(ValueError, match=r"data\.operations asks for nothing"):
        Pica100k(path=path, operations=[])


def test_filter_without_a_column_to_filter_by_is_refused(path: str) -> None:
    columns = {"source": "src_img", "target": "tgt_img", "instruction": "explicit_prompt", "level": "explicit"}
    with pytest.raises(ValueError, match=r"data\.laws filters rows by law, but no column of it is named"):
        Pairs(path=path, laws=["Global"], **columns)


def test_filters_that_leave_no_row_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"No row is left of 6 with laws=Global; operations=add"):
        Pica100k(path=path, laws=["Global"], operations=["add"])


def test_limit_is_spread_over_what_the_filters_leave(path: str) -> None:
    assert rows_of(Pica100k(path=path, laws=["Reflection", "Refraction"], limit=2)) == [0, 2]


def test_a_row_stays_on_its_side_when_others_come_or_go(write_pica) -> None:
    def held_out(**table: int) -> set[str]:
        data = Pica100k(path=str(write_pica(**table)), split="heldout", heldout_share=0.4)
        return {data.stored(i, PromptLevel.EXPLICIT).instruction for i in range(len(data))}

    whole = held_out(num_rows=40)
    later = held_out(num_rows=20, first=15)
    assert later == {f"long {i}" for i in range(15, 35)} & whole
    assert 8 < len(whole) < 24


def test_rows_held_out_at_one_share_are_so_at_any_larger() -> None:
    keys = [f"key {i}" for i in range(2000)]
    tenth = {key for key in keys if is_held_out(key, 0.1)}
    half = {key for key in keys if is_held_out(key, 0.5)}
    assert tenth < half
    # Within 4 standard deviations of 200 and 1000.
    assert abs(len(tenth) - 200) < 54
    assert abs(len(half) - 1000) < 90


def test_pairs_of_one_source_and_rows_of_one_group_stay_on_one_side(tmp_path: Path, png) -> None:
    for i in range(20):
        (tmp_path / f"{i}.png").write_bytes(png((i, 0, 0)))
    lines = [f'{{"a": "{i // 2}.png", "b": "{i}.png", "say": "x", "clip": "c{i // 4}"}}' for i in range(20)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    columns = {"source": "a", "target": "b", "instruction": "say", "level": "explicit"}
    by_source = rows_of(Pairs(path=str(tmp_path), split="heldout", heldout_share=0.5, **columns))
    assert by_source
    assert {row ^ 1 for row in by_source} == set(by_source)
    by_clip = rows_of(Pairs(path=str(tmp_path), split="heldout", heldout_share=0.5, group="clip", **columns))
    assert by_clip
    assert {row // 4 * 4 + i for row in by_clip for i in range(4)} == set(by_clip)


def test_row_without_a_source_takes_a_side_and_breaks_no_split(write_pica, png) -> None:
    cells = [None, *({"bytes": png((i, 0, 0)), "path": None} for i in range(5))]
    path = str(write_pica(src_img=cells))
    counts = [len(Pica100k(path=path, split=side, heldout_share=0.5)) for side in ("train", "heldout")]
    assert sum(counts) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heldout_share": 0.1}, r"heldout_share=0\.1 and .* have no effect with data\.split=all"),
        ({"split": "train"}, r"data\.split=train needs data\.heldout_share above 0 and below 1, found 0\.0"),
        ({"split": "heldout", "heldout_share": 1.0}, r"below 1, found 1\.0"),
        ({"split": "test", "heldout_share": 0.1}, r"data\.split is 'test'; it must be all, train or heldout"),
        ({"limit": 0}, r"data\.limit is a number of rows of at least 1"),
    ],
)
def test_settings_without_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Selection(**options)


def test_opening_touches_no_row_without_filter_or_split(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from physedit.data_loaders.arrow_rows import ArrowRows

    def refuse(self: ArrowRows, *_: object) -> None:
        raise AssertionError("a row was read")

    monkeypatch.setattr(ArrowRows, "row", refuse)
    monkeypatch.setattr(ArrowRows, "texts", refuse)
    assert len(Pica100k(path=path, limit=3)) == 3
