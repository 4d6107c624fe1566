"""The pairs the toy editor learns from: scenes of the embedded world with targets that ignore physics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from physedit.data_loaders.scenes.scene import LAWS, draw_scene

FIRST_SEED = 5_029_688
"""Scenes of the base have seeds from here on, far from those a user trains or evaluates with."""

_TURNS = (*LAWS, "Refraction")
"""The order of laws. Refraction comes twice: that the tank's rim says how high the water stands is learnt last."""


@dataclass(frozen=True, slots=True)
class NaivePairs:
    """Scenes as arrays.

    Attributes:
        source: ``[N, 3, 64, 64]`` uint8.
        naive: ``[N, 3, 64, 64]`` uint8, the targets of the base.
        physical: ``[N, 3, 64, 64]`` uint8, which the decoder must be able to show; the base never sees them.
        prompts: N triples, superficial, intermediate, explicit.
    """

    source: Tensor
    naive: Tensor
    physical: Tensor
    prompts: tuple[tuple[str, str, str], ...]

    @property
    def pictures(self) -> Tensor:
        """All pictures, ``[3N, 3, 64, 64]`` uint8."""
        return torch.cat([self.source, self.naive, self.physical])


def draw_pairs(num_scenes: int, seed: int) -> NaivePairs:
    """Draws scenes, the laws in turn; another build seed gives other scenes."""
    first = FIRST_SEED + seed * num_scenes
    scenes = [draw_scene(_TURNS[index % len(_TURNS)], first + index) for index in range(num_scenes)]
    return NaivePairs(
        source=_stack([scene.source for scene in scenes]),
        naive=_stack([scene.naive for scene in scenes]),
        physical=_stack([scene.physical for scene in scenes]),
        prompts=tuple((s.superficial_prompt, s.intermediate_prompt, s.explicit_prompt) for s in scenes),
    )


def save_pairs(pairs: NaivePairs, path: Path) -> None:
    """Writes the pairs as one npz file."""
    np.savez(
        path,
        source=pairs.source.numpy(),
        naive=pairs.naive.numpy(),
        physical=pairs.physical.numpy(),
        prompts=np.array(json.dumps(pairs.prompts)),
    )


def load_pairs(path: Path) -> NaivePairs:
    """Reads what ``save_pairs`` wrote."""
    with np.load(path) as arrays:
        return NaivePairs(
            source=torch.from_numpy(arrays["source"]),
            naive=torch.from_numpy(arrays["naive"]),
            physical=torch.from_numpy(arrays["physical"]),
            prompts=tuple(tuple(triple) for triple in json.loads(str(arrays["prompts"]))),
        )


def as_network_input(pictures: Tensor) -> Tensor:
    """Returns uint8 pictures as float32 in -1..1, as the pipeline's image processor does."""
    return pictures.float() / 127.5 - 1


def _stack(pictures: list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]) -> Tensor:
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
