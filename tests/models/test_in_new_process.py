"""An adapter file means the same in another process, to a stock pipeline that never heard of this project."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.memory_editors import EDITORS, batch_of, velocity
from tests.support.qwen_editors import PLUS, recorded
from tests.support.tiny_transformers import fill

from physedit.models.lora import LoraSettings, adapter_state, add_adapter

BUILDERS: dict[str, Callable[..., Any]] = {
    "flux_kontext": EDITORS["flux_kontext"],
    "qwen_plus": lambda: EDITORS["qwen_image_edit"](pipeline=PLUS, vision_area_px=64 * 64),
}
PROGRAM = """
import inspect, sys
import diffusers, torch

pipeline_class, transformer_class = (getattr(diffusers, name) for name in sys.argv[1:3])
base, adapter, calls = sys.argv[3:6]
torch.set_num_threads(1)
parts = dict.fromkeys(inspect.signature(pipeline_class).parameters)
parts["transformer"] = transformer_class.from_pretrained(base).eval()
pipeline = pipeline_class(**parts)
inputs = torch.load(calls + "/inputs.pt", weights_only=False)
with torch.no_grad():
    plain = pipeline.transformer(**inputs)[0]
    pipeline.load_lora_weights(adapter)
    tuned = pipeline.transformer(**inputs)[0]
assert "physedit" not in sys.modules
torch.save((plain, tuned), calls + "/outputs.pt")
"""
# Relative. Seen: 2e-7; a matrix that is loaded may lie at another address, and sums then round otherwise.
TOLERANCE = 1e-5


@pytest.mark.parametrize("name", BUILDERS)
def test_alpha_other_than_rank_survives_the_file_and_the_process(tmp_path: Path, name: str) -> None:
    editor, settings = BUILDERS[name](), LoraSettings(4, 16.0)
    editor.denoiser.save_pretrained(tmp_path / "base")
    conditioning = editor.encode(batch_of(1))
    with recorded(editor.denoiser) as calls, torch.no_grad():
        velocity(editor, conditioning)
        add_adapter(editor.denoiser, settings, targets=editor.lora_presets["attention_mlp"], seed=0)
        fill(editor.denoiser)
        velocity(editor, conditioning)
    base, trained = (call.output for call in calls)
    editor.save_adapter(adapter_state(editor.denoiser), str(tmp_path / "adapter"), settings.format)
    torch.save(calls[1].inputs, tmp_path / "inputs.pt")

    classes = [type(editor._pipeline).__name__, type(editor.denoiser).__name__]
    folders = [str(tmp_path / folder) for folder in ("base", "adapter", "")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *classes, *folders],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plain, tuned = torch.load(tmp_path / "outputs.pt")
    assert (trained - base).norm() / base.norm() > 0.05
    assert (plain - base).norm() / base.norm() < TOLERANCE
    assert (tuned - trained).norm() / trained.norm() < TOLERANCE
