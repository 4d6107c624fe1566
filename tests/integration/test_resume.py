"""What a resume puts back, and where it must put it."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.memory_editors import batch_of, velocity
from tests.support.runs import StopAtOnce, adapter_bytes

from physedit.models.lora import adapter_state
from physedit.train import sft
from physedit.train.engine import PlainEngine
from physedit.train.signals import Stopped
from physedit.train.state import trainable

ADAPTER = "adapter/pytorch_lora_weights.safetensors"


def test_d14_weights_without_moments_are_no_resume(run_smoke, monkeypatch):
    whole = run_smoke(name="whole")
    for name in ("resumed", "weights_alone"):
        with pytest.raises(Stopped):
            run_smoke(name=name, stop=StopAtOnce())
    assert adapter_bytes(run_smoke(name="resumed"), 8) == adapter_bytes(whole, 8)
    monkeypatch.setattr(PlainEngine, "restore_optimizer", lambda _engine, _tensors: None)
    alone = run_smoke(name="weights_alone")
    one, other = (load_file(run / "checkpoints/step_00000008" / ADAPTER) for run in (whole, alone))
    assert max(float((value - other[name]).abs().max()) for name, value in one.items()) > 1e-4


def test_d18_after_a_resume_there_is_one_adapter_and_the_optimizer_holds_its_very_tensors(run_smoke, monkeypatch):
    kept, outputs = [], []
    fit = sft.fit

    def watched(trainer, events, start):
        kept.append(trainer)
        outputs.append(velocity(trainer.backbone, trainer.backbone.encode(batch_of(1))).detach())
        end = fit(trainer, events, start)
        outputs.append(velocity(trainer.backbone, trainer.backbone.encode(batch_of(1))).detach())
        return end

    monkeypatch.setattr(sft, "fit", watched)
    with pytest.raises(Stopped):
        run_smoke("num_steps=4", stop=StopAtOnce())
    run_smoke("num_steps=4")
    resumed = kept[-1]
    denoiser = resumed.backbone.denoiser
    assert list(denoiser.peft_config) == ["default"]
    held = [id(parameter) for group in resumed.engine._optimizer.param_groups for parameter in group["params"]]
    assert held == [id(parameter) for parameter in trainable(denoiser).values()]
    assert len(held) == len(adapter_state(denoiser))
    assert len(outputs) == 3  # the stopped run has none after it
    assert not torch.equal(outputs[1], outputs[0])  # what is resumed is not a new adapter
    assert not torch.equal(outputs[2], outputs[1])  # and the one step that is left changes what the model says


def test_d06_what_trains_is_float32_over_a_bfloat16_base_after_a_resume(run_smoke, monkeypatch):
    kept = []
    fit = sft.fit

    def watched(trainer, *rest):
        held = [p for group in trainer.engine._optimizer.param_groups for p in group["params"]]
        moments = [value for state in trainer.engine._optimizer.state.values() for value in state.values()]
        kept.append((trainer, [value.dtype for value in (*held, *moments)]))
        return fit(trainer, *rest)

    monkeypatch.setattr(sft, "fit", watched)
    bfloat16 = ("backbone.dtype=bfloat16", "num_steps=4")
    with pytest.raises(Stopped):
        run_smoke(*bfloat16, stop=StopAtOnce())
    folder = run_smoke(*bfloat16)
    (_, before), (resumed, restored) = kept
    assert len(restored) == 4 * len(before)  # two moments and a count for each matrix
    assert {*before, *restored} == {torch.float32}
    after = trainable(resumed.backbone.denoiser).values()
    moments = [value for state in resumed.engine._optimizer.state.values() for value in state.values()]
    assert {value.dtype for value in (*after, *moments)} == {torch.float32}
    frozen = {p.dtype for p in resumed.backbone.denoiser.parameters() if not p.requires_grad}
    assert frozen == {torch.bfloat16}
    assert (folder / "checkpoints" / "step_00000004" / "manifest.json").exists()


@pytest.mark.parametrize("file", [ADAPTER, "optimizer.safetensors"])
def test_d07_a_checkpoint_without_one_of_its_tensors_is_refused_by_name(run_smoke, monkeypatch, tmp_path, file):
    with pytest.raises(Stopped):
        run_smoke(stop=StopAtOnce())
    folder = next((tmp_path / "run" / "checkpoints").iterdir())
    path = folder / file
    tensors = load_file(path)
    lost = sorted(tensors)[0].partition("/")[0]  # a moment is PARAMETER/FIELD
    save_file({name: value for name, value in tensors.items() if name.partition("/")[0] != lost}, path)
    monkeypatch.setattr("physedit.train.checkpoint.verify", lambda _path: None)  # else its hash refuses it first
    with pytest.raises(ValueError, match=re.escape(lost.removeprefix("transformer."))):
        run_smoke()
