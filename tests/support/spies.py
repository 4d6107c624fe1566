"""An editor and an objective that write down what reaches them on each rank, a line each, in ``SPY_FOLDER``.

    backbone._target_=tests.support.spies.SpyEditor objective._target_=tests.support.spies.SpyObjective

They work in every launch: a config names them where ``environment_of`` is in the environment.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from physedit.data_loaders.sample import EditBatch
from physedit.eval_hooks.hook import weights_digest
from physedit.models.backbone import Conditioning
from physedit.models.flux_kontext import FluxKontext
from physedit.models.lora import adapter_state
from physedit.train.objective import Draws, FlowMatching, LossTerms, VelocityFunction

ROOT = Path(__file__).parents[2]
OVERRIDES = ("backbone._target_=tests.support.spies.SpyEditor", "objective._target_=tests.support.spies.SpyObjective")


def environment_of(folder: Path) -> dict[str, str]:
    """Returns the variables of a launch whose ranks leave their lines in ``folder``, which is made."""
    folder.mkdir()
    return {"PYTHONPATH": str(ROOT), "PHYSEDIT_TARGET_PACKAGES": "tests", "SPY_FOLDER": str(folder)}


def lines_of(folder: Path, rank: int, key: str) -> list[Any]:
    """Returns what a rank wrote under ``key``, in order."""
    lines = [json.loads(line) for line in (folder / f"rank_{rank}.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def tell(**seen: object) -> None:
    with (Path(os.environ["SPY_FOLDER"]) / f"rank_{os.environ.get('RANK', '0')}.jsonl").open("a") as file:
        file.write(json.dumps(seen) + "\n")


class SpyEditor(FluxKontext):
    """Tells ``ids`` and ``adapter`` of every micro batch, and by ``trains`` of every forward pass of the denoiser."""

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.denoiser.register_forward_pre_hook(lambda module, _arguments: tell(trains=module.training))

    def encode(self, batch: EditBatch) -> Conditioning:
        tell(ids=batch.sample_ids, adapter=weights_digest(adapter_state(self.denoiser)))
        return super().encode(batch)


class SpyObjective(FlowMatching):
    """Tells ``noise`` and ``normal``, from which the noise level comes, of every micro batch."""

    def loss(self, velocity: VelocityFunction, conditioning: Conditioning, draws: Draws) -> LossTerms:
        noise = [hashlib.sha256(each.numpy().tobytes()).hexdigest() for each in draws.noise]
        tell(noise=noise, normal=draws.normal.tolist())
        return super().loss(velocity, conditioning, draws)
