"""Random streams: every use of randomness has a seed of its own, a pure function of what it is for."""

import hashlib


def stream_seed(seed: int, stream: str, item: int | str) -> int:
    """Returns the 63-bit seed that belongs to (seed, stream, item): equal on every machine and rank.

    Args:
        seed: the run's or the evaluation's seed.
        stream: what the numbers are for, such as ``noise`` or ``adapter``.
        item: which of them: a global position, an item's index, a parameter's name.
    """
    digest = hashlib.sha256(f"{seed}/{stream}/{item}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
