"""What a resume puts back, and where it must put it."""

import pytest
from safetensors.torch import load_file, save_file
from tests.support.runs import StopAtOnce, adapter_bytes

from physedit.models.lora import adapter_state
from physedit.train import sft
from physedit.train.engine import PlainEngine
from physedit.train.signals import Stopped
from physedit.train.state import trainable


def test_weights_without_moments_are_no_resume(run_smoke, monkeypatch):
    """D14."""
    whole = run_smoke(name="whole")
    for name in ("resumed", "weights_alone"):
        with pytest.raises(Stopped):
            run_smoke(name=name, stop=StopAtOnce())
    assert adapter_bytes(run_smoke(name="resumed"), 8) == adapter_bytes(whole, 8)
    monkeypatch.setattr(PlainEngine, "restore_optimizer", lambda _engine, _tensors: None)
    assert adapter_bytes(run_smoke(name="weights_alone"), 8) != adapter_bytes(whole, 8)


def test_after_a_resume_there_is_one_adapter_and_the_optimizer_holds_its_very_tensors(run_smoke, monkeypatch):
    """D18."""
    kept = []
    fit = sft.fit
    monkeypatch.setattr(sft, "fit", lambda trainer, *rest: (kept.append(trainer), fit(trainer, *rest)))
    with pytest.raises(Stopped):
        run_smoke(stop=StopAtOnce())
    run_smoke()
    resumed = kept[-1]
    denoiser = resumed.backbone.denoiser
    assert list(denoiser.peft_config) == ["default"]
    held = [id(parameter) for group in resumed.engine._optimizer.param_groups for parameter in group["params"]]
    assert held == [id(parameter) for parameter in trainable(denoiser).values()]
    assert len(held) == len(adapter_state(denoiser))


def test_a_checkpoint_without_one_of_its_tensors_is_refused_by_name(run_smoke, monkeypatch, tmp_path):
    """D07."""
    with pytest.raises(Stopped):
        run_smoke(stop=StopAtOnce())
    folder = next((tmp_path / "run" / "checkpoints").iterdir())
    path = folder / "optimizer.safetensors"
    tensors = load_file(path)
    lost = next(iter(tensors)).rpartition("/")[0]
    save_file({name: value for name, value in tensors.items() if not name.startswith(f"{lost}/")}, path)
    monkeypatch.setattr("physedit.train.checkpoint.verify", lambda _path: None)  # else its hash refuses it first
    with pytest.raises(ValueError, match=lost):
        run_smoke()
