"""Blocks recomputed in the backward pass, and blocks compiled: what is computed stays the same."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.allocations import peak_bytes
from tests.support.memory_editors import EDITORS, Editor, batch_of, edit, gradients, velocity, with_adapter
from torch import Tensor

from physedit.models import blocks
from physedit.models.backbone import Conditioning
from physedit.models.lora import without_adapter

# Relative to the largest value. No difference was seen; another processor may order the sums of traced code otherwise.
COMPILED_TOLERANCE = 1e-5


@pytest.fixture(params=EDITORS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def checkpoint_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Within the context the form of every checkpoint is noted: whether it is re-entrant."""
    calls: list[bool] = []
    checkpoint = blocks.checkpoint

    def noted(function: Any, *inputs: Any, use_reentrant: bool) -> Any:
        calls.append(use_reentrant)
        return checkpoint(function, *inputs, use_reentrant=use_reentrant)

    monkeypatch.setattr(blocks, "checkpoint", noted)
    yield calls


@contextmanager
def block_runs(backbone: Editor) -> Iterator[list[str]]:
    """Within the context every run of a block is noted by its name."""
    runs: list[str] = []
    kinds = backbone.denoiser._repeated_blocks
    blocks = {n: m for n, m in backbone.denoiser.named_modules() if type(m).__name__ in kinds}
    handles = [m.register_forward_pre_hook(lambda *_, n=n: runs.append(n)) for n, m in blocks.items()]
    try:
        yield runs
    finally:
        for handle in handles:
            handle.remove()


def test_checkpointing_is_not_reentrant_runs_blocks_twice_and_changes_no_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, Tensor]] = []
    runs: list[list[str]] = []
    with checkpoint_calls(monkeypatch) as calls:
        for is_on in (False, True):
            backbone = with_adapter(EDITORS[name](gradient_checkpointing=is_on), is_filled=True)
            conditioning = backbone.encode(batch_of(1, 2))
            with block_runs(backbone) as noted:
                found.append(gradients(backbone, conditioning))
            runs.append(noted)
            assert calls == ([False] * len(set(noted)) if is_on else [])
    assert len(runs[0]) == len(set(runs[0])) > 0
    assert sorted(runs[1]) == sorted(2 * runs[0])
    trained = {n for n in found[0] if "lora_" in n}
    assert found[0].keys() == found[1].keys() == trained
    assert all(torch.equal(found[0][each], found[1][each]) for each in trained)


@pytest.mark.parametrize("every", [2, 3])
def test_every_nth_block_runs_twice_and_changes_no_loss_and_no_gradient(name: str, every: int) -> None:
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for share in (False, every):
        backbone = with_adapter(toy(name, gradient_checkpointing=share), is_filled=True)
        conditioning = backbone.encode(batch_of(1, 2))
        with block_runs(backbone) as runs:
            backbone.denoiser.train()
            predicted = velocity(backbone, conditioning)
            in_order = list(runs)
            predicted.square().mean().backward()
        again = runs[len(in_order) :]
        assert again == ([] if share is False else in_order[::every][::-1])
        gradient = {n: p.grad for n, p in backbone.denoiser.named_parameters() if p.grad is not None}
        found.append((predicted.detach(), gradient))
    (plain, expected), (recomputed, gradient) = found
    assert len(in_order) == 6
    assert torch.equal(plain, recomputed)
    assert expected.keys() == gradient.keys()
    assert all(torch.equal(expected[each], gradient[each]) for each in expected)


def test_the_more_blocks_are_recomputed_the_lower_the_peak(name: str) -> None:
    peaks = []
    for share in (True, 2, 3, False):
        backbone = with_adapter(toy(name, gradient_checkpointing=share), is_filled=True)
        conditioning = backbone.encode(batch_of(1, 2))
        backbone.denoiser.train()

        def step(backbone: Editor = backbone, conditioning: Conditioning = conditioning) -> None:
            velocity(backbone, conditioning).square().mean().backward()

        step()  # gradients, and tables of positions, are made once
        peaks.append(peak_bytes(step))
    assert peaks == sorted(set(peaks))
    # Of six blocks every second keeps three, every third four.
    none, half, most, all_of_them = peaks
    assert none + 0.3 * (all_of_them - none) < half < most < none + 0.9 * (all_of_them - none)


@pytest.mark.parametrize("share", [0, -1, 1.5, "half", None])
def test_a_share_of_blocks_that_is_none_is_refused(name: str, share: object) -> None:
    with pytest.raises(
        ValueError, match=rf"backbone\.gradient_checkpointing is {share}; it must be true .* or a whole"
    ):
        EDITORS[name](gradient_checkpointing=share)


def test_with_checkpointing_every_fresh_adapter_learns_in_a_frozen_base(name: str) -> None:
    # The re-entrant form gives none: inputs of the first block need no gradient.
    backbone = with_adapter(EDITORS[name](gradient_checkpointing=True), is_filled=False)
    assert not any(p.requires_grad for n, p in backbone.denoiser.named_parameters() if "lora_" not in n)
    found = gradients(backbone, backbone.encode(batch_of(1)))
    layers = {n.split(".lora_")[0] for n, _ in backbone.denoiser.named_parameters() if "lora_" in n}
    learning = {n.split(".lora_")[0] for n, value in found.items() if "lora_B" in n and value.abs().max() > 0}
    assert learning == layers


@pytest.mark.slow
@torch._dynamo.config.patch(fail_on_recompile_limit_hit=True)
def test_compiled_blocks_compute_the_same(name: str) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    share = {"flux_kontext": True, "qwen_image_edit": 2}[name]
    plain, compiled = EDITORS[name](), EDITORS[name](compile_blocks="aot_eager", gradient_checkpointing=share)
    assert list(plain.denoiser.state_dict()) == list(compiled.denoiser.state_dict())
    conditioning = plain.encode(batch_of(1))
    for backbone in (plain, compiled):
        with_adapter(backbone, is_filled=True, preset="attention")
    assert list(plain.denoiser.state_dict()) == list(compiled.denoiser.state_dict())
    expected = gradients(plain, conditioning)
    assert num_graphs() == 0
    found = gradients(compiled, conditioning)
    assert num_graphs() > 0
    # The graphs of the pass above are used again.
    assert difference(velocity(plain, conditioning), velocity(compiled, conditioning)) < COMPILED_TOLERANCE
    assert expected.keys() == found.keys()
    assert max(difference(expected[each], found[each]) for each in expected) < COMPILED_TOLERANCE
    assert edits_differ_by(plain, compiled) <= 1
    with without_adapter(plain.denoiser), without_adapter(compiled.denoiser):
        assert edits_differ_by(plain, compiled) <= 1
    assert plain.fingerprint != compiled.fingerprint


def test_an_unknown_compiler_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"backbone\.compile_blocks is 'fast'; it must be null or one of inductor"):
        EDITORS[name](compile_blocks="fast")


def test_inductor_without_a_compiler_of_cxx_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = r"compile_blocks=inductor generates code and needs a C\+\+ compiler \(.+\), which this machine lacks"
    with torch._inductor.config.patch({"cpp.cxx": (None, "/absent/g++")}):
        with pytest.raises(ValueError, match=message):
            EDITORS[name](compile_blocks="inductor")
        with pytest.raises(ValueError, match=message):
            type(EDITORS[name]()).outline({"compile_blocks": "inductor"})
        blocks.check_backend("aot_eager")
        blocks.check_backend(None)


def test_inductor_needs_the_headers_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(blocks.sysconfig, "get_path", lambda _name: str(tmp_path))
    with torch._inductor.config.patch({"cpp.cxx": (None, sys.executable)}):  # it tells its version, as compilers do
        with pytest.raises(ValueError, match=r"needs the headers of Python \(.*Python\.h; in Debian's python3-dev\)"):
            blocks.check_backend("inductor")
        (tmp_path / "Python.h").touch()
        blocks.check_backend("inductor")


def test_inductor_for_a_gpu_needs_triton_and_a_compiler_of_c(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(blocks, "find_spec", lambda name: name if name in found else None)
    monkeypatch.setattr(blocks.sysconfig, "get_path", lambda _name: str(tmp_path))
    (tmp_path / "Python.h").touch()
    with pytest.raises(ValueError, match="needs the package triton"):
        blocks.check_backend("inductor")
    found.append("triton")
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    with pytest.raises(ValueError, match=r"needs a C compiler \(.*cc\), which"):
        blocks.check_backend("inductor")
    monkeypatch.setenv("CC", sys.executable)
    blocks.check_backend("inductor")


def edits_differ_by(plain: Editor, compiled: Editor) -> int:
    """Returns by how much at most, of 255: rounding to eight bits may fall to the other side."""
    # Without true guidance Qwen runs at the sizes of training alone, which spares compiling for others.
    first, second = (edit(backbone, batch_of(3).sources[0], guidance=1.0) for backbone in (plain, compiled))
    return int((first.int() - second.int()).abs().max())


def num_graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def difference(first: Tensor, second: Tensor) -> float:
    return float((first - second).detach().abs().max() / first.detach().abs().max())


def toy(name: str, **options: Any) -> Editor:
    """Returns the shipped editor, of six blocks."""
    more = {} if name == "qwen_image_edit" else {"max_text_tokens": 24}
    return EDITORS[name](weights="toy", **more, **options)
