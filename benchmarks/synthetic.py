"""Evaluations without an editor and without a model: pictures of noise, and a judge that answers at once.

Everything is written by the project's own writers, so that reading it back costs what a real run's costs.
"""

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from physedit.data_loaders.sample import Box, Origin, PromptLevel
from physedit.eval_hooks.files import encode_png, file_digest, write_bytes, write_json, write_json_lines, write_text
from physedit.eval_hooks.judges.judge import JudgeQuestion, Verdict, VerdictKind
from physedit.eval_hooks.judges.protocols import JudgeProtocol, StrictProtocol
from physedit.eval_hooks.picabench.annotations import Question
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem
from physedit.eval_hooks.picabench.comparison import Comparison, write_report
from physedit.eval_hooks.picabench.folder import INPUTS, OUTPUTS, picture_name, write_meta_info
from physedit.eval_hooks.picabench.judging import judge_folder
from physedit.eval_hooks.picabench.manifest import Manifest, write_manifest
from physedit.eval_hooks.picabench.measure import measure_folder
from physedit.eval_hooks.picabench.measures import PicaBenchMeasures
from physedit.eval_hooks.report_file import ReportKeys

HOOK = "picabench"
STEP = 400
SIDE_PX = 64
LAWS = (
    ("Optics", "Light Propagation"), ("Optics", "Light Source Effects"), ("Optics", "Reflection"),
    ("Optics", "Refraction"), ("Mechanics", "Deformation"), ("Mechanics", "Causality"),
    ("State Transition", "Global"), ("State Transition", "Local"),
)  # fmt: skip
_AREA = (Box(16.0, 16.0, 32.0, 32.0),)


@dataclass(frozen=True)
class InstantJudge:
    """Answers without looking: yes to ``share`` percent of the questions, which ones is a matter of ``seed``."""

    seed: int = 0
    share: int = 50
    judge_id: str = "instant"
    note: str = "A stand-in that does not look."
    protocol: JudgeProtocol = field(default_factory=StrictProtocol)
    num_askers: int = 1
    usage: Mapping[str, object] = field(default_factory=dict)

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        """The verdict on one question; ``image`` is uint8 ``[3, H, W]`` and is not looked at."""
        assert image is not None
        is_yes = zlib.crc32(f"{self.seed} {question.text}".encode()) % 100 < self.share
        return Verdict(VerdictKind.YES if is_yes else VerdictKind.NO, "Yes" if is_yes else "No", "drawn by lot")


def items_of(num_items: int, num_questions: int) -> tuple[BenchmarkItem, ...]:
    """Returns items with that many questions in all, dealt evenly, with small pictures of noise."""
    dealt = [
        num_questions * (index + 1) // num_items - num_questions * index // num_items for index in range(num_items)
    ]
    return tuple(_item(index, count) for index, count in enumerate(dealt))


def write_outputs(folder: Path, items: Sequence[BenchmarkItem], *, seed: int) -> None:
    """Writes inputs, outputs with noise in the middle, and what describes them."""
    generator = torch.Generator().manual_seed(seed)
    files = {}
    for item in items:
        edited = item.source.clone()
        edited[:, 16:48, 16:48] = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=generator)
        for name, content in ((INPUTS, item.encoded), (OUTPUTS, encode_png(edited))):
            relative = f"{name}/{picture_name(item.index)}"
            write_bytes(folder / relative, content)
            files[relative] = file_digest(folder / relative)
    write_meta_info(folder, items, PromptLevel.SUPERFICIAL)
    settings = {"seed": 0, "num_steps": 8, "level": "superficial", "benchmark": "noise", "num_items": len(items)}
    write_manifest(folder, Manifest(f"noise {seed}", settings, files))


def write_side(folder: Path, items: Sequence[BenchmarkItem], judge: InstantJudge) -> None:
    """Writes outputs with the judge's answers and what is measured of them."""
    write_outputs(folder, items, seed=judge.seed)
    judge_folder(folder, judge)
    measure_folder(folder)


def write_run(folder: Path, items: Sequence[BenchmarkItem], *, seed: int, base_of: Path | None = None) -> None:
    """Writes a run folder with an evaluation of its last step beside the base's.

    Args:
        folder: of the run.
        items: what is evaluated.
        seed: decides pictures, answers and settings.
        base_of: another run, whose evaluation of the base this one shares; None to write it.
    """
    base, tuned = (folder / "eval" / HOOK / name for name in ("base", f"step_{STEP:08d}"))
    judge = InstantJudge(seed=seed + 1, share=55)
    if base_of is None:
        write_side(base, items, InstantJudge(share=40))
    else:
        link_files(base_of / "eval" / HOOK / "base", base)
    write_side(tuned, items, judge)
    report(base, tuned, judge, len(items))
    write_settings(folder, seed)


def report(base: Path, tuned: Path, judge: InstantJudge, num_items: int) -> None:
    """Writes the report of a step beside the base."""
    measures = PicaBenchMeasures()
    comparison = Comparison(HOOK, STEP, base, tuned, judge, measures, part=None, num_items=num_items)
    write_report(comparison, ReportKeys(f"noise {judge.seed}", "noise"), seconds=1.0)


def write_settings(folder: Path, seed: int) -> None:
    """Writes config, curve and summary of a run, whose learning rate and rank are its seed's."""
    import yaml

    config = {
        "run_name": folder.name,
        "optimizer": {"lr": 1e-4 * (1 + seed % 7)},
        "adapter": {"rank": 4 * (1 + seed % 5)},
        "eval": {HOOK: {"seed": 0, "num_steps": 8, "level": "superficial", "guidance": None}},
    }
    write_text(folder / "config.yaml", yaml.safe_dump(config))
    write_json_lines(
        folder / "metrics.jsonl",
        [
            {"step": step, "train/loss": 1 / (step + seed), "time/samples_per_s": 1.0}
            for step in range(10, STEP + 1, 10)
        ],
    )
    write_json(folder / "summary.json", {"best": {"step": STEP}, "failed_evaluations": []})


def link_run(run: Path, folder: Path, *, seed: int) -> None:
    """Makes another run folder of the same evaluation by links, with settings of its own."""
    link_files(run / "eval", folder / "eval")
    write_settings(folder, seed)


def link_files(source: Path, destination: Path) -> None:
    """Makes a folder with the files of another one."""
    for path in source.rglob("*"):
        if not path.is_dir():
            place = destination / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, place)


def _item(index: int, num_questions: int) -> BenchmarkItem:
    category, law = LAWS[index % len(LAWS)]
    generator = torch.Generator().manual_seed(index)
    source = torch.randint(0, 256, (3, SIDE_PX, SIDE_PX), dtype=torch.uint8, generator=generator)
    box = Box(256.0, 256.0, 512.0, 512.0)
    questions = [Question(f"Is detail {n} of item {index} right?", "Yes", box) for n in range(num_questions)]
    return BenchmarkItem(
        index=index,
        encoded=encode_png(source),
        category=category,
        law=law,
        operation="add" if index % 2 else "remove",
        prompts=dict.fromkeys(PromptLevel, f"Make number {index} as it would be."),
        questions=tuple(questions),
        edit_area=_AREA,
        origin=Origin("noise", index),
    )
