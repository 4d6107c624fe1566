"""A step of the plain engine waits for the device only where a window closes, and keeps its promise all the same."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tests.support.memory_editors import EDITORS, batch_of, with_adapter
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from physedit.data_loaders.loader import PositionedBatch
from physedit.data_loaders.sample import EditBatch
from physedit.models.backbone import Conditioning
from physedit.train import loop
from physedit.train.dropped import DroppedRows
from physedit.train.engine import Arithmetic, PlainEngine
from physedit.train.loop import NonFiniteLoss, Trainer, fit
from physedit.train.objective import FlowMatching
from physedit.train.optim import Constant
from physedit.train.processes import Processes
from physedit.train.signals import Request
from physedit.train.state import AdapterAverage, Progress, trainable

MICRO_BATCH, ACCUMULATION = 1, 2
GLOBAL_BATCH = MICRO_BATCH * ACCUMULATION
_ANSWERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
"""Operators whose result the host needs, and with it all that the device has yet to do."""


class HostReads(TorchDispatchMode):
    """Counts what the host asks of tensors, in any way that waits for a GPU; lists are torch's own and are patched."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._tolist = Tensor.tolist

    def __enter__(self) -> "HostReads":
        def tolist(tensor: Tensor) -> Any:
            self.count += 1
            return self._tolist(tensor)

        Tensor.tolist = tolist
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        Tensor.tolist = self._tolist
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in _ANSWERS
        return func(*args, **(kwargs or {}))


class Recorder:
    """Events that save and evaluate nothing, and note what has been asked at the end of each step."""

    def __init__(self, reads: HostReads | None = None, save_at: int | None = None) -> None:
        self.reads, self.save_at = reads, save_at
        self.read_by_step: list[int] = []
        self.lines: dict[int, dict[str, float]] = {}
        self.advanced = 0
        self.saved: list[int] = []

    def request(self) -> Request:
        return Request.NONE

    def save_is_due(self, step: int) -> bool:
        return step == self.save_at

    def save(self, progress: Progress) -> None:
        self.saved.append(progress.step)

    def evaluate(self, step: int) -> None:
        if step and self.reads is not None:
            self.read_by_step.append(self.reads.count)

    def log(self, step: int, metrics: dict[str, float], num_samples: int, _seconds: float) -> None:
        self.lines[step] = metrics | {"num_samples": num_samples}

    def advance(self, step: int) -> None:
        self.advanced = step


class Known:
    """An editor whose conditioning is there already, as from the encoded cache."""

    def __init__(self, editor: Any) -> None:
        self.denoiser = editor.denoiser
        self.velocity = editor.velocity
        self._conditioning = editor.encode(batch_of(1))

    def of(self, _backbone: object, _batch: EditBatch, _device: torch.device) -> Conditioning:
        return self._conditioning


def batches(position: int) -> Iterator[PositionedBatch]:
    while True:
        yield PositionedBatch((position,), replace(batch_of(1), sample_ids=(f"sample-{position}",)))
        position += MICRO_BATCH


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that builds a trainer over conditioning that is there."""

    def trainer(
        *, fused: bool, num_steps: int = 7, log_every: int = 3, average: bool = False, editor: str = "flux_kontext"
    ) -> Trainer:
        known = Known(with_adapter(EDITORS[editor](), is_filled=False, preset="attention"))
        monkeypatch.setattr(loop, "conditioning_of", known.of)
        accelerator = Accelerator(cpu=True)
        optimizer = torch.optim.AdamW(trainable(known.denoiser).values(), lr=1e-3, fused=fused)
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
        arithmetic = Arithmetic(MICRO_BATCH, ACCUMULATION, GLOBAL_BATCH, 1.0)
        engine = PlainEngine(accelerator, known.denoiser, optimizer, arithmetic)
        return Trainer(
            accelerator=accelerator, processes=Processes(1), backbone=known, engine=engine, objective=FlowMatching(),
            schedule=Constant(), batches=batches, num_steps=num_steps, global_batch=GLOBAL_BATCH,
            accumulation=ACCUMULATION, seed=0, has_dropout=False, log_every=log_every,
            average=AdapterAverage(engine.adapter(), 0.5) if average else None, dropped=DroppedRows(100, 0.0),
        )  # fmt: skip

    return trainer


def spoil(monkeypatch: pytest.MonkeyPatch, step: int, factor: float) -> None:
    """Multiplies the loss of the second micro batch of ``step`` alone."""
    forward = loop.forward

    def spoilt(trainer: Trainer, positioned: PositionedBatch) -> Any:
        terms = forward(trainer, positioned)
        if positioned.positions[0] != (step - 1) * GLOBAL_BATCH + 1:
            return terms
        return replace(terms, loss=terms.loss * factor, per_sample=terms.per_sample * factor)

    monkeypatch.setattr(loop, "forward", spoilt)


def overflow(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Has the loss of ``step`` overflow where its gradient does not, as a sum of squares can."""
    forward = loop.forward

    def spoilt(trainer: Trainer, positioned: PositionedBatch) -> Any:
        terms = forward(trainer, positioned)
        far = positioned.positions[0] == (step - 1) * GLOBAL_BATCH + 1
        return replace(terms, loss=terms.loss + torch.inf, per_sample=terms.per_sample + torch.inf) if far else terms

    monkeypatch.setattr(loop, "forward", spoilt)


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """Returns copies of adapter, average and moments."""
    parts = {**trainer.engine.adapter(), **trainer.engine.optimizer_tensors()}
    if trainer.average is not None:
        parts |= {f"average/{name}": value for name, value in trainer.average.values.items()}
    return {name: value.detach().clone() for name, value in parts.items()}


@pytest.mark.parametrize("editor", EDITORS)
def test_the_host_asks_nothing_of_the_device_between_windows(build: Any, editor: str) -> None:
    trainer = build(fused=True, average=True, editor=editor)
    with HostReads() as reads:
        events = Recorder(reads)
        fit(trainer, events, Progress())
    asked = [after - before for before, after in zip([0, *events.read_by_step], events.read_by_step, strict=False)]
    assert list(events.lines) == [3, 6, 7]
    assert [asked[step - 1] for step in (1, 2, 4, 5)] == [0, 0, 0, 0]
    assert all(asked[step - 1] > 0 for step in (3, 6, 7))  # the counter sees what there is to see


def test_a_run_that_logs_rarely_looks_after_so_many_steps_and_logs_the_same(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    often, rarely = Recorder(), Recorder()
    fit(build(fused=True, log_every=6), often, Progress())
    monkeypatch.setattr(loop, "MOST_UNSEEN_STEPS", 2)
    trainer = build(fused=True, log_every=6)
    with HostReads() as reads:
        rarely.reads = reads
        fit(trainer, rarely, Progress())
    asked = [after - before for before, after in zip([0, *rarely.read_by_step], rarely.read_by_step, strict=False)]
    assert [step for step, count in enumerate(asked, start=1) if count] == [2, 4, 6, 7]
    assert rarely.lines == often.lines
    assert list(often.lines) == [6, 7]


def test_a_run_that_diverges_ends_after_so_many_steps_however_rarely_it_logs(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loop.MOST_UNSEEN_STEPS == 50
    monkeypatch.setattr(loop, "MOST_UNSEEN_STEPS", 3)
    trainer = build(fused=True, log_every=1000, num_steps=1000)
    spoil(monkeypatch, step=4, factor=float("nan"))
    events = Recorder()
    with pytest.raises(NonFiniteLoss, match="of step 4 is"):
        fit(trainer, events, Progress())
    assert (events.advanced, events.lines) == (6, {})


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("spoilt", ["nan", "gradient", "overflow"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_named(
    build: Any, monkeypatch: pytest.MonkeyPatch, fused: bool, spoilt: str
) -> None:
    """Also where the error comes two steps later, with the window."""
    good = build(fused=fused, num_steps=3, average=True)
    fit(good, Recorder(), Progress())
    trainer = build(fused=fused, average=True)
    if spoilt == "overflow":
        overflow(monkeypatch, step=4)
    else:
        spoil(monkeypatch, step=4, factor=float("nan") if spoilt == "nan" else 1e30)
    events = Recorder()
    named = "none by itself" if spoilt == "gradient" else "sample-7"
    with pytest.raises(NonFiniteLoss, match=rf"of step 4 is .* not finite: {named}\. Nothing"):
        fit(trainer, events, Progress())
    assert list(events.lines) == [3]
    expected, found = state_of(good), state_of(trainer)
    assert expected.keys() == found.keys()
    assert [name for name, value in expected.items() if not torch.equal(value, found[name])] == []


def test_no_checkpoint_is_written_after_a_step_that_was_not_finite(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build(fused=True, log_every=100)
    spoil(monkeypatch, step=2, factor=float("nan"))
    events = Recorder(save_at=5)
    with pytest.raises(NonFiniteLoss, match="of step 2 is"):
        fit(trainer, events, Progress())
    assert events.saved == []


def test_telling_a_finite_loss_changes_no_bit_of_it_or_its_gradient() -> None:
    value = torch.linspace(-3, 3, 101, requires_grad=True)
    plain = torch.autograd.grad((value**3).mean() / 3, value)[0]
    loss = loop.telling((value**3).mean())
    assert torch.equal(loss, (value**3).mean())
    assert torch.equal(torch.autograd.grad(loss / 3, value)[0], plain)
