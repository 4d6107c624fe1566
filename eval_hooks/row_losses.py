"""Losses of held-out rows: their noise, their file, and the change from one side to another.

Shape legend: C latent channels, h w latent cells.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from physedit.data_loaders.streams import stream_seed
from physedit.eval_hooks.compare import change_of_tallies
from physedit.eval_hooks.files import DamagedFileError, read_json, write_json
from physedit.eval_hooks.hook import MetricChange
from physedit.eval_hooks.metrics.metric import Tally

LOSSES_FILE = "losses.json"
"""In the folder of a step: the losses of every row."""


@dataclass(frozen=True, slots=True)
class RowLosses:
    """The losses of a row, lowest noise first; none and ``problem`` where the editor cannot take the row."""

    sample_id: str
    law: str | None
    losses: tuple[float, ...]
    problem: str | None = None


def draw(seed: int, sample_id: str, like: Tensor, num_quantiles: int, time_shift: float) -> tuple[Tensor, Tensor]:
    """Returns the noise of a row, float32 of the shape of ``like``, and its noise levels ``[num_quantiles]`` ascending.

    Both are functions of the arguments alone, drawn on the CPU. Level q has its place, uniform, in the q-th quantile of
    a logit-normal distribution, shifted as the pipeline shifts its schedule.

    Source: Esser et al., Scaling Rectified Flow Transformers (arXiv 2403.03206), section 3.1 (logit-normal, mean 0 and
    deviation 1); diffusers, FlowMatchEulerDiscreteScheduler.time_shift (exponential).
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "heldout_loss", sample_id))
    place = (torch.arange(num_quantiles) + torch.rand(num_quantiles, generator=generator)) / num_quantiles
    plain = torch.sigmoid(torch.special.ndtri(place.double())).float()
    factor = math.exp(time_shift)
    sigmas = factor * plain / (1.0 + (factor - 1.0) * plain)
    noise = torch.randn(like.shape, generator=generator)
    return noise.to(like.device), sigmas.to(like.device)


def changes_of_losses(hook: str, before: Sequence[RowLosses], after: Sequence[RowLosses]) -> dict[str, MetricChange]:
    """Returns the change of the mean loss: over all, by quantile, by law. Rows that only one side has are left out."""
    theirs = {row.sample_id: row for row in before if row.losses}
    pairs = [(theirs[row.sample_id], row) for row in after if row.sample_id in theirs and row.losses]
    num_quantiles = len(pairs[0][0].losses) if pairs else 0
    changes = {f"{hook}/all": _change(pairs, slice(None))}
    changes |= {f"{hook}/q{q + 1}": _change(pairs, slice(q, q + 1)) for q in range(num_quantiles)}
    laws = dict.fromkeys(row.law for _, row in pairs if row.law is not None)
    return changes | {
        f"{hook}/all/{law}": _change([pair for pair in pairs if pair[1].law == law], slice(None)) for law in laws
    }


def write_losses(path: Path, key: str, rows: Sequence[RowLosses]) -> None:
    """Writes losses with the key of what decides them."""
    write_json(path, {"key": key, "rows": [asdict(row) for row in rows]})


def read_losses(folder: Path, key: str | None = None, name: str = LOSSES_FILE) -> tuple[RowLosses, ...] | None:
    """Returns the losses of a folder, None if it has none, damaged ones, or others than those of ``key``, if given."""
    try:
        content = read_json(folder / name)
        return _rows(content) if key in (None, content.get("key")) else None
    except (FileNotFoundError, DamagedFileError, KeyError, TypeError, ValueError):
        return None


def _rows(content: Mapping[str, object]) -> tuple[RowLosses, ...]:
    rows = content["rows"]
    assert isinstance(rows, list)
    return tuple(RowLosses(row["sample_id"], row["law"], tuple(row["losses"]), row["problem"]) for row in rows)


def _change(pairs: Sequence[tuple[RowLosses, RowLosses]], part: slice) -> MetricChange:
    tallies = [[Tally(sum(row.losses[part]), len(row.losses[part])) for row in pair] for pair in pairs]
    return change_of_tallies([before for before, _ in tallies], [after for _, after in tallies])
