"""Rebuilds the toy editor from nothing: ``python -m physedit.models.toy.build --out DIR --seed 0``.

Scenes are drawn and the encoder is set from them; decoder and base then train side by side, one thread each, since
both depend on the encoder alone; last, the parts are put together and saved as a diffusers pipeline.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import FluxKontextPipeline

from physedit.data_loaders.scenes.scene import VOCABULARY
from physedit.models.toy.architecture import LATENT_CHANNELS, build_untrained_pipeline
from physedit.models.toy.fitting import FitPlan, load_average
from physedit.models.toy.pairs import as_network_input, draw_pairs, load_pairs, save_pairs
from physedit.models.toy.set_encoder import analyse_patches, set_encoder
from physedit.models.toy.train_base import TrainedParts, train_base
from physedit.models.toy.train_decoder import train_decoder
from physedit.models.toy.word_pieces import same_word_rows

logger = logging.getLogger(__name__)

NUM_SCENES = 14_000
DECODER_STEPS = 7_000
DECODER_RATE = 2.5e-3
BASE_STEPS = 10_500
BASE_RATE = 1.2e-3
_NUM_ANALYSED = 6000


@dataclass(frozen=True, slots=True)
class BuildSize:
    """How much a build draws and trains; the defaults are those of the shipped weights."""

    num_scenes: int = NUM_SCENES
    decoder_steps: int = DECODER_STEPS
    base_steps: int = BASE_STEPS


def build(out: Path, work: Path, seed: int, size: BuildSize) -> None:
    """Writes the pipeline to ``out``; a build that was stopped goes on from what it left in ``work``."""
    work.mkdir(parents=True, exist_ok=True)
    if not _pairs_path(work).exists():
        save_pairs(draw_pairs(size.num_scenes, seed), _pairs_path(work))
        logger.info("drew %d scenes", size.num_scenes)
    if not _start_path(work).exists():
        _start_pipeline(work, seed).save_pretrained(_start_path(work))
    decoder_plan = FitPlan("decoder", size.decoder_steps, DECODER_RATE, seed)
    base_plan = FitPlan("base", size.base_steps, BASE_RATE, seed)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        for finished in (
            processes.submit(_fit_alone, _fit_decoder, work, decoder_plan),
            processes.submit(_fit_alone, _fit_base, work, base_plan),
        ):
            finished.result()
    assemble(out, work)


def assemble(out: Path, work: Path) -> None:
    """Puts the newest snapshots of decoder and base together and saves the pipeline, mostly in float16.

    The text encoders stay float32: transformers loads a model in the type it was stored in.
    """
    pipeline = FluxKontextPipeline.from_pretrained(_start_path(work))
    decoder_steps = load_average(_snapshot_path(work, "decoder"), pipeline.vae.decoder)
    base_steps = load_average(_snapshot_path(work, "base"), TrainedParts(pipeline))
    _spread_over_spellings(pipeline)
    pipeline.vae.half()
    pipeline.transformer.half()
    pipeline.save_pretrained(out)
    _forget_origin(out)
    logger.info("saved %s: decoder after %d steps, base after %d steps", out, decoder_steps, base_steps)


def _start_pipeline(work: Path, seed: int) -> FluxKontextPipeline:
    """Returns the untrained pipeline with its encoder set, rounded to the precision it will be stored in."""
    pipeline = build_untrained_pipeline(VOCABULARY, seed)
    pictures = load_pairs(_pairs_path(work)).pictures
    chosen = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))[:_NUM_ANALYSED]
    components = analyse_patches(as_network_input(pictures[chosen]), LATENT_CHANNELS)
    set_encoder(pipeline.vae, components)
    pipeline.vae.encoder.half().float()
    return pipeline


def _fit_alone(fit_part: Callable[[Path, FitPlan], None], work: Path, plan: FitPlan) -> None:
    """Runs one training in a process of its own, on one thread: for matrices this small a second one only waits."""
    configure_logging()
    torch.set_num_threads(1)
    fit_part(work, plan)


def _fit_decoder(work: Path, plan: FitPlan) -> None:
    pipeline = FluxKontextPipeline.from_pretrained(_start_path(work))
    train_decoder(pipeline.vae, load_pairs(_pairs_path(work)), plan, _snapshot_path(work, plan.name))


def _fit_base(work: Path, plan: FitPlan) -> None:
    pipeline = FluxKontextPipeline.from_pretrained(_start_path(work))
    train_base(pipeline, load_pairs(_pairs_path(work)), plan, _snapshot_path(work, plan.name))


def _spread_over_spellings(pipeline: FluxKontextPipeline) -> None:
    """Gives "Remove" and "REMOVE" the learnt embedding of "remove"."""
    embeddings = pipeline.text_encoder_2.get_input_embeddings().weight.data
    for learnt, spelling in same_word_rows(pipeline.tokenizer_2, VOCABULARY):
        embeddings[spelling] = embeddings[learnt]


def _forget_origin(folder: Path) -> None:
    """Drops the folders that the parts were loaded from: the same build must give the same files anywhere."""
    for path in folder.rglob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("_name_or_path", None) is not None:
            path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _pairs_path(work: Path) -> Path:
    return work / "pairs.npz"


def _start_path(work: Path) -> Path:
    return work / "start"


def _snapshot_path(work: Path, name: str) -> Path:
    return work / f"{name}.pt"


def configure_logging() -> None:
    """Sends the build's log to the terminal."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", force=True)


def main() -> None:
    """Reads the command line and builds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished pipeline")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder of intermediate files; default: OUT.work")
    arguments = parser.parse_args()
    configure_logging()
    work = arguments.work or arguments.out.with_name(arguments.out.name + ".work")
    build(arguments.out, work, arguments.seed, BuildSize())


if __name__ == "__main__":
    main()
