"""Dropout draws from the run's own stream: resume stays exact, and nothing else moves."""

import pytest
import torch
from tests.support.runs import StopAtOnce, adapter_bytes, metrics_of

from physedit.train.loop import Stopped
from physedit.train.rng import dropout_stream

STEPS = ("num_steps=4", "log_every=1")
DROPPED = (*STEPS, "adapter.dropout=0.3")


def test_a_resumed_run_with_dropout_equals_the_uninterrupted_one(run_smoke):
    torch.manual_seed(1)
    whole = run_smoke(*DROPPED, name="whole")
    torch.manual_seed(2)
    with pytest.raises(Stopped):
        run_smoke(*DROPPED, name="stopped", stop=StopAtOnce())
    torch.rand(5)
    resumed = run_smoke(*DROPPED, name="stopped")
    assert adapter_bytes(whole, 4) == adapter_bytes(resumed, 4)
    assert metrics_of(whole) == metrics_of(resumed)


def test_dropout_changes_the_losses_once_b_has_moved(run_smoke):
    dropped, plain = metrics_of(run_smoke(*DROPPED, name="dropped")), metrics_of(run_smoke(*STEPS, name="plain"))
    assert dropped[0]["train/loss"] == plain[0]["train/loss"]  # B is zero: there is nothing to drop
    assert all(one["train/loss"] != other["train/loss"] for one, other in zip(dropped[2:], plain[2:], strict=True))


def test_checkpointed_blocks_are_recomputed_with_the_same_mask(run_smoke):
    kept = run_smoke(*DROPPED, name="kept")
    recomputed = run_smoke(*DROPPED, "backbone.gradient_checkpointing=true", name="recomputed")
    assert adapter_bytes(kept, 4) == adapter_bytes(recomputed, 4)


def test_a_stream_depends_on_seed_and_position_alone_and_gives_the_generator_back():
    def masks(seed: int, position: int) -> torch.Tensor:
        with dropout_stream(seed, position, torch.device("cpu")):
            return torch.nn.functional.dropout(torch.ones(64))

    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = masks(0, 8)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert torch.equal(masks(0, 8), first)
    assert not torch.equal(masks(0, 9), first)
    assert not torch.equal(masks(1, 8), first)
