"""Scores a shipped toy editor without an adapter, by law: the tables in models/toy/README.md.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/toy_base.py                                300 scenes, about one minute
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/toy_base.py --backbone qwen_image_edit
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/toy_base.py --scenes 20 --level explicit
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/toy_base.py --weights DIR                  a rebuilt one
"""

import argparse
from collections import defaultdict

import torch

from benchmarks.results import Result, add_json_option, report
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.scenes.questions import kind_of
from physedit.data_loaders.scenes.scene import LAWS, Scene, draw_scene
from physedit.eval_hooks.judges.judge import JudgeQuestion
from physedit.eval_hooks.judges.pixel_rules import PixelRuleJudge
from physedit.eval_hooks.metrics.consistency import psnr_outside
from physedit.eval_hooks.picabench.generate import item_generator
from physedit.models.backbone import Backbone
from physedit.models.flux_kontext import FluxKontext
from physedit.models.qwen_image_edit import QwenImageEdit

FIRST_SEED = 3_000_000
"""Scenes the toy editors were never trained on."""
PICTURE_AREA_PX = 64 * 64


def main() -> None:
    """Prints a row per law: physics and semantic accuracy in percent, PSNR outside the edit in dB."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", choices=["flux_kontext", "qwen_image_edit"], default="flux_kontext")
    parser.add_argument("--scenes", type=int, default=50, help="scenes of each law")
    parser.add_argument("--level", choices=[level.value for level in PromptLevel], default="superficial")
    parser.add_argument("--weights", default="toy")
    add_json_option(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    editor = load_flux(arguments.weights) if arguments.backbone == "flux_kontext" else load_qwen(arguments.weights)
    right: dict[tuple[str, str], list[bool]] = defaultdict(list)
    psnr: dict[str, list[float]] = defaultdict(list)
    for law in LAWS:
        scenes = [draw_scene(law, FIRST_SEED + number) for number in range(arguments.scenes)]
        for scene, edited in zip(scenes, edit(editor, scenes, arguments.level), strict=True):
            score(scene, edited, right, psnr)
    print("| law | physics | semantic | PSNR |\n|---|---|---|---|")
    for law in (*LAWS, "all"):
        decibel = f"{sum(psnr[law]) / len(psnr[law]):.1f} dB" if psnr[law] else "-"
        print(f"| {law} | {percent(right[law, 'physics'])} | {percent(right[law, 'semantic'])} | {decibel} |")
    what, number = f"toy {arguments.backbone}", f"of {arguments.scenes * len(LAWS)} scenes"
    shares = {kind: 100 * sum(right["all", kind]) / len(right["all", kind]) for kind in ("physics", "semantic")}
    results = [
        Result(f"{what}: physics questions right", shares["physics"], "%", "<= 35", number),
        Result(f"{what}: semantic questions right", shares["semantic"], "%", ">= 98", number),
        Result(f"{what}: PSNR outside the edit", sum(psnr["all"]) / len(psnr["all"]), "dB", ">= 38", number),
    ]
    report(results, arguments.json)


def load_flux(weights: str) -> FluxKontext:
    """Returns the Kontext editor, with the guidance it was trained around."""
    return FluxKontext(weights=weights, dtype="float32", area_px=PICTURE_AREA_PX, max_text_tokens=24, edit_guidance=2.5)


def load_qwen(weights: str) -> QwenImageEdit:
    """Returns the Qwen editor without true guidance, for it never learnt a negative prompt."""
    return QwenImageEdit(
        weights=weights,
        dtype="float32",
        pipeline="QwenImageEditPipeline",
        area_px=PICTURE_AREA_PX,
        edit_guidance=1.0,
    )


def edit(editor: Backbone, scenes: list[Scene], level: str) -> torch.Tensor:
    """Returns the edits ``[B, 3, 64, 64]`` uint8 of scenes by the stock pipeline, 8 steps."""
    return editor.edit(
        editor.denoiser,
        [[torch.from_numpy(scene.source.copy()).permute(2, 0, 1)] for scene in scenes],
        [getattr(scene, f"{level}_prompt") for scene in scenes],
        num_steps=8,
        guidance=editor.default_guidance,
        generators=[item_generator(0, scene.law, number) for number, scene in enumerate(scenes)],
    )


def score(
    scene: Scene, edited: torch.Tensor, right: dict[tuple[str, str], list[bool]], psnr: dict[str, list[float]]
) -> None:
    """Adds the answers about one edit and its PSNR to the row of its law and to the last one."""
    judge = PixelRuleJudge()
    for law in (scene.law, "all"):
        for question in scene.questions:
            verdict = judge.answer(edited, JudgeQuestion(question.text, question.box))
            right[law, kind_of(question.text)].append(verdict.kind.value == question.answer.lower())
        if scene.edit_areas:
            source = torch.from_numpy(scene.source.copy()).permute(2, 0, 1)
            value = psnr_outside(source, edited, scene.edit_areas)
            if value is not None:
                psnr[law].append(value)


def percent(answers: list[bool]) -> str:
    """Returns the share of right answers with their number."""
    return f"{100 * sum(answers) / len(answers):.1f} % of {len(answers)}"


if __name__ == "__main__":
    main()
