"""``python -m physedit.train`` that gets a signal: ``SIGNAL_AT`` is its name and the step after whose numbers it comes.

``SIGKILL:6`` kills the process after step 6, once what it had told wandb of the steps before is surely in the log, if
wandb writes that often.
"""

import os
import signal
import time

from physedit.train.cli import train_main
from physedit.train.events import RunEvents

WANDB_WRITES_S = 0.6


def install(name: str, at: int) -> None:
    log = RunEvents.log

    def then(self: RunEvents, step: int, metrics: dict[str, float], num_samples: int, seconds: float) -> None:
        if step == at:
            time.sleep(WANDB_WRITES_S)
        log(self, step, metrics, num_samples, seconds)
        if step == at:
            os.kill(os.getpid(), signal.Signals[name])

    RunEvents.log = then  # type: ignore[method-assign]


if __name__ == "__main__":
    asked, _, number = os.environ.get("SIGNAL_AT", "").partition(":")
    if asked:
        install(asked, int(number))
    train_main()
