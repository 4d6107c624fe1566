"""Filling the encoded cache: what it needs, what it refuses, and what is there when it is stopped or shared."""

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.encoded import (
    Pair,
    contents,
    counted,
    fill_alone,
    filling,
    same_contents,
    some_pairs,
    write_pairs,
)
from tests.support.memory_editors import EDITORS, Editor

from physedit.data_loaders.encoded_store import StoreWriter
from physedit.train.config import ConfigError
from physedit.train.loop import Stopped


def test_signal_ends_the_filling_and_what_was_encoded_is_kept(
    flux: Editor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pairs(tmp_path / "data", some_pairs(8))
    task = filling(flux, tmp_path / "data", tmp_path / "cache")
    add = StoreWriter.add

    def add_and_signal(self: StoreWriter, key: bytes, tensors: Any) -> int:
        length = add(self, key, tensors)
        task.stop.signal_number = 15
        return length

    monkeypatch.setattr(StoreWriter, "add", add_and_signal)
    with pytest.raises(Stopped, match="what was encoded is kept"):
        fill_alone(task)
    monkeypatch.undo()
    task.stop.signal_number = None
    assert counted(fill_alone(task)[1]) == (4, 4, 0)  # four are encoded before the first is written


def test_need_of_the_disk_is_said_and_compared_with_what_is_free(
    editor: Editor, filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = filling(editor, filled / "data", filled / "other")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"needs about .* MiB more in .*other, but 0\.00 MiB are free.*encode=live"):
        fill_alone(task)
    assert contents(filled / "other") == {}
    monkeypatch.undo()
    with caplog.at_level("INFO"):
        _, counts = fill_alone(task)
    (line,) = [record for record in caplog.records if "are needed" in record.getMessage()]
    needed = line.args[2]
    assert needed.endswith(" MiB")
    # Of text that is unlike in length, four rows tell the fifth's need roughly.
    assert float(needed.split()[0]) == pytest.approx(counts.bytes_written / 2**20, rel=0.25, abs=0.01)


def test_rows_that_lack_an_entry_are_refused_where_none_may_be_written(editor: Editor, filled: Path) -> None:
    write_pairs(filled / "data", some_pairs(7))
    task = filling(editor, filled / "data", filled / "cache")
    with pytest.raises(ConfigError, match=r"2 of 7 rows lack an entry .*encode\.write_missing=false"):
        fill_alone(task, can_write=False)
    fill_alone(task)
    assert counted(fill_alone(task, can_write=False)[1]) == (0, 7, 0)


@pytest.mark.parametrize("name", EDITORS)
def test_without_text_encoders_a_full_cache_is_read_and_a_lacking_one_refused(name: str, tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", some_pairs(3))
    absent = EDITORS[name](encoders="absent")
    task = filling(absent, tmp_path / "data", tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"instructions of 3 of 3 rows .*backbone\.encoders=absent"):
        fill_alone(task, can_encode_text=False)
    fill_alone(filling(EDITORS[name](), tmp_path / "data", tmp_path / "cache"))
    assert counted(fill_alone(task, can_encode_text=False)[1]) == (0, 3, 0)


def test_equal_captions_share_an_entry_where_the_text_sees_no_pictures(editor: Editor, tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", [Pair(number, "Make it night.") for number in range(3)])
    fill_alone(filling(editor, tmp_path / "data", tmp_path / "cache"))
    assert len(contents(tmp_path / "cache")) == (6 if editor.text_sees_pictures else 4)


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def test_live_tensors_are_flat_over_200_prompts(flux: Editor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pairs(tmp_path / "data", [Pair(0, f"Prompt number {number}") for number in range(200)])
    counts: list[int] = []
    forget = flux.forget

    def forget_and_count() -> None:
        forget()
        if len(counts) in (20, 199) or not counts:
            counts.append(live_tensors())
        else:
            counts.append(0)

    monkeypatch.setattr(flux, "forget", forget_and_count)
    _, done = fill_alone(filling(flux, tmp_path / "data", tmp_path / "cache"))
    assert (len(counts), done.encoded) == (200, 200)
    assert counts[199] <= counts[20]
    sizes = [file.stat().st_size for file in (tmp_path / "cache").glob("*.data")]
    assert sum(sizes) == done.bytes_written
    own = sum(value.nbytes for entry in contents(tmp_path / "cache").values() for value in entry.values())
    assert own < done.bytes_written < own + 400 * 201  # a header each


KILL_WHILE_WRITING = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from tests.support.encoded import fill_alone, filling
from tests.support.memory_editors import EDITORS
from physedit.data_loaders import encoded_store

add, count = encoded_store.StoreWriter.add, 0

def add_some(self, key, tensors):
    global count
    count += 1
    if count == {last}:  # half an entry, as a full buffer would be written
        self._data.write(os.urandom(100))
        self._data.flush()
        self._index.write(os.urandom(11))
        self._index.flush()
        os.kill(os.getpid(), 9)
    return add(self, key, tensors)

encoded_store.StoreWriter.add = add_some
fill_alone(filling(EDITORS[{name!r}](), Path({data!r}), Path({cache!r})))
"""


@pytest.mark.parametrize(("name", "last", "whole_rows"), [("flux_kontext", 4, 1), ("qwen_image_edit", 7, 3)])
def test_killed_while_writing_it_goes_on_and_the_same_set_is_there(
    name: str, last: int, whole_rows: int, editors: dict[str, Editor], tmp_path: Path
) -> None:
    write_pairs(tmp_path / "data", some_pairs(5))
    program = KILL_WHILE_WRITING.format(
        path=[str(Path(__file__).parents[3])],
        name=name,
        last=last,
        data=str(tmp_path / "data"),
        cache=str(tmp_path / "cache"),
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300, check=False)
    assert killed.returncode == -9, killed.stderr.decode()
    _, counts = fill_alone(filling(editors[name], tmp_path / "data", tmp_path / "cache"))
    assert (*counted(counts), counts.damaged) == (5 - whole_rows, whole_rows, 0, 0)
    fill_alone(filling(editors[name], tmp_path / "data", tmp_path / "whole"))
    assert same_contents(tmp_path / "cache", tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_share_the_encoding_and_write_what_one_writes(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", some_pairs(7))
    columns = ["data.source=before", "data.target=after", "data.instruction=text"]
    given = [
        "experiment=smoke", "data=pairs", f"data.path={tmp_path / 'data'}", *columns, "scenes.write=false",
        f"output_root={tmp_path}", "--json",
    ]  # fmt: skip
    programs = Path(sys.executable).parent
    launch = [
        str(programs / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONSAFEPATH": "1"}
    run: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "env": environment, "check": True}
    pair = subprocess.run(
        [*launch, str(programs / "physedit"), "encode", *given, f"encode.folder={tmp_path / 'pair'}"], **run
    )
    assert json.loads(pair.stdout)["encoded"] == 7
    assert len(list((tmp_path / "pair").glob("*.data"))) == 2
    for folder, expected in (("pair", (0, 7)), ("alone", (7, 0))):
        done = subprocess.run([programs / "physedit", "encode", *given, f"encode.folder={tmp_path / folder}"], **run)
        counts = json.loads(done.stdout)
        assert (counts["encoded"], counts["reused"]) == expected
    assert same_contents(tmp_path / "pair", tmp_path / "alone")
