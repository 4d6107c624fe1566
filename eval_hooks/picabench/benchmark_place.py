"""Where a benchmark lies: on this machine, or on the Hugging Face hub at a revision."""

import re
from pathlib import Path

from physedit.data_loaders.hub import PREFIX, HubSet, download, parse_hub
from physedit.data_loaders.sample import DatasetLayoutError
from physedit.eval_hooks.picabench.benchmark_rows import META_INFO, REMEDY

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PATTERNS = ("*.parquet", META_INFO, "input_img/*")
_COMMIT_LETTERS = 40


def hub_set_of(benchmark: str, revision: str | None) -> HubSet | None:
    """Returns what to look for on the hub; None for a path of this machine, which comes first.

    Args:
        benchmark: a path, ``OWNER/NAME``, or ``hf://datasets/OWNER/NAME@REVISION``.
        revision: of ``OWNER/NAME``: a commit hash, or a tag or branch that may move.

    Raises:
        DatasetLayoutError: neither a path that exists nor a hub id with a revision.
        ValueError: an hf:// address of another form.
    """
    if benchmark.startswith(PREFIX):
        return parse_hub(benchmark)
    path = Path(benchmark)
    if path.exists():
        return None
    # A folder of that first name tells a path with a typo from a hub id.
    if not _HUB_ID.fullmatch(benchmark) or Path(path.parts[0]).exists():
        raise DatasetLayoutError(f"PICABench: {benchmark} does not exist. {REMEDY}")
    if not revision:
        raise DatasetLayoutError(
            f"PICABench: {benchmark} does not exist here, and as a hub id it needs a revision: a commit hash, or main, "
            f"which may move. {REMEDY}"
        )
    return HubSet(benchmark, revision)


def find_benchmark(benchmark: str, revision: str | None) -> Path:
    """Returns the path of a benchmark, downloaded from the hub first where it is not on this machine.

    Processes that ask at once wait for each other; with ``HF_HUB_OFFLINE=1`` only the hub's cache is looked at.

    Raises:
        DatasetLayoutError: as ``hub_set_of``, or it cannot be downloaded.
        ValueError: as ``hub_set_of``.
    """
    hub_set = hub_set_of(benchmark, revision)
    return Path(benchmark) if hub_set is None else download(hub_set, _PATTERNS)


def place_in_words(benchmark: str, revision: str | None, path: Path) -> str:
    """Returns where the benchmark at ``path`` came from, for the manifest: with the commit, where the hub told it."""
    hub_set = hub_set_of(benchmark, revision)
    if hub_set is None:
        return benchmark
    commits = [part for part in path.parts if re.fullmatch(rf"[0-9a-f]{{{_COMMIT_LETTERS}}}", part)]
    return f"{hub_set.name}@{commits[-1] if commits else hub_set.revision}"
