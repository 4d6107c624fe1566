"""Runs over data with rows that cannot be used, and with pictures of several sizes."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from tests.support.runs import StopAtOnce, adapter_bytes, metrics_of, smoke_overrides

from physedit.data_loaders.sample import PromptLevel
from physedit.train.config import ConfigError
from physedit.train.dropped import TooManyDropped
from physedit.train.loop import Stopped

SHORT = ("num_steps=5", "global_batch=4", "log_every=1")
NUM_ROWS = 10
BROKEN, EMPTY = 3, 6
SQUARE, WIDE = (64, 64), (48, 80)
Write = Callable[..., Path]


def png(number: int, size: tuple[int, int]) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def write_data(tmp_path: Path) -> Write:
    """Writes ten pairs in PICA-100K's layout; ``sources`` replaces the stored bytes of some."""

    def write(
        *, sizes: tuple[tuple[int, int], ...] = (SQUARE,), sources: dict[int, bytes | None] | None = None
    ) -> Path:
        replaced = sources or {}
        stored = [replaced.get(i, png(i, sizes[i % len(sizes)])) for i in range(NUM_ROWS)]
        table: dict[str, Any] = {f"{level}_prompt": [f"{level} {i}" for i in range(NUM_ROWS)] for level in PromptLevel}
        table |= {"law": ["Reflection", "Causality"] * (NUM_ROWS // 2), "op": ["add"] * NUM_ROWS}
        table["src_img"] = [{"bytes": data, "path": None} for data in stored]
        table["tgt_img"] = [{"bytes": png(100 + i, sizes[i % len(sizes)]), "path": None} for i in range(NUM_ROWS)]
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        parquet.write_table(pa.table(table), folder / "train-0.parquet")
        return folder

    return write


@pytest.fixture
def run(run_smoke: Callable[..., Path]) -> Callable[..., Path]:
    def start(data: Path, *overrides: str, **more: Any) -> Path:
        return run_smoke("data=pica100k", f"data.path={data}", *SHORT, *overrides, **more)

    return start


def cut_off(number: int) -> bytes:
    return png(number, SQUARE)[:200]


def dropped_of(folder: Path) -> list[tuple[int, str, str]]:
    lines = [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]
    return [(line["step"], line["sample_id"], line["reason"]) for line in lines]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_broken_rows_are_counted_and_named_and_the_run_ends(write_data: Write, run: Any, num_workers: int) -> None:
    data = write_data(sources={BROKEN: cut_off(BROKEN), EMPTY: None})
    folder = run(data, "max_dropped_share=0.2", f"num_workers={num_workers}")
    (at_start, later) = dropped_of(folder)
    assert at_start == (0, "train-0.parquet:6", "no source picture")
    assert later[1:] == ("train-0.parquet:3", "damaged picture")
    assert 1 <= later[0] <= 3  # nine rows, four a step
    counts = [line["train/dropped"] for line in metrics_of(folder)]
    assert counts == [1.0] * (later[0] - 1) + [2.0] * (6 - later[0])


def test_bytes_that_are_no_picture_are_dropped_before_the_first_step(write_data: Write, run: Any) -> None:
    folder = run(write_data(sources={BROKEN: b"\x07" * 20}), "max_dropped_share=0.1")
    assert dropped_of(folder) == [(0, "train-0.parquet:3", "unreadable picture")]


@pytest.mark.parametrize(("stored", "limit"), [(cut_off(BROKEN), 0.0), (b"\x07" * 20, 0.0), (b"\x07" * 20, 0.05)])
def test_more_than_the_allowed_share_stops_the_run_and_names_the_row(
    write_data: Write, run: Any, stored: bytes, limit: float
) -> None:
    with pytest.raises(TooManyDropped, match=r"1 of 10 rows .* train-0.parquet:3\. dropped.jsonl"):
        run(write_data(sources={BROKEN: stored}), f"max_dropped_share={limit}")


def test_a_run_that_was_stopped_goes_on_with_a_larger_share(write_data: Write, run: Any) -> None:
    data = write_data(sources={BROKEN: cut_off(BROKEN)})
    with pytest.raises(TooManyDropped):
        run(data, "max_dropped_share=0.05", "checkpoint.every=1")
    assert metrics_of(run(data, "max_dropped_share=0.1", "checkpoint.every=1"))[-1]["train/dropped"] == 1.0


@pytest.mark.parametrize("sizes", [(SQUARE,), (SQUARE, WIDE, SQUARE)])
def test_resume_equals_the_uninterrupted_run_with_dropped_rows(
    write_data: Write, run: Any, sizes: tuple[tuple[int, int], ...]
) -> None:
    data = write_data(sizes=sizes, sources={BROKEN: cut_off(BROKEN), EMPTY: None})
    allowed = "max_dropped_share=0.2"
    whole = run(data, allowed, name="whole")
    with pytest.raises(Stopped):
        run(data, allowed, name="stopped", stop=StopAtOnce())
    resumed = run(data, allowed, name="stopped")
    assert adapter_bytes(whole, 5) == adapter_bytes(resumed, 5)
    assert metrics_of(whole) == metrics_of(resumed)
    assert dropped_of(whole) == dropped_of(resumed)


def test_pictures_of_several_sizes_train_in_micro_batches(
    write_data: Write, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="physedit.train.order"):
        folder = run(write_data(sizes=(SQUARE, WIDE, SQUARE)))
    assert "Pictures of 2 sizes: an epoch has 10 samples and 2 empty slots." in caplog.messages
    assert len(metrics_of(folder)) == 5
    assert json.loads((folder / "order.json").read_text())["sizes"] == 2


def test_other_micro_batches_are_refused_on_resume_where_sizes_differ(write_data: Write, run: Any) -> None:
    data = write_data(sizes=(SQUARE, WIDE, SQUARE))
    run(data, "schedule=constant", "num_steps=2")
    with pytest.raises(ConfigError, match=r"other samples than it began with .*read_at_once was 2, is 4"):
        run(data, "schedule=constant", "micro_batch=4")


def test_changed_data_is_refused_on_resume(write_data: Write, run: Any) -> None:
    run(write_data(), "num_steps=2")
    with pytest.raises(ConfigError, match="rows_in_use was 10, is 9"):
        run(write_data(sources={EMPTY: None}), "max_dropped_share=0.1")


def test_pictures_that_changed_with_equal_sizes_are_refused_on_resume(write_data: Write, run: Any) -> None:
    data = write_data()
    folder = run(data, "schedule=constant", "num_steps=2")
    write_data(sources={BROKEN: png(77, SQUARE)})
    began_with = json.loads((folder / "order.json").read_text())
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(ConfigError, match=rf"other data than it began with: the files of data\.path={data} have"):
            run(data, "schedule=constant", "num_steps=3")
        assert json.loads((folder / "order.json").read_text()) == began_with
    assert len(metrics_of(folder)) == 2


def test_a_run_that_does_not_say_what_it_began_with_goes_on_with_a_warning(
    write_data: Write, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_data()
    folder = run(data, "schedule=constant", "num_steps=2")
    written = json.loads((folder / "order.json").read_text())
    assert set(written["data"]) == {"data"}
    (folder / "order.json").write_text(json.dumps({key: value for key, value in written.items() if key != "data"}))
    write_data(sources={BROKEN: png(77, SQUARE)})
    with caplog.at_level(logging.WARNING, logger="physedit.train.order"):
        run(data, "schedule=constant", "num_steps=3")
    assert [f"{folder}/order.json does not say which files" in message for message in caplog.messages] == [True]
    caplog.clear()
    run(data, "schedule=constant", "num_steps=4")
    assert (len(metrics_of(folder)), caplog.messages) == (4, [])


def test_the_member_of_a_mixture_whose_files_changed_is_named(
    write_data: Write, run_smoke: Callable[..., Path]
) -> None:
    data = write_data()
    mixed = (
        *SHORT, "data=mixture", "+data@data.members.own=pica100k", "+data@data.members.world=scenes",
        f"data.members.own.path={data}", "+data.weights={own: 0.5, world: 0.5}", "schedule=constant",
    )  # fmt: skip
    run_smoke(*mixed, "num_steps=1")
    assert len(metrics_of(run_smoke(*mixed, "num_steps=2"))) == 2
    write_data(sources={BROKEN: png(77, SQUARE)})
    with pytest.raises(ConfigError, match=r"the files of data\.members\.own\.path=\S+ have other names"):
        run_smoke(*mixed, "num_steps=3")


def test_laws_can_be_balanced_and_levels_shown_each(write_data: Write, run: Any) -> None:
    data = write_data()
    balanced = run(data, "order.balance=law", name="balanced")
    each = run(data, "levels.mode=each", "levels.explicit=1", name="each")
    assert json.loads((each / "order.json").read_text())["samples_an_epoch"] == 20
    assert adapter_bytes(balanced, 5) != adapter_bytes(each, 5)


def test_mixture_trains_and_names_rows_by_member(write_data: Write, run_smoke: Callable[..., Path]) -> None:
    data = write_data(sources={EMPTY: None})
    folder = run_smoke(
        *SHORT, "data=mixture", "+data@data.members.own=pica100k", "+data@data.members.world=scenes",
        f"data.members.own.path={data}", "+data.weights={own: 0.5, world: 0.5}", "max_dropped_share=0.1",
    )  # fmt: skip
    assert dropped_of(folder) == [(0, "own/train-0.parquet:6", "no source picture")]


@pytest.mark.slow
def test_two_processes_drop_the_same_rows_as_one_and_stop_together(
    write_data: Write, run: Any, world: Path, tmp_path: Path
) -> None:
    data = write_data(sizes=(SQUARE, WIDE, SQUARE), sources={BROKEN: cut_off(BROKEN), EMPTY: None})
    given = ("data=pica100k", f"data.path={data}", *SHORT)
    alone = run(data, "max_dropped_share=0.2", name="alone")
    assert launch(*smoke_overrides(world, tmp_path, "pair", (*given, "max_dropped_share=0.2"))).returncode == 0
    assert dropped_of(tmp_path / "pair") == dropped_of(alone)
    for one, two in zip(metrics_of(alone), metrics_of(tmp_path / "pair"), strict=True):
        assert one["train/dropped"] == two["train/dropped"]
        assert one["train/loss"] == pytest.approx(two["train/loss"], rel=1e-5)  # sums in another order
    stopped = launch(*smoke_overrides(world, tmp_path, "stopped", (*given, "max_dropped_share=0.1")))
    assert stopped.returncode != 0
    assert "[rank 1]: 2 of 10 rows cannot be used" in stopped.stderr
    assert "train-0.parquet:6, train-0.parquet:3. dropped.jsonl" in stopped.stderr


def launch(*overrides: str) -> subprocess.CompletedProcess[str]:
    """Trains in two processes on the CPU."""
    options = (
        "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
        "--dynamo_backend", "no", "--main_process_port", "0", "-m", "physedit.train",
    )  # fmt: skip
    command = [str(Path(sys.executable).parent / "accelerate"), "launch", *options, *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
