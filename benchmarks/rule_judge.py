"""How right the embedded rule judge is: on true, unedited, naive, noisy and half-right pictures, by law.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/rule_judge.py        200 scenes a law, about two minutes
"""

import argparse
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from benchmarks.results import Result, add_json_option, report
from physedit.data_loaders.scenes.questions import kind_of
from physedit.data_loaders.scenes.scene import LAWS, Scene, draw_scene
from physedit.eval_hooks.judges.judge import JudgeQuestion
from physedit.eval_hooks.judges.pixel_rules import PixelRuleJudge

FIRST_SEED = 70_000_000
"""Scenes that neither the rules' limits nor their tests were set on."""
NOISE = 4.0
"""Standard deviation in levels of 255, with a blur of half a pixel: what a small decoder leaves."""

Picture = NDArray[np.uint8]


def main() -> None:
    """Prints a table of law x kind of picture, physics / semantic accuracy in percent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=200, help="scenes of each law")
    add_json_option(parser)
    asked = parser.parse_args()
    num_scenes = asked.scenes
    judge = PixelRuleJudge()
    right: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for law in LAWS:
        for seed in range(FIRST_SEED, FIRST_SEED + num_scenes):
            scene = draw_scene(law, seed)
            for name, picture_of in PICTURES.items():
                image = torch.from_numpy(picture_of(scene).copy()).permute(2, 0, 1)
                for question in scene.questions:
                    verdict = judge.answer(image, JudgeQuestion(question.text, question.box))
                    correct = verdict.kind.value == question.answer.lower()
                    right[law, name, kind_of(question.text)].append(correct)
    print(f"| {'law':22} | " + " | ".join(f"{name:>13}" for name in PICTURES) + " |")
    for law in (*LAWS, "all"):
        cells = (" / ".join(percent(right, law, name, kind) for kind in ("physics", "semantic")) for name in PICTURES)
        print(f"| {law:22} | " + " | ".join(f"{cell:>13}" for cell in cells) + " |")
    targets = {"physical": "== 100"}
    results = [
        Result(
            f"physics questions right, {name} pictures",
            float(percent(right, "all", name, "physics")),
            "%",
            targets.get(name, ""),
            f"of {num_scenes * len(LAWS)} scenes",
        )
        for name in PICTURES
    ]
    report(results, asked.json)


def percent(right: dict[tuple[str, str, str], list[bool]], law: str, name: str, kind: str) -> str:
    """Returns the share of right answers of one cell."""
    laws = LAWS if law == "all" else (law,)
    answers = [answer for each in laws for answer in right[each, name, kind]]
    return f"{100 * sum(answers) / len(answers):.1f}"


def softened(scene: Scene) -> Picture:
    """Returns the physical target as a small decoder might draw it."""
    soft = np.asarray(Image.fromarray(scene.physical).filter(ImageFilter.GaussianBlur(0.5)), dtype=np.float64)
    noise = np.random.default_rng(int(scene.scene_id.split("-")[-1])).normal(0.0, NOISE, soft.shape)
    return np.clip(soft + noise, 0, 255).astype(np.uint8)


def half_way(scene: Scene) -> Picture:
    """Returns the mean of the naive and the physical target."""
    return ((scene.naive.astype(np.int64) + scene.physical) // 2).astype(np.uint8)


PICTURES: dict[str, Callable[[Scene], Picture]] = {
    "physical": lambda scene: scene.physical,
    "softened": softened,
    "source": lambda scene: scene.source,
    "naive": lambda scene: scene.naive,
    "half way": half_way,
}


if __name__ == "__main__":
    main()
