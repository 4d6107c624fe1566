"""What every evaluation hook that an option names promises, with an editor that paints."""

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.stand_ins import PaintingEditor, context_for, write_benchmark
from torch import Tensor, nn

from physedit.data_loaders.scenes.write import ensure_world
from physedit.eval_hooks.hook import Cadence, EvalContext, EvalHook
from physedit.models.backbone import Conditioning
from physedit.train.assemble import build_hooks
from physedit.train.build import EXTRA_PACKAGES_VARIABLE
from physedit.train.compose import compose_config
from physedit.train.config import options

PROGRAM = """
import json, sys
print(json.dumps({"size": len(sys.argv[1]), "acc": {"value": 0.5, "n": 3}}))
"""
OPTIONS = [name for name in options("eval") if name != "none"]
STEP = 400


class AdaptedEditor(PaintingEditor):
    """Its velocity depends on the adapter too."""

    def velocity(self, denoiser: nn.Module, noisy: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        assert not denoiser.training
        found = super().velocity(denoiser, noisy, sigma, conditioning)
        return found * 0.9 if self.denoiser.is_adapter_on else found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small world, a benchmark, a program and an adapter's file."""
    folder = tmp_path_factory.mktemp("hooks")
    ensure_world(folder / "world", num_train=24, num_benchmark=12, seed=7)
    write_benchmark(folder / "bench", 3)
    (folder / "score.py").write_text(PROGRAM)
    (folder / "adapter.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def hook_of(files: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], EvalHook]:
    """Builds the one hook of an option, as a run would, on small files."""
    monkeypatch.setenv(EXTRA_PACKAGES_VARIABLE, "tests")
    judge = "tests.support.stand_ins.RedJudge"
    settings = {
        "heldout_loss": ["data.split=train", "data.heldout_share=0.3", "eval.heldout_loss.num_items=3"],
        "command": [f"eval.command.command=[{sys.executable},{files / 'score.py'},'{{adapter}}']"],
        "scenes": ["eval.scenes.limit=3", "eval.scenes.num_steps=1"],
    }

    def make(option: str) -> EvalHook:
        given = [f"eval={option}", f"scenes.folder={files / 'world'}", f"picabench.benchmark={files / 'bench'}"]
        own = settings.get(option, ["~judge", f"+judge={{_target_: {judge}}}", f"eval.{option}.num_steps=1"])
        (hook,) = build_hooks(compose_config(["experiment=smoke", "scenes.write=false", *given, *own]))
        return hook

    return make


@pytest.fixture(params=OPTIONS)
def hook(request: pytest.FixtureRequest, hook_of: Callable[[str], EvalHook]) -> EvalHook:
    return hook_of(request.param)


@pytest.fixture
def context(files: Path, tmp_path: Path) -> EvalContext:
    given = context_for(AdaptedEditor(), tmp_path / "run", step=STEP)
    return replace(given, adapter_file=files / "adapter.safetensors")


def test_every_option_is_found() -> None:
    assert {"command", "heldout_loss", "picabench", "picabench_quick", "scenes"} <= set(OPTIONS)


def test_a_hook_names_itself_and_when_it_is_due(hook: EvalHook) -> None:
    assert isinstance(hook.cadence, Cadence)
    assert hook.name.replace("_", "").isalnum()
    hook.check()


def test_it_reports_a_change_under_its_own_name_in_its_own_folder(hook: EvalHook, context: EvalContext) -> None:
    report = hook.run(context)
    assert (report.hook, report.step) == (hook.name, STEP)
    assert report.metrics
    assert all(key.startswith(f"{hook.name}/") for key in report.metrics)
    assert report.folder == context.run_folder / "eval" / hook.name / f"step_{STEP:08d}"
    assert (report.folder / "report.json").exists()
    assert all(note.strip() for note in report.notes)
    assert report.lower_is_better <= report.metrics.keys()
    for change in report.metrics.values():
        if change.base is not None and change.tuned is not None:
            assert change.change == change.tuned - change.base


def test_the_base_changes_by_exactly_nothing(hook: EvalHook, context: EvalContext) -> None:
    report = hook.run(replace(context, step=0, adapter_file=None))
    assert {change.change for change in report.metrics.values()} <= {0.0, None}
    assert any(change.change == 0.0 for change in report.metrics.values())


def test_training_is_as_it_was(hook: EvalHook, context: EvalContext) -> None:
    denoiser = context.denoiser
    denoiser.train()
    state, random_state = copy.deepcopy(denoiser.state_dict()), torch.random.get_rng_state()
    flags = [parameter.requires_grad for parameter in denoiser.parameters()]
    hook.run(context)
    assert all(torch.equal(value, state[name]) for name, value in denoiser.state_dict().items())
    assert [parameter.requires_grad for parameter in denoiser.parameters()] == flags
    assert all(module.training for module in denoiser.modules())
    assert all(parameter.grad is None for parameter in denoiser.parameters())
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert torch.is_grad_enabled()


def test_a_later_start_finds_the_report_and_measures_nothing_again(hook: EvalHook, context: EvalContext) -> None:
    report = hook.run(context)
    assert [each.metrics for each in hook.finished_reports(context.run_folder, STEP)] == [report.metrics]
    assert hook.finished_reports(context.run_folder, STEP - 1) == ()
    assert hook.run(context) == report
