"""Tiny Qwen-Image-Edit pipelines as a user calls them, recorded, and the same calls rebuilt by the backbone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.sample import EditBatch
from physedit.models.backbone import Conditioning
from physedit.models.latents import unpack
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.models.qwen_pipeline import EditPipeline, working_at

V1: EditPipeline = "QwenImageEditPipeline"
PLUS: EditPipeline = "QwenImageEditPlusPipeline"
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Dtype = Literal["float32", "bfloat16"]
AREA_PX = 96 * 96
VISION_AREA_PX = 64 * 64
NUM_STEPS = 3
PROMPT = "Remove the stand so that the ball falls down."
SEED = 7


@dataclass(frozen=True)
class Call:
    inputs: dict[str, Any]
    output: Tensor


@contextmanager
def recorded(module: nn.Module) -> Iterator[list[Call]]:
    """Within the context every call of ``module`` is added to the list, with what it returned first."""
    calls: list[Call] = []

    def keep(module: nn.Module, args: object, inputs: dict[str, Any], output: Any) -> None:
        calls.append(Call(dict(inputs), output[0].detach().clone()))

    handle = module.register_forward_hook(keep, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def picture(height: int, width: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def pictures(count: int) -> tuple[Tensor, ...]:
    """A source of 67x101 pixels and references, of which each has its own grid."""
    return (picture(101, 67, 3), picture(60, 90, 4), picture(50, 50, 5))[:count]


def build(
    pipeline: EditPipeline, dtype: Dtype = "float32", weights: str = "random_tiny", **options: Any
) -> QwenImageEdit:
    vision = {"vision_area_px": VISION_AREA_PX} if pipeline == PLUS else {}
    return QwenImageEdit(
        **{"weights": weights, "dtype": dtype, "pipeline": pipeline, "area_px": AREA_PX, **vision, **options}
    )


def batch_of(given: Sequence[Tensor], prompt: str = PROMPT, target: Tensor | None = None) -> EditBatch:
    """One pair, whose target is its source unless another is given."""
    source, *references = given
    return EditBatch(
        sample_ids=("a",),
        sources=(source,),
        targets=(source if target is None else target,),
        instructions=(prompt,),
        references=(tuple(references),) if references else (),
    )


def joined(first: EditBatch, second: EditBatch) -> EditBatch:
    return EditBatch(
        *(
            getattr(first, name) + getattr(second, name)
            for name in ("sample_ids", "sources", "targets", "instructions", "references")
        )
    )


def call_stock(pipeline: Any, given: Sequence[Tensor], **options: Any) -> Any:
    """Calls the pipeline as a user does, with PIL pictures and a prompt; one picture goes to v1 by itself."""
    images = [as_image(each) for each in given]
    is_single = type(pipeline).__name__ == V1
    settings = {
        "image": images[0] if is_single else images,
        "prompt": PROMPT,
        "true_cfg_scale": 1.0,
        "num_inference_steps": NUM_STEPS,
        "generator": torch.Generator().manual_seed(SEED),
        "output_type": "latent",
        **options,
    }
    return pipeline(**settings).images


def run_stock(
    pipeline: Any, given: Sequence[Tensor], areas: tuple[int, int] = (AREA_PX, VISION_AREA_PX), **options: Any
) -> list[Call]:
    """Returns the transformer's calls of ``call_stock``."""
    with working_at(pipeline, *areas), recorded(pipeline.transformer) as calls:
        call_stock(pipeline, given, **options)
    return calls


def rebuild(
    backbone: QwenImageEdit,
    stock: Sequence[Call],
    sigmas: Tensor,
    batch: EditBatch,
    change: Callable[[Conditioning], Conditioning] = lambda conditioning: conditioning,
) -> list[Call]:
    """Calls ``velocity`` with the pipeline's noisy latents and sigma of each step; everything else is ours."""
    conditioning = change(backbone.encode(batch))
    _, rows, columns = stock[0].inputs["img_shapes"][0][0]
    with recorded(backbone.denoiser) as calls, torch.no_grad():
        for call, sigma in zip(stock, sigmas, strict=True):
            tokens = call.inputs["hidden_states"][:, : rows * columns]
            noisy = unpack(tokens.float(), height=2 * rows, width=2 * columns)
            backbone.velocity(backbone.denoiser, noisy, sigma.expand(len(batch)), conditioning)
    return calls


def differing(stock: Call, ours: Call) -> set[str]:
    assert stock.inputs.keys() == ours.inputs.keys()
    return {name for name, value in stock.inputs.items() if not same(value, ours.inputs[name])}


def same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    return type(first) is type(second) and bool(first == second)


def relative_change(first: Tensor, second: Tensor) -> float:
    return float((first.float() - second.float()).norm() / first.float().norm())
