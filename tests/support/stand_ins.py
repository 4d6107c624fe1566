"""Stand-ins that honour the seams: an editor that paints, a judge that sees red, and a benchmark for both."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet
from torch import Tensor, nn

from physedit.data_loaders.geometry import resized
from physedit.data_loaders.sample import Box, EditBatch
from physedit.eval_hooks.hook import EvalContext
from physedit.eval_hooks.judges.judge import JudgeQuestion, Verdict, VerdictKind
from physedit.eval_hooks.judges.protocols import JudgeProtocol, StrictProtocol
from physedit.models.backbone import Conditioning
from physedit.models.sizes import PictureSizes

IS_RED = "Is there red in the box?"
IS_BLUE = "Is there blue in the box?"
LAWS = (("Optics", "Reflection"), ("Mechanics", "Causality"), ("State", "Global"))
SIDE = 16


class PaintingDenoiser(nn.Module):
    """A base weight, an adapter weight that can be off, and a dropout that would show a forgotten eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.ones(2), requires_grad=False)
        self.adapter = nn.Parameter(torch.ones(2))
        self.dropout = nn.Dropout(0.5)
        self.is_adapter_on = True


class PaintingEditor:
    """Copies its source, adds faint noise from the item's generator, and paints a red patch if the adapter is on.

    ``calls`` lists the batch size of every edit. ``fail_after`` edits it raises, as a killed run would end.
    """

    max_sources = 1
    default_guidance = 2.5
    default_num_steps = 3
    lora_presets: Mapping[str, tuple[str, ...]] = {"attention": ("base",)}

    def __init__(self, *, only_even: bool = False, fail_after: int | None = None) -> None:
        self.denoiser = PaintingDenoiser()
        self.calls: list[int] = []
        self.only_even, self.fail_after = only_even, fail_after

    @property
    def fingerprint(self) -> str:
        return "painting-editor"

    def to(self, device: torch.device) -> None:
        self.denoiser.to(device)

    def sizes_of(self, height: int, width: int) -> PictureSizes:
        size = max(1, round(height / 8)) * 8, max(1, round(width / 8)) * 8
        return PictureSizes(source=size, output=size)

    def keeping_encoded(self, folder: Path) -> AbstractContextManager[None]:
        return nullcontext()

    def encode(self, batch: EditBatch) -> Conditioning:
        target, source = (torch.stack(p).float() / 127.5 - 1 for p in (batch.targets, batch.sources))
        change = (target != source).any(dim=1, keepdim=True).float()
        return Conditioning(target=target, sources=(source,), text={}, change=change, time_shift=0.0)

    def velocity(self, denoiser: nn.Module, noisy: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        return (noisy - conditioning.target) * denoiser.base.mean()

    def edit(
        self,
        denoiser: nn.Module,
        given: Sequence[Sequence[Tensor]],
        instructions: Sequence[str],
        *,
        num_steps: int,
        guidance: float,
        generators: Sequence[torch.Generator],
    ) -> Tensor:
        if self.fail_after is not None and len(self.calls) >= self.fail_after:
            raise RuntimeError("the process was killed")
        source = torch.stack(
            [resized(pictures[0], *self.sizes_of(*pictures[0].shape[-2:]).output) for pictures in given]
        )
        self.calls.append(len(source))
        assert not denoiser.training, "editing in train mode: dropout is on"
        torch.rand(1)  # a careless pipeline touches the global generator
        edited = []
        for picture, instruction, generator in zip(source, instructions, generators, strict=True):
            noise = torch.randint(0, 2, picture.shape, generator=generator, dtype=torch.uint8)
            painted = picture.clamp(max=253) + noise
            if denoiser.is_adapter_on and not (self.only_even and instruction.endswith(("1", "3", "5", "7", "9"))):
                painted[:, 4:8, 4:8] = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None]
            edited.append(painted)
        return torch.stack(edited)


@dataclass
class RedJudge:
    """Says yes to ``IS_RED`` where the box is red. ``replies`` overrides the kind of its answer, in order of asking.

    ``asked`` lists every question put to it.
    """

    judge_id: str = "red-judge"
    note: str = "A stand-in that compares colours."
    replies: list[VerdictKind] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    protocol: JudgeProtocol = field(default_factory=StrictProtocol)
    num_askers: int = 1
    usage: Mapping[str, object] = field(default_factory=dict)

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        assert image is not None, "the strict protocol sends nothing for a picture that cannot be read"
        self.asked.append(question.text)
        if len(self.asked) <= len(self.replies):
            kind = self.replies[len(self.asked) - 1]
            if kind not in (VerdictKind.YES, VerdictKind.NO):
                return Verdict(kind=kind, raw="well, hard to say", explanation="")
        scale = max(image.shape[-2:]) / 1024
        box = question.box or Box(0, 0, 1024, 1024)
        rows = slice(round(box.y * scale), round((box.y + box.height) * scale))
        columns = slice(round(box.x * scale), round((box.x + box.width) * scale))
        red, _, blue = image[:, rows, columns].float().mean(dim=(1, 2)).tolist()
        is_yes = red > 200 > blue if question.text == IS_RED else blue > 200 > red
        return Verdict(kind=VerdictKind.YES if is_yes else VerdictKind.NO, raw=str(is_yes), explanation="mean colour")


def write_benchmark(folder: Path, num_items: int, *, targets: bool = False) -> Path:
    """Writes a benchmark in PICABench's schema: grey pictures, two questions each, the first about red."""
    rows = [_row(index) for index in range(num_items)]
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), folder / "picabench-00000-of-00001.parquet")
    if targets:
        pictures = [{"index": i, "tgt_img": {"bytes": png(100 + i), "path": None}} for i in range(num_items)]
        parquet.write_table(pa.Table.from_pylist(pictures), folder / "targets.parquet")
    return folder


def png(grey: int, height: int = SIDE, width: int = SIDE) -> bytes:
    """Returns a grey PNG."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), grey, dtype=np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


def context_for(editor: PaintingEditor, run_folder: Path, *, step: int = 0, **ranks: object) -> EvalContext:
    """Returns the context a trainer would give; ``ranks`` may hold rank, world_size and barrier."""

    @contextmanager
    def without_adapter() -> Iterator[None]:
        editor.denoiser.is_adapter_on = False
        try:
            yield
        finally:
            editor.denoiser.is_adapter_on = True

    return EvalContext(
        step=step,
        backbone=editor,
        denoiser=editor.denoiser,
        without_adapter=without_adapter,
        run_folder=run_folder,
        base_cache=run_folder.parent / "base_cache",
        adapter_id=f"adapter at {step}",
        **ranks,  # type: ignore[arg-type]
    )


def read_items(folder: Path) -> list[dict[str, object]]:
    """Returns the lines of ``items.jsonl``."""
    return [json.loads(line) for line in (folder / "items.jsonl").read_text(encoding="utf-8").splitlines()]


def _row(index: int) -> dict[str, object]:
    category, law = LAWS[index % len(LAWS)]
    box = {"x": 256.0, "y": 256.0, "width": 256.0, "height": 256.0}
    return {
        "physics_category": category,
        "physics_law": law,
        "edit_operation": "add" if index % 2 else "remove",
        "superficial_prompt": f"Paint number {index}",
        "intermediate_prompt": f"Paint it red, number {index}",
        "explicit_prompt": f"Paint a red patch on grey, number {index}",
        "annotated_qa_pairs": [
            {"question": IS_RED, "answer": "Yes", "box": box, "_step6_split": {"split_index": 0}},
            {"question": IS_BLUE, "answer": "No", "box": box, "_step6_split": None},
        ],
        "edit_area": None if law == "Global" else [{"x": 4.0, "y": 4.0, "width": 3.0, "height": 3.0, "id": "a"}],
        "image_path": f"{index}.png",
        "input_image": {"bytes": png(40 + index), "path": f"{index}.png"},
    }
