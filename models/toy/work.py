"""What the builds of both toy editors share: their intermediate files, and decoder and base trained side by side."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from physedit.models.toy.fitting import FitPlan
from physedit.models.toy.pairs import as_network_input, draw_pairs, load_pairs, save_pairs
from physedit.models.toy.set_encoder import PatchComponents, analyse_patches

logger = logging.getLogger(__name__)

FitPart = Callable[[Path, FitPlan], None]
"""Trains one part from the files in a work folder; a function of a module, so that a process can be given it."""

_NUM_ANALYSED = 6000


@dataclass(frozen=True, slots=True)
class BuildSize:
    """How much a build draws and trains."""

    num_scenes: int
    decoder_steps: int
    base_steps: int


def draw_pairs_once(work: Path, seed: int, num_scenes: int) -> None:
    """Writes the pairs to ``work``, unless they are there."""
    work.mkdir(parents=True, exist_ok=True)
    if not pairs_path(work).exists():
        save_pairs(draw_pairs(num_scenes, seed), pairs_path(work))
        logger.info("drew %d scenes", num_scenes)


def analyse_pairs(work: Path, seed: int, num_components: int) -> PatchComponents:
    """Returns the principal components of 6,000 of the pictures in ``work``."""
    pictures = load_pairs(pairs_path(work)).pictures
    chosen = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))[:_NUM_ANALYSED]
    return analyse_patches(as_network_input(pictures[chosen]), num_components)


def fit_side_by_side(work: Path, *parts: tuple[FitPart, FitPlan]) -> None:
    """Trains each part in a process of its own and waits for all."""
    with ProcessPoolExecutor(len(parts), mp_context=multiprocessing.get_context("spawn")) as processes:
        for finished in [processes.submit(_fit_alone, fit_part, work, plan) for fit_part, plan in parts]:
            finished.result()


def _fit_alone(fit_part: FitPart, work: Path, plan: FitPlan) -> None:
    """Runs one training on one thread: for matrices this small a second one only waits."""
    configure_logging()
    torch.set_num_threads(1)
    fit_part(work, plan)


def pairs_path(work: Path) -> Path:
    """The file of the pairs."""
    return work / "pairs.npz"


def start_path(work: Path) -> Path:
    """The folder of the untrained pipeline."""
    return work / "start"


def snapshot_path(work: Path, name: str) -> Path:
    """The file of the snapshots of a plan."""
    return work / f"{name}.pt"


def configure_logging() -> None:
    """Sends the build's log to the terminal."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", force=True)


def run_command(description: str, build: Callable[[Path, Path, int], None]) -> None:
    """Reads the command line of a build and calls ``build(out, work, seed)``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished pipeline")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder of intermediate files; default: OUT.work")
    arguments = parser.parse_args()
    configure_logging()
    work = arguments.work or arguments.out.with_name(arguments.out.name + ".work")
    build(arguments.out, work, arguments.seed)
