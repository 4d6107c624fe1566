"""Whole runs with the other kinds of adapter."""

import pytest
from safetensors.torch import load_file
from tests.support.runs import StopAtOnce, adapter_bytes, metrics_of

from physedit.models.adapter_file import read_adapter_format
from physedit.train.cli import app
from physedit.train.config import ConfigError
from physedit.train.loop import Stopped

VARIANT = ("num_steps=4", "log_every=1", "adapter.use_dora=true", "adapter.use_rslora=true")


def test_a_dora_run_trains_its_magnitudes_and_resumes_exactly(run_smoke):
    averaged = (*VARIANT, "ema_decay=0.9")
    whole = run_smoke(*averaged, name="whole")
    with pytest.raises(Stopped):
        run_smoke(*averaged, name="stopped", stop=StopAtOnce())
    first = load_file(whole.parent / "stopped/checkpoints/step_00000003/adapter/pytorch_lora_weights.safetensors")
    resumed = run_smoke(*averaged, name="stopped")
    assert adapter_bytes(whole, 4) == adapter_bytes(resumed, 4)
    assert metrics_of(whole) == metrics_of(resumed)
    last = load_file(whole / "checkpoints/step_00000004/adapter/pytorch_lora_weights.safetensors")
    magnitudes = [name for name in last if "magnitude" in name]
    assert len(magnitudes) == len(last) // 3
    assert all((last[name] != first[name]).any() for name in magnitudes)


def test_an_adapter_of_another_format_than_the_configs_is_not_evaluated(run_smoke):
    checkpoint = run_smoke(*VARIANT, name="run") / "checkpoints" / "step_00000004"
    found = read_adapter_format(checkpoint / "adapter")
    assert found is not None
    assert found.use_dora
    assert found.use_rslora
    with pytest.raises(ConfigError, match=r"use_rslora true.* Set adapter\.use_rslora=true"):
        app(args=["eval", str(checkpoint), "eval=scenes", "adapter.use_rslora=false"])
