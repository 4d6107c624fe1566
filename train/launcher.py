"""``accelerate launch`` for a parent that waits: passes signals on, and ends as the first rank that failed did.

    python -m physedit.train.launcher --config_file launch/accelerate/ddp.yaml -m physedit.train ...

takes the arguments of ``accelerate launch``.
"""

import logging
import signal
import subprocess
import sys
from types import FrameType
from typing import NoReturn

import psutil
from accelerate.commands.launch import launch_command, launch_command_parser
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from physedit.launch.local import PASSED_ON, end_with_parent, exit_code

logger = logging.getLogger(__name__)

FORWARDED = frozenset(PASSED_ON.values())
ASKED_TO_STOP = frozenset(128 + number for number in FORWARDED)


def main() -> None:
    """Runs the launch of this process' arguments; leaves with the exit code of the first rank that failed."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # It reports every rank that ends with a code, asked to stop or not; what matters is said below.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    end_with_parent()
    for number in FORWARDED:
        signal.signal(number, _forward)
    try:
        launch_command(launch_command_parser().parse_args())
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _leave(rank, failure.exitcode)
    except subprocess.CalledProcessError as error:
        _leave(0, error.returncode)


def _leave(rank: int, returncode: int) -> NoReturn:
    code = exit_code(returncode)
    if returncode < 0 and code not in ASKED_TO_STOP:
        name = signal.Signals(-returncode).name
        logger.error("Rank %d was ended by %s%s.", rank, name, ", perhaps for want of memory" * (name == "SIGKILL"))
    elif code not in ASKED_TO_STOP:
        logger.error("Rank %d was the first to fail, with exit code %d; what it said is above.", rank, code)
    sys.exit(code)


def _forward(number: int, _frame: FrameType | None) -> None:
    for rank in psutil.Process().children():
        try:
            rank.send_signal(number)
        except psutil.NoSuchProcess:
            continue  # it ended by itself


if __name__ == "__main__":
    main()
