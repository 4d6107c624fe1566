"""The embedded world's judge: rules on the pixels inside the question's box, no model and no download."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from functools import cache

import numpy as np
from torch import Tensor

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes import questions
from physedit.data_loaders.scenes.draw import SIZE
from physedit.data_loaders.scenes.questions import FRAME, read_question
from physedit.eval_hooks.judges import forms, measures, rules
from physedit.eval_hooks.judges.judge import JudgeQuestion, Verdict, VerdictKind
from physedit.eval_hooks.judges.measures import Crop
from physedit.eval_hooks.judges.protocols import StrictProtocol

_LEAST_SIDE = 3
"""Smallest side of a box in pixels that a rule can measure."""


class PixelRuleJudge:
    """Answers the embedded world's questions from pixels, and refuses all others. Pure and picklable."""

    @property
    def judge_id(self) -> str:
        """``pixel-rules`` with a hash of the rules, what they measure, and the question table."""
        return f"pixel-rules/{_rules_hash()}"

    @property
    def note(self) -> str:
        """One sentence for every report about what this judge is."""
        return (
            "Answers come from the embedded world's pixel rules, which look only inside each question's box; "
            "this is not PICAEval and its figures cannot be compared with PICABench's."
        )

    @property
    def protocol(self) -> StrictProtocol:
        """The strict rules; it never sees a JPEG."""
        return StrictProtocol()

    @property
    def num_askers(self) -> int:
        """1: rules on small pictures gain nothing by threads."""
        return 1

    @property
    def usage(self) -> Mapping[str, object]:
        """Nothing."""
        return {}

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        """The verdict of the question's rule on the pixels inside its box.

        Args:
            image: uint8 ``[3, 64, 64]``, the whole edited picture; None is refused.
            question: a question of the embedded world; others are refused.
        """
        reading = read_question(question.text)
        if reading is None:
            return _refusal("the question is not one of the embedded world's")
        if image is None:
            return _refusal("the picture cannot be read")
        if tuple(image.shape) != (3, SIZE, SIZE):
            return _refusal(f"the picture is {tuple(image.shape)}, the embedded world's are (3, {SIZE}, {SIZE})")
        crop = _crop(image, question.box)
        if min(crop.shape[:2]) < _LEAST_SIDE:
            return _refusal(f"the box covers {crop.shape[1]} x {crop.shape[0]} pixels of the picture")
        checks = rules.RULES[reading.template.rule](crop, reading)
        holds = all(check.holds for check in checks)
        says_yes = holds == (reading.template.answer == "Yes")
        kind = VerdictKind.YES if says_yes else VerdictKind.NO
        decisive = [check for check in checks if not check.holds] or checks
        return Verdict(kind, kind.value.capitalize(), "; ".join(str(check) for check in decisive))


def _refusal(reason: str) -> Verdict:
    return Verdict(VerdictKind.REFUSED, "", f"refused: {reason}")


def _crop(image: Tensor, box: Box | None) -> Crop:
    """The pixels inside a box of the 1024-pixel frame, or all, ``[h, w, 3]`` float32 in 0..1."""
    box = box or Box(0, 0, FRAME, FRAME)
    scale = SIZE / FRAME
    left, top = round(max(0.0, box.x * scale)), round(max(0.0, box.y * scale))
    right, bottom = round((box.x + box.width) * scale), round((box.y + box.height) * scale)
    pixels = image[:, top:bottom, left:right].permute(1, 2, 0).cpu().numpy()
    return pixels.astype(np.float32) / np.float32(255)


@cache
def _rules_hash() -> str:
    text = "".join(inspect.getsource(module) for module in (rules, measures, forms, questions))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
