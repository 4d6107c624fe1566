"""One process of a short training run of both tiny editors: alone, with DDP, with ZeRO-2 or with ZeRO-3.

    accelerate launch --multi_gpu --num_processes 2 --num_machines 1 tests/support/zero_worker.py MODE FOLDER

It trains with the trainer's engines, the project's backbones, objective and random numbers, and saves each adapter
through its backbone. ``environment_of`` says what a launch of each mode needs around it.
"""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import InitProcessGroupKwargs
from torch import Tensor, nn

from physedit.data_loaders.loader import Share
from physedit.data_loaders.sample import EditBatch
from physedit.models.backbone import Backbone
from physedit.models.flux_kontext import FluxKontext
from physedit.models.lora import LoraSettings, add_adapter
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.train.engine import Arithmetic, Engine, PlainEngine
from physedit.train.objective import FlowMatching
from physedit.train.rng import draw
from physedit.train.state import trainable
from physedit.train.zero import cut, forget_transformers_config, prepare_environment
from physedit.train.zero_engine import ZeroEngine

ZERO_STAGES = {"zero2": 2, "zero3": 3}
NUM_STEPS = 5
GLOBAL_BATCH = 4
SEED = 3
MAX_GRAD_NORM = 0.02
"""Small enough that every step is clipped: the norm is one over all ranks and partitions."""
SIDE_PX = 64
SETTINGS = LoraSettings(4, 8.0)
RECORD = "record.json"
VELOCITY = "velocity.pt"
"""In an editor's folder: what the trained and still wrapped denoiser predicts of ``probe``."""

EDITORS: dict[str, Callable[[], Backbone]] = {
    "flux_kontext": lambda: FluxKontext(
        weights="random_tiny", dtype="float32", max_text_tokens=24, area_px=SIDE_PX * SIDE_PX
    ),
    "qwen_image_edit": lambda: QwenImageEdit(
        weights="random_tiny", dtype="float32", pipeline="QwenImageEditPipeline", area_px=SIDE_PX * SIDE_PX
    ),
}


@dataclass(frozen=True)
class Record:
    """What really ran: kind of launch; by editor the engine and its counters, and of each step loss and gradient norm.

    The loss is that of all ranks, the norm that of the whole adapter before clipping. ``live`` has the norm of every
    trained tensor where it lies, gathered by DeepSpeed's own means and not by those that save.
    """

    distributed_type: str
    num_processes: int
    engines: dict[str, dict[str, Any]]
    losses: dict[str, list[float]]
    norms: dict[str, list[float]]
    moves: dict[str, dict[str, int]]
    """Under ZeRO-3, of the way to the device: see ``cut_watched``."""
    live: dict[str, dict[str, float]]


def environment_of(mode: str, extensions: Path) -> dict[str, str]:
    """Returns the variables of a launch on the CPU.

    DeepSpeed is silently off where ACCELERATE_USE_CPU is set, and looks for another device without these two.
    """
    common = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", "TORCH_EXTENSIONS_DIR": str(extensions)}
    if mode in ZERO_STAGES:
        return common | {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu"}
    return common | {"ACCELERATE_USE_CPU": "true"}


def train_all(mode: str, folder: Path) -> Record:
    """Trains every editor and writes ``folder/EDITOR/`` and ``folder/record.json``; every rank calls it."""
    accelerator = start(mode)
    engines, losses, norms, moves, live = {}, {}, {}, {}, {}
    for name, build in EDITORS.items():
        backbone = build()
        add_adapter(backbone.denoiser, SETTINGS, targets=backbone.lora_presets["attention_mlp"], seed=SEED)
        if mode == "zero3":
            moves[name] = cut_watched(accelerator, backbone)
        engine, losses[name], norms[name] = train(accelerator, backbone, mode)
        engines[name] = describe(engine.denoiser)
        live[name] = live_norms(backbone, mode)
        predicted = probe(backbone, engine.denoiser)
        state = engine.adapter()
        if accelerator.is_main_process:
            backbone.save_adapter(state, str(folder / name), SETTINGS.format)
            torch.save(predicted, folder / name / VELOCITY)
    record = Record(accelerator.distributed_type.value, accelerator.num_processes, engines, losses, norms, moves, live)
    if accelerator.is_main_process:
        (folder / RECORD).write_text(json.dumps(vars(record)))
    accelerator.wait_for_everyone()
    return record


def start(mode: str) -> Accelerator:
    """Joins the processes over gloo, with DeepSpeed's engine where ``mode`` is a stage of ZeRO."""
    if mode not in ZERO_STAGES:
        return Accelerator(cpu=True, mixed_precision="no")
    prepare_environment(on_cpu=True)
    plugin = DeepSpeedPlugin(hf_ds_config=config_of(ZERO_STAGES[mode]), zero3_init_flag=False)
    accelerator = Accelerator(
        mixed_precision="no",
        deepspeed_plugin=plugin,
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )
    forget_transformers_config()
    return accelerator


def config_of(stage: int) -> dict[str, Any]:
    """Returns DeepSpeed's config, to which the engine adds the run's numbers."""
    zero: dict[str, Any] = {"stage": stage}
    if stage == 3:
        # Else matrices as small as an adapter's stay whole on every rank, and nothing is partitioned here.
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": False}
    return {"zero_optimization": zero}


def cut_watched(accelerator: Accelerator, backbone: Backbone) -> dict[str, int]:
    """Cuts the denoiser as the trainer does, and returns how many of its numbers were where.

    ``most_whole`` is the most that were whole on the device at once, ``largest`` the size of the largest parameter,
    ``sent`` those that went there in all, ``moved`` those that ``Backbone.to`` then moved, and ``all`` all of them. The
    device is the CPU, like what the denoiser lies in, so moves are counted where DeepSpeed makes them.
    """
    import deepspeed

    counts = {
        "all": sum(parameter.numel() for parameter in backbone.denoiser.parameters()),
        "largest": max(parameter.numel() for parameter in backbone.denoiser.parameters()),
        "sent": 0, "most_whole": 0,
    }  # fmt: skip
    arrived: list[nn.Parameter] = []
    cut_one = deepspeed.zero.Init._zero_init_param  # it is called with a parameter that has just been sent

    def watched(self: Any, parameter: nn.Parameter) -> None:
        arrived.append(parameter)
        counts["sent"] += parameter.numel()
        counts["most_whole"] = max(counts["most_whole"], sum(each.numel() for each in arrived))
        cut_one(self, parameter)

    deepspeed.zero.Init._zero_init_param = watched
    try:
        cut(accelerator, backbone.denoiser, arithmetic_of(accelerator))
        counts["moved"] = sum(parameter.numel() for parameter in backbone.denoiser.parameters())
        backbone.to(accelerator.device)
    finally:
        deepspeed.zero.Init._zero_init_param = cut_one
    return counts


def arithmetic_of(accelerator: Accelerator) -> Arithmetic:
    """Returns the counts of the run; there is no accumulation."""
    return Arithmetic(GLOBAL_BATCH // accelerator.num_processes, 1, GLOBAL_BATCH, MAX_GRAD_NORM)


def train(accelerator: Accelerator, backbone: Backbone, mode: str) -> tuple[Engine, list[float], list[float]]:
    """Returns the trainer's engine after the run, each step's loss and its gradient norm."""
    optimizer = torch.optim.AdamW(trainable(backbone.denoiser).values(), lr=1e-3, weight_decay=0.01)
    world = accelerator.num_processes
    share = Share(GLOBAL_BATCH // world, 1, accelerator.process_index, world)
    kind = ZeroEngine if mode in ZERO_STAGES else PlainEngine
    engine: Engine = kind(accelerator, backbone.denoiser.train(), optimizer, arithmetic_of(accelerator))
    losses, norms = [], []
    for positions in share.positions(0, NUM_STEPS * GLOBAL_BATCH):
        conditioning = backbone.encode(batch_of(positions))
        with engine.accumulating(is_last=True):
            terms = FlowMatching().loss(
                lambda noisy, sigma: backbone.velocity(engine.denoiser, noisy, sigma, conditioning),  # noqa: B023
                conditioning,
                draw(SEED, positions, conditioning.target),
            )
            engine.backward(terms.loss)
        norms.append(float(engine.step()))
        losses.append(float(accelerator.reduce(terms.loss.detach(), reduction="mean")))
    return engine, losses, norms


def live_norms(backbone: Backbone, mode: str) -> dict[str, float]:
    """Returns the norm of every trained parameter by its name in the adapter; every rank calls it."""
    found = {}
    for name, parameter in trainable(backbone.denoiser).items():
        if mode in ZERO_STAGES:
            from deepspeed.utils import safe_get_full_fp32_param

            whole = safe_get_full_fp32_param(parameter)
        else:
            whole = parameter.detach()
        found[name.replace(".default", "")] = float(whole.norm())
    return found


@torch.no_grad()
def probe(backbone: Backbone, denoiser: nn.Module) -> Tensor:
    """Returns the velocity of a fixed pair; every rank calls it, as a forward pass may be a collective."""
    conditioning = backbone.encode(batch_of((100,)))
    noisy = torch.randn(conditioning.target.shape, generator=torch.Generator().manual_seed(1))
    denoiser.eval()
    return backbone.velocity(denoiser, noisy, torch.full([1], 0.7), conditioning)


def describe(denoiser: nn.Module) -> dict[str, Any]:
    """Returns which engine wraps the denoiser, its own counters, and how many adapter numbers lie whole on a rank."""
    found: dict[str, Any] = {"kind": type(denoiser).__name__}
    found["num_whole"] = sum(p.numel() for name, p in denoiser.named_parameters() if "lora_" in name)
    if found["kind"] == "DeepSpeedEngine":
        engine: Any = denoiser
        found["stage"] = engine.zero_optimization_stage()
        found["persistence_threshold"] = engine.zero_param_persistence_threshold()
        found["optimizer"] = type(engine.optimizer).__name__
        found["steps"] = engine.global_steps
        found["accumulation"] = engine.gradient_accumulation_steps()
        found["train_batch"] = engine.train_batch_size()
    return found


def batch_of(positions: tuple[int, ...]) -> EditBatch:
    """Returns pairs that depend on their position alone; instructions are unlike in length."""
    pictures = [_picture(position) for position in positions]
    return EditBatch(
        sample_ids=tuple(str(position) for position in positions),
        sources=tuple(pictures),
        targets=tuple(picture.flip(-1) for picture in pictures),
        instructions=tuple("Remove the ball." + " Then make it night." * (position % 3) for position in positions),
    )


def _picture(position: int) -> Tensor:
    generator = torch.Generator().manual_seed(position)
    coarse = torch.randint(0, 256, (3, 4, 4), generator=generator, dtype=torch.uint8)
    return coarse.repeat_interleave(SIDE_PX // 4, 1).repeat_interleave(SIDE_PX // 4, 2)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    train_all(sys.argv[1], Path(sys.argv[2]))
