"""``benchmarks/gpu.sh``: the whole path on the CPU, and what becomes of settings that end badly."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import leg
from benchmarks.gpu.leg import Record
from benchmarks.gpu.table import Leg, Report, table

ROOT = Path(__file__).parent.parent


def test_without_a_gpu_the_path_runs_at_tiny_size_and_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [str(ROOT / "benchmarks" / "gpu.sh"), "--settings", "1", "--out", str(tmp_path / "out"), "--rank", "2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "No GPU: the same path runs on the CPU at tiny size" in done.stdout
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (report["card"], report["is_tiny"], report["rank"]) == ("CPU", True, 2)
    assert report["torch"] == torch.__version__
    assert report["command"].startswith("benchmarks/gpu.sh --settings 1")
    assert [each["model"] for each in report["legs"]] == ["kontext", "qwen"]
    for each in report["legs"]:
        assert each["outcome"] == "measured", each["message"]
        assert each["num_steps"] > 0
        assert each["spread_s"][0] <= each["sample_s"] <= each["spread_s"][1]
        assert 0 < each["mfu"] < each["done_share"]
        assert each["predicted_range_s"][0] < each["predicted_s"] < each["predicted_range_s"][1]
        assert each["predicted_peak"] > 0
        assert each["allocated"] is None
    shown = (tmp_path / "out" / "table.md").read_text()
    assert "no figure here tells anything of a GPU" in shown
    assert "random weights: CPU, driver -, " in shown
    assert ", the adapter's products in bfloat16; " in shown
    rows = [line for line in shown.splitlines() if line.startswith("| FLUX") or line.startswith("| Qwen")]
    assert len(rows) == 2
    assert shown in done.stdout


def test_a_setting_that_takes_too_much_memory_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    file = tmp_path / "leg.json"
    monkeypatch.setattr(leg, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["leg", "experiment=smoke", "--json", str(file), "--limit-s", "9"])
    assert leg.main() == 0
    record = json.loads(file.read_text())
    assert (record["outcome"], record["message"]) == (leg.OUT_OF_MEMORY, "CUDA out of memory. Tried to allocate 2 GiB.")
    assert "out of memory: CUDA out of memory. Tried to allocate 2 GiB. | - |" in table(report_of(record))


def test_a_setting_is_cut_off_in_time_and_keeps_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, monkey = tmp_path / "leg.json", tmp_path / "python"
    record = Record(outcome="measured", step_s=[9.0, 2.0, 4.0], samples_a_step=2, allocated=2**30, reserved=2**31)
    leg.write(record, tmp_path / "kept.json")
    monkey.write_text(f"#!/bin/sh\ncp {tmp_path / 'kept.json'} {file}\nsleep 60\n")
    monkey.chmod(monkey.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(monkey))
    monkeypatch.setattr(gpu, "LEAST_LEG_S", 0.0)
    found = gpu.run_leg(("x=1",), file, limit_s=2.0)
    assert (found["outcome"], found["message"]) == ("measured", "cut off after 2 s")
    shown = table(report_of(found))
    assert "| 0.667 | 1.5 (1 to 2, 2 steps) | 1 (0.5 to 2) | 20 % | 26.7 % | 1.00 | 2.00 | 0.50 | 2.000 |" in shown


def test_a_setting_that_fails_or_finds_no_time_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkey = tmp_path / "python"
    monkey.write_text("#!/bin/sh\necho first >&2\necho 'ValueError: no such thing' >&2\nexit 1\n")
    monkey.chmod(monkey.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(monkey))
    found = gpu.run_leg(("x=1",), tmp_path / "leg.json", limit_s=gpu.LEAST_LEG_S)
    assert (found["outcome"], found["message"]) == ("failed", "ValueError: no such thing")
    found = gpu.run_leg(("x=1",), tmp_path / "leg.json", limit_s=gpu.LEAST_LEG_S - 1)
    assert found["outcome"] == "not started"
    assert "not started: no time was left" in table(report_of(found))


def report_of(record: dict[str, object]) -> Report:
    one = Leg.of(
        record, model="kontext", overrides=("micro_batch=1",), predicted_peak=2**29, predicted_s=1.0,
        predicted_range_s=(0.5, 2.0), useful_flops=300, done_flops=400, peak_flops=1000.0,
    )  # fmt: skip
    return Report("card", "H100", "1", "2", "3", "abc", "today", "gpu.sh", False, "bfloat16", 16, 1024, [one])
