"""``python -m physedit.train`` with a loss that is not a number on the last rank alone, in its first pass of step 3."""

import os
from dataclasses import replace
from typing import Any

from physedit.train import loop
from physedit.train.cli import train_main

STEP = 3


def install() -> None:
    forward = loop.forward

    def spoilt(trainer: Any, positioned: Any) -> Any:
        terms = forward(trainer, positioned)
        is_here = positioned.positions[0] // trainer.global_batch + 1 == STEP
        if not is_here or int(os.environ["RANK"]) + 1 < int(os.environ["WORLD_SIZE"]):
            return terms
        return replace(terms, loss=terms.loss * float("nan"), per_sample=terms.per_sample * float("nan"))

    loop.forward = spoilt


if __name__ == "__main__":
    install()
    train_main()
