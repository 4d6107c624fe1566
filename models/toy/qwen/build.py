"""Rebuilds the toy Qwen-Image-Edit from nothing: ``python -m physedit.models.toy.qwen.build --out DIR --seed 0``.

Scenes are drawn and the encoder is set from them; decoder and base then train side by side, one thread each, since
both depend on the encoder alone; last, the parts are put together and saved as a diffusers pipeline.
"""

from __future__ import annotations

import logging
from pathlib import Path

from diffusers import QwenImageEditPipeline

from physedit.data_loaders.scenes.scene import VOCABULARY
from physedit.models.toy.fitting import FitPlan, load_average
from physedit.models.toy.pairs import load_pairs
from physedit.models.toy.qwen.architecture import LATENT_CHANNELS, build_untrained_pipeline
from physedit.models.toy.qwen.folder import load_pipeline, save_pipeline, store_as_float16
from physedit.models.toy.qwen.set_encoder import set_encoder
from physedit.models.toy.qwen.text import same_word_rows
from physedit.models.toy.qwen.train_base import TrainedParts, train_base
from physedit.models.toy.qwen.train_decoder import train_decoder
from physedit.models.toy.work import (
    BuildSize,
    analyse_pairs,
    draw_pairs_once,
    fit_side_by_side,
    pairs_path,
    run_command,
    snapshot_path,
    start_path,
)

logger = logging.getLogger(__name__)

SHIPPED_SIZE = BuildSize(num_scenes=14_000, decoder_steps=6_000, base_steps=8_000)
DECODER_RATE = 2.5e-3
BASE_RATE = 1.5e-3


def build(out: Path, work: Path, seed: int, size: BuildSize) -> None:
    """Writes the pipeline to ``out``; a build that was stopped goes on from what it left in ``work``."""
    draw_pairs_once(work, seed, size.num_scenes)
    if not start_path(work).exists():
        save_pipeline(_start_pipeline(work, seed), start_path(work))
    decoder_plan = FitPlan("decoder", size.decoder_steps, DECODER_RATE, seed)
    base_plan = FitPlan("base", size.base_steps, BASE_RATE, seed)
    fit_side_by_side(work, (_fit_decoder, decoder_plan), (_fit_base, base_plan))
    assemble(out, work)


def assemble(out: Path, work: Path) -> None:
    """Puts the newest snapshots of decoder and base together and saves the pipeline in float16."""
    pipeline = load_pipeline(start_path(work))
    decoder_steps = load_average(snapshot_path(work, "decoder"), pipeline.vae.decoder)
    base_steps = load_average(snapshot_path(work, "base"), TrainedParts(pipeline))
    _spread_over_spellings(pipeline)
    store_as_float16(pipeline, out)
    logger.info("saved %s: decoder after %d steps, base after %d steps", out, decoder_steps, base_steps)


def _start_pipeline(work: Path, seed: int) -> QwenImageEditPipeline:
    """Returns the untrained pipeline with its encoder set, rounded to the precision it will be stored in."""
    pipeline = build_untrained_pipeline(VOCABULARY, seed)
    set_encoder(pipeline.vae, analyse_pairs(work, seed, LATENT_CHANNELS))
    for part in (pipeline.vae.encoder, pipeline.vae.quant_conv):
        part.half().float()
    return pipeline


def _fit_decoder(work: Path, plan: FitPlan) -> None:
    pipeline = load_pipeline(start_path(work))
    train_decoder(pipeline.vae, load_pairs(pairs_path(work)), plan, snapshot_path(work, plan.name))


def _fit_base(work: Path, plan: FitPlan) -> None:
    pipeline = load_pipeline(start_path(work))
    train_base(pipeline, load_pairs(pairs_path(work)), plan, snapshot_path(work, plan.name))


def _spread_over_spellings(pipeline: QwenImageEditPipeline) -> None:
    """Gives "Remove" and "REMOVE" the learnt embedding of "remove"."""
    embeddings = pipeline.text_encoder.get_input_embeddings().weight.data
    for learnt, spelling in same_word_rows(pipeline.tokenizer, VOCABULARY):
        embeddings[spelling] = embeddings[learnt]


if __name__ == "__main__":
    run_command(__doc__, lambda out, work, seed: build(out, work, seed, SHIPPED_SIZE))
