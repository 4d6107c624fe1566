"""``physedit data check``: its counts are those of a training epoch, and it says what else is odd."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from tests.data_loaders.hostile import HOSTILE_COLUMNS, Expected, encoded, noisy, plain, write_hostile
from tests.support.runs import physedit
from typer.testing import CliRunner

from physedit.data_loaders.audit import NoteKind
from physedit.data_loaders.buckets import find_buckets
from physedit.data_loaders.loader import Share, TrainingBatches
from physedit.data_loaders.mixture import members_of
from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError, EditBatch, PromptLevel
from physedit.data_loaders.size_index import SizeIndex
from physedit.data_loaders.slots import UNFIT_SIZE, LevelMix, RunPlan
from physedit.train.assemble import outline_of
from physedit.train.check_data import CheckRequest, check_config, check_data
from physedit.train.cli import app
from physedit.train.config import CONF_FOLDER, ConfigError, options
from physedit.train.guarded import guarded

pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
COLUMNS = [f"data.{name}={value}" for name, value in HOSTILE_COLUMNS.items()]
LAWS = ("Reflection", "Refraction", "Causality")


def pairs_at(folder: Path) -> list[str]:
    return ["data=pairs", f"data.path={folder}", *COLUMNS, "num_workers=0"]


def checked(overrides: Sequence[str], **request: Any) -> dict[str, Any]:
    """The record of a check, after a look at whether the file holds the same."""
    result = check_data(check_config(["backbone=random_tiny", *overrides], None), CheckRequest(**request))
    assert json.loads((result.folder / "check.json").read_text()) == json.loads(json.dumps(result.record))
    return dict(result.record)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["data", "check", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def write_rows(folder: Path, rows: Sequence[dict[str, Any]], **pictures: bytes) -> Path:
    """Writes a table and its pictures; a row lacks what it does not say: source, target and instruction."""
    folder.mkdir()
    for name, data in {"a": encoded(noisy((64, 64))), "b": encoded(plain(size=(64, 64))), **pictures}.items():
        (folder / name).write_bytes(data)
    usual = {"source": "a", "target": "b", "instruction": "x", "law": "Reflection", "op": "add"}
    (folder / "metadata.jsonl").write_text("".join(json.dumps(usual | row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Expected]]:
    folder = tmp_path_factory.mktemp("hostile") / "set"
    fates = write_hostile(folder)
    # 600x3 is no size for an editor at 64x64.
    return folder, fates | {"strip": replace(fates["strip"], reason=UNFIT_SIZE)}


def epoch_of(folder: Path, index_folder: Path, num_workers: int) -> tuple[dict[str, str], list[str]]:
    """Trains no step, but reads one epoch as a run does; returns dropped rows with reasons, and those delivered."""
    dataset = Pairs(path=str(folder), **HOSTILE_COLUMNS)
    index = SizeIndex.of(dataset, index_folder, num_workers=0)
    plan = RunPlan(
        index,
        find_buckets(index.rows["source"], outline_of(check_config(["backbone=random_tiny"], None)).sizes_of),
        members_of(dataset),
        seed=3,
        levels=LevelMix({PromptLevel.EXPLICIT: 1.0}),
        micro_batch=2,
    )
    stop = plan.num_samples + plan.num_empty
    assert plan.num_buckets > 1, "else micro batches would straddle epochs"
    batches = TrainingBatches(dataset, plan, share=Share(2), stop_position=stop, num_workers=num_workers)
    dropped = {dataset.name(row).sample_id: reason for row, reason in plan.unusable}
    delivered: list[str] = []
    for each in batches:
        assert isinstance(each.batch, EditBatch)
        dropped |= {row.name.sample_id: row.reason for row in each.dropped}
        delivered += [
            name for name, weight in zip(each.batch.sample_ids, each.batch.weights, strict=True) if weight > 0
        ]
    return dropped, delivered


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_check_drops_exactly_the_rows_that_an_epoch_drops(hostile, tmp_path: Path, num_workers: int) -> None:
    """The issue's promise: hostile files go through the check and one epoch with the right counts."""
    folder, fates = hostile
    expected = {f"metadata.jsonl:{row}": fate.reason for row, fate in enumerate(fates.values()) if fate.reason}
    kept = [f"metadata.jsonl:{row}" for row, fate in enumerate(fates.values()) if not fate.reason]
    record = checked([*pairs_at(folder), f"num_workers={num_workers}"], out=tmp_path / "out")
    found = {line["sample_id"]: line["reason"] for line in lines_of(tmp_path / "out" / "dropped.jsonl")}
    dropped, delivered = epoch_of(folder, tmp_path / "index", num_workers)
    assert found == dropped == expected
    assert sorted(delivered) == sorted(kept), "each other row once"
    assert (record["rows"], record["checked"], record["kept"]) == (74, 74, 39)
    assert record["dropped"] == Counter(expected.values())
    assert "35 of 74 rows" in record["failure"]


def test_each_drop_is_counted_and_named_in_a_file(tmp_path: Path) -> None:
    """A19: a null target, a number and a list for an instruction, and a picture below the least size."""
    odd = [{"target": None}, {"instruction": 7}, {"instruction": ["x"]}, {"source": "small"}]
    folder = write_rows(tmp_path / "set", [{}] * 6 + odd, small=encoded(plain(size=(4, 4))))
    record = checked([*pairs_at(folder), "data.min_side_px=16"], out=tmp_path / "out")
    assert (record["rows"], record["kept"]) == (10, 6)
    assert record["dropped"] == {"prompt is no text": 2, "no target picture": 1, "too few pixels": 1}
    lines = lines_of(tmp_path / "out" / "dropped.jsonl")
    assert [(line["sample_id"], line["row"]) for line in lines] == [(f"metadata.jsonl:{n}", n) for n in range(6, 10)]
    assert all(line["file"] == str(folder / "metadata.jsonl") and line["message"] for line in lines)
    assert record["failure"].startswith("Training would drop 4 of 10 rows (40.0%), more than max_dropped_share=0.01")
    assert "2 prompt is no text, 1 no target picture, 1 too few pixels" in record["failure"]
    assert str(tmp_path / "out" / "dropped.jsonl") in record["failure"]


def test_instructions_that_are_cut_are_counted_once_and_those_of_clip_are_harmless(tmp_path: Path) -> None:
    """A16: T5 reads 48 tokens here, two more than letters, and CLIP 77."""
    rows = [{"instruction": "a" * length} for length in (10, 46, 47, 75, 76)]
    record = checked(pairs_at(write_rows(tmp_path / "set", rows)), out=tmp_path / "out")
    t5, clip = record["texts"]
    assert (t5["max_tokens"], t5["longest"], t5["over"], t5["overlong"]) == (48, 78, 3, "cut")
    assert (clip["max_tokens"], clip["longest"], clip["over"], clip["overlong"]) == (77, 78, 1, "harmless")
    assert record["kept"] == 5
    assert record["failure"] == ""
    assert record["notes"][NoteKind.OVERLONG] == 3
    assert "harmless" in clip["said"]


def test_tokens_of_weights_that_are_not_here_are_not_counted_and_it_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("physedit.models.outline.cached_snapshot", lambda _weights: None)
    overrides = [*pairs_at(write_rows(tmp_path / "set", [{}])), "backbone=flux_kontext"]
    record = checked(overrides, out=tmp_path / "out")
    assert [text["over"] for text in record["texts"]] == [None, None]
    assert "is not on this machine" in record["texts"][0]["said"]
    assert record["buckets"] == {"1024x1024": 1}


def test_instructions_that_the_editor_cannot_take_drop_their_rows(tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "set", [{}, {"instruction": "é" * 3000}, {"instruction": "a <|image_pad|>"}])
    config = check_config(["backbone=toy_qwen_image_edit", *pairs_at(folder)], None)
    result = check_data(config, CheckRequest(out=tmp_path / "out", max_dropped=1.0))
    assert (result.record["kept"], result.record["would_stop"], result.failure) == (1, 0, "")
    lines = lines_of(tmp_path / "out" / "dropped.jsonl")
    assert [line["reason"] for line in lines] == [RowProblem.PROMPT_TOO_LONG, RowProblem.TEMPLATE_WORDS]
    assert (
        f"The explicit instruction of {folder / 'metadata.jsonl'}, row 1 and its pictures make" in lines[0]["message"]
    )
    texts = result.record["texts"]
    assert "1 of 3 instructions are longer" in texts[1]["said"]


def test_no_weight_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("physedit.models.flux_kontext.load_pipeline", refuse)
    monkeypatch.setattr("torch.nn.Module.load_state_dict", refuse)
    assert checked([*pairs_at(write_rows(tmp_path / "set", [{}])), "backbone=toy"], out=tmp_path / "out")["kept"] == 1


def test_rows_are_counted_by_law_operation_level_size_and_bucket_and_odd_ones_noted(tmp_path: Path) -> None:
    rows = [
        {},
        {"law": "Causality", "op": "remove", "source": "wide", "target": "wide"},
        {"law": "Causality", "target": "half"},
        {"target": "wide"},
        {"source": "small"},
        {},
        {"law": None, "op": "", "instruction": "y"},
        {"target": None, "law": "Refraction"},
    ]
    pictures = {"wide": plain(size=(96, 64)), "half": plain(size=(32, 32)), "small": plain(size=(20, 20))}
    folder = write_rows(tmp_path / "set", rows, **{name: encoded(image) for name, image in pictures.items()})
    record = checked([*pairs_at(folder), "data.law=law", "data.operation=op"], out=tmp_path / "out", max_dropped=0.2)
    assert record["laws"] == {"Causality": 2, "Reflection": 4, "none": 1}
    assert record["operations"] == {"add": 5, "remove": 1, "none": 1}
    assert record["levels"] == {"explicit": 7}
    assert record["sizes"] == {"64x64": 5, "96x64": 1, "20x20": 1}
    assert sum(record["buckets"].values()) == 7
    assert record["buckets"]["64x64"] == 6
    assert record["failure"] == ""
    notes = {(line["row"], line["reason"]) for line in lines_of(tmp_path / "out" / "noted.jsonl")}
    assert notes == {
        (1, NoteKind.IDENTICAL),
        (2, NoteKind.SCALED),
        (3, NoteKind.CROPPED),
        (4, NoteKind.SCALED),
        (4, NoteKind.TINY),
        (5, NoteKind.DUPLICATE),
    }
    assert record["notes"] == Counter(kind for _, kind in notes)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from physedit.data_loaders.scenes.write import ensure_world

    folder = tmp_path_factory.mktemp("world") / "scenes"
    ensure_world(folder, num_train=12, num_benchmark=6, seed=7)
    return folder


def photo(seed: int, side: int = 128) -> Image.Image:
    """Soft random colours, which survive scaling and compression as photographs do."""
    import numpy as np

    cells = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize((side, side), Image.Resampling.BICUBIC)


def test_copies_and_near_copies_of_benchmark_pictures_are_found(world: Path, tmp_path: Path) -> None:
    table = parquet.read_table(next((world / "benchmark").rglob("*.parquet")))
    photos = [{"bytes": encoded(photo(seed)), "path": None} for seed in range(table.num_rows)]
    place = table.schema.get_field_index("input_image")
    parquet.write_table(table.set_column(place, "input_image", pa.array(photos)), tmp_path / "benchmark.parquet")
    pictures = {
        "same_pixels": encoded(photo(2), "TIFF"),
        "scaled": encoded(photo(3).resize((75, 80)), "JPEG", quality=60),
        "another": encoded(photo(77)),
    }
    rows = [{"source": "same_pixels"}, {"target": "scaled"}, {"source": "another"}, {}]
    folder = write_rows(tmp_path / "set", rows, **pictures)
    record = checked(pairs_at(folder), out=tmp_path / "out", benchmark=tmp_path / "benchmark.parquet")
    assert record["notes"][NoteKind.BENCHMARK_COPY] == 1
    assert record["notes"][NoteKind.BENCHMARK_NEAR] == 1
    noted = {(line["row"], line["message"].split(",")[0]) for line in lines_of(tmp_path / "out" / "noted.jsonl")}
    assert {(0, "the source is that of item 2"), (1, "the target is like that of item 3")} <= noted
    assert not any("of item" in message for row, message in noted if row > 1)
    page = (tmp_path / "out" / "check.html").read_text()
    assert "benchmark item 2, 128x128" in page
    assert "benchmark item 3, 128x128" in page


def test_the_page_needs_nothing_else_and_shows_pairs_of_each_law(tmp_path: Path) -> None:
    rows = [{"law": law, "instruction": f"<script>{law} {n}</script>"} for law in LAWS for n in range(5)]
    folder = write_rows(tmp_path / "set", [*rows, {"source": None}])
    checked([*pairs_at(folder), "data.law=law"], out=tmp_path / "out", num_examples=2)
    page = (tmp_path / "out" / "check.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page, "instructions are text"
    assert page.count("<article>") == 2 * len(LAWS)
    assert page.count('src="data:image/png;base64,') == 2 * 2 * len(LAWS)
    for law in LAWS:
        assert f"<h2>{law}</h2>" in page
        assert f"&lt;script&gt;{law} 0&lt;/script&gt;" in page
        assert f"&lt;script&gt;{law} 2&lt;/script&gt;" in page, "evenly spread"
    assert "no source picture" in page
    assert "Not ready." in page


def test_a_sample_is_evenly_spread_and_said_to_be_one(tmp_path: Path) -> None:
    rows = [{"instruction": f"row {n}", "source": None if n in (4, 5) else "a"} for n in range(12)]
    folder = write_rows(tmp_path / "set", rows)
    said = run("backbone=random_tiny", *pairs_at(folder), "--sample", 3, "--out", tmp_path / "out", "--max-dropped", 1)
    assert "3 row(s) looked at, evenly spread over 12: 2 can be used." in said.stdout
    assert [line["row"] for line in lines_of(tmp_path / "out" / "dropped.jsonl")] == [4], "rows 0, 4 and 8"


def test_members_of_a_mixture_are_checked_under_their_names(tmp_path: Path, world: Path) -> None:
    folder = write_rows(tmp_path / "set", [{}, {"source": None}])
    mixture = [
        "data=mixture", "+data@data.members.own=pairs", "+data@data.members.world=scenes", "num_workers=0",
        *(each.replace("data.", "data.members.own.", 1) for each in [f"data.path={folder}", *COLUMNS]),
        f"data.members.world.path={world}/train", "+data.weights={own: 0.5, world: 0.5}", "+data.levels.own=explicit",
    ]  # fmt: skip
    record = checked(mixture, out=tmp_path / "out")
    assert (record["rows"], record["kept"]) == (14, 13)
    assert record["levels"] == {"explicit": 13, "superficial": 12, "intermediate": 12}
    assert [line["sample_id"] for line in lines_of(tmp_path / "out" / "dropped.jsonl")] == ["own/metadata.jsonl:1"]


def test_every_option_takes_its_place_from_data_path() -> None:
    from omegaconf import OmegaConf

    names = [name for name in options("data") if name != "mixture"]
    assert len(names) >= 4
    for name in names:
        assert "path" in set(OmegaConf.load(CONF_FOLDER / "data" / f"{name}.yaml")), name


def test_the_same_data_may_be_checked_again_and_nothing_else_is_overwritten(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "first", [{}, {"source": None}])
    assert checked(pairs_at(first), out=tmp_path / "out")["kept"] == 1
    (first / "metadata.jsonl").write_text((first / "metadata.jsonl").read_text().replace("null", '"a"'))
    assert checked(pairs_at(first), out=tmp_path / "out")["kept"] == 2
    assert lines_of(tmp_path / "out" / "dropped.jsonl") == []
    kept = (tmp_path / "out" / "check.json").read_text()
    with pytest.raises(ConfigError, match="check of other data"):
        checked(pairs_at(write_rows(tmp_path / "second", [{}])), out=tmp_path / "out")
    assert (tmp_path / "out" / "check.json").read_text() == kept
    with pytest.raises(ConfigError, match="other files"):
        checked(pairs_at(first), out=tmp_path / "first")


def test_the_default_place_is_one_for_each_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        write_rows(tmp_path / name, [{}])
        assert run("backbone=random_tiny", *pairs_at(Path(name))).exit_code == 0
    assert [folder.name.partition("_")[0] for folder in sorted((tmp_path / "data_checks").iterdir())] == ["one", "two"]


REFUSED = [
    (["data.path=nowhere"], "nowhere"),
    (["data.source=befor"], "befor"),
    (["data.sourc=a"], "sourc"),
    (["backbone.weights=./no/weights"], "no/weights"),
    (["backbone.area_px=5"], "area_px is 5"),
    (["data.references=[op]"], "up to 2 pictures"),
    (["--sample", "0"], "--sample 0"),
    (["--max-dropped", "nan"], "--max-dropped nan"),
    (["--benchmark", "nowhere"], "nowhere"),
    (["--out", "set"], "other files"),
]


@pytest.mark.parametrize(("more", "words"), REFUSED, ids=[" ".join(more) for more, _ in REFUSED])
def test_bad_input_ends_in_one_paragraph_with_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, more: list[str], words: str
) -> None:
    write_rows(tmp_path / "set", [{}])
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    command = ["data", "check", "backbone=random_tiny", *pairs_at(Path("set")), *more]
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: app(command, standalone_mode=False))
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert sorted(tmp_path.rglob("*")) == before


def test_a_set_that_fails_as_a_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object, **_options: object) -> Iterator[object]:
        raise DatasetRowError("the disk went away")

    folder = write_rows(tmp_path / "set", [{}])
    monkeypatch.setattr("physedit.train.check_data.audited", fails)
    with pytest.raises(DatasetRowError):
        checked(pairs_at(folder), out=tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_the_command_in_a_c_locale_counts_and_exits_1(hostile, tmp_path: Path, monkeypatch) -> None:
    """A18 too: a byte that is no UTF-8 is named by file and line, and other alphabets pass, whatever the locale."""
    monkeypatch.setattr(os, "environ", os.environ | {"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"})
    folder, fates = hostile
    result = physedit(
        "data", "check", "--json", "backbone=random_tiny", *pairs_at(folder), "num_workers=2", cwd=tmp_path
    )
    assert result.returncode == 1, result.stderr
    record = json.loads(result.stdout)
    assert (record["rows"], record["kept"], sum(record["dropped"].values())) == (74, 39, 35)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("physedit: Training would drop 35 of 74 rows (47.3%)")
    assert "10 unreadable picture, 4 missing picture file, 4 blank prompt" in last
    assert "Traceback" not in result.stderr
    (written,) = (tmp_path / "data_checks").iterdir()
    (line,) = (each for each in lines_of(written / "dropped.jsonl") if each["reason"] == "text is not UTF-8")
    assert f"Line {list(fates).index('windows_apostrophe') + 1} of {folder / 'metadata.jsonl'}" in line["message"]
