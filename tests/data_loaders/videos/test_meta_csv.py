"""MiraData's meta files, as both releases publish them."""

import csv
from pathlib import Path

import pytest

from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError
from physedit.data_loaders.videos.meta_csv import Span, find_file, read_meta_csv, seconds

FIRST = "index,video_id,start_frame,end_frame,main_object_caption,short_caption,dense_caption,fps\n"
LATER = "clip_id,source,video_url,video_id,width,height,file_path,timestamp,short_caption,dense_caption\n"
LATER_ROW = (
    "12.7,youtube,https://x/watch?v=-a_b,-a_b,1280,720,clips/000000000012.000000000007.mp4,"
    "\"['00:01:05.500', '00:01:12.250']\",Short.,Dense.\n"
)


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "meta.csv"
    file.write_text(text, encoding="utf-8-sig")
    return file


def test_the_first_layout(tmp_path: Path):
    row = '000000008783_AJp_AN-oM-000114,AJp_AN-oM,163272,166872,"Cars, people","A group\n of people.",Dense.,23.976\n'
    (found,) = read_meta_csv(written(tmp_path, FIRST + row), "short_caption")
    assert found.name == "000000008783_AJp_AN-oM-000114"
    assert found.caption == "A group of people."
    assert found.span.start_s == pytest.approx(163272 / 23.976)
    assert found.span.end_s == pytest.approx(166872 / 23.976)
    files = {"000000008783_AJp_AN-oM": Path("raw.mp4")}
    assert find_file(found, files) == (Path("raw.mp4"), found.span)
    assert find_file(found, {"AJp_AN-oM": Path("by_id.mp4")}) == (Path("by_id.mp4"), found.span)
    assert find_file(found, files | {found.name: Path("clip.mp4")}) == (Path("clip.mp4"), Span())
    assert find_file(found, {"other": Path("other.mp4")}) is None


def test_the_later_layout(tmp_path: Path):
    (found,) = read_meta_csv(written(tmp_path, LATER + LATER_ROW), "dense_caption")
    assert (found.name, found.caption, found.span) == ("12.7", "Dense.", Span(65.5, 72.25))
    assert find_file(found, {"000000000012": Path("raw.mp4")}) == (Path("raw.mp4"), found.span)
    assert find_file(found, {"000000000012.000000000007": Path("clip.mp4")}) == (Path("clip.mp4"), Span())


def test_very_long_captions_are_read(tmp_path: Path):
    row = f"1_v-1,v,0,10,,{'word ' * 50000},Dense.,25\n"
    (found,) = read_meta_csv(written(tmp_path, FIRST + row), "short_caption")
    assert len(found.caption) == 50000 * 5 - 1


def test_the_longest_cell_of_other_readers_stays(tmp_path: Path):
    before = csv.field_size_limit()
    read_meta_csv(written(tmp_path, FIRST), "short_caption")
    assert csv.field_size_limit() == before
    with pytest.raises(DatasetLayoutError):
        read_meta_csv(written(tmp_path, "no,such,columns\n"), "short_caption")
    assert csv.field_size_limit() == before


def test_other_files_are_refused_by_column(tmp_path: Path):
    with pytest.raises(DatasetLayoutError, match="clip_id, video_id, timestamp"):
        read_meta_csv(written(tmp_path, "path,text\na,b\n"), "short_caption")
    with pytest.raises(DatasetLayoutError, match="did you mean 'short_caption'"):
        read_meta_csv(written(tmp_path, FIRST), "short_captions")
    with pytest.raises(DatasetLayoutError, match="cannot be read"):
        read_meta_csv(tmp_path / "none.csv", "short_caption")


@pytest.mark.parametrize(
    "row",
    [
        "1_v-1,v,20,10,,Short.,Dense.,25\n",
        "1_v-1,v,0,10,,Short.,Dense.,0,,\n",
        "1_v-1,v,,10,,Short.,Dense.,25\n",
        "1_v-1,v,nan,10,,Short.,Dense.,25\n",
        "1_v-1,v\n",
    ],
)
def test_rows_without_a_stretch_are_refused_by_number(tmp_path: Path, row):
    with pytest.raises(DatasetRowError, match=r"Row 1 of .*meta\.csv"):
        read_meta_csv(written(tmp_path, FIRST + "1_v-0,v,0,10,,Short.,Dense.,25\n" + row), "short_caption")
    for timestamp in ("__import__('os').getcwd()", "['0:01']", "[2, 1]", ""):
        text = LATER + LATER_ROW.replace("\"['00:01:05.500', '00:01:12.250']\"", f'"{timestamp}"')
        with pytest.raises(DatasetRowError, match="Row 0"):
            read_meta_csv(written(tmp_path, text), "short_caption")


def test_times():
    assert [seconds(text) for text in ("1:30:42", "02:03.5", " 7 ")] == [5442, 123.5, 7]
