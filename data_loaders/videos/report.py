"""What a finished set says of itself: what it was made of and with, and how much was dropped why."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from physedit.data_loaders.videos.instructions import PROMPT_VERSION, Outcome
from physedit.data_loaders.videos.journal import replacing
from physedit.data_loaders.videos.reasons import Reason
from physedit.data_loaders.videos.request import METHOD_VERSION, REPORT, WORK, BuildRequest

_DROPPED = "dropped.jsonl"


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that was dropped: of a video (no clip), a stretch of it, or a pair of frames."""

    what: str
    video: str
    reason: Reason
    clip: str = ""
    first_frame: int | None = None
    last_frame: int | None = None
    message: str = ""


def write_report(
    request: BuildRequest,
    made_of: str,
    num_videos: int,
    num_pairs: int,
    losses: Sequence[Loss],
    outcomes: Sequence[Outcome],
) -> None:
    """Writes ``dropped.jsonl`` and, last, ``report.json``: the same for the same build, however often it was killed."""
    lines = (json.dumps(asdict(loss), ensure_ascii=False) + "\n" for loss in losses)
    with replacing(request.out / _DROPPED) as part, part.open("w", encoding="utf-8") as stream:
        stream.writelines(lines)
    versions = {name: importlib.metadata.version(name) for name in ("av", "numpy", "pillow", "pyarrow")}
    settings = {"choice": asdict(request.choice), "pictures": asdict(request.pictures), "shard_mb": request.shard_mb}
    report = {
        "made_of": made_of,
        "kind": request.kind,
        "method_version": METHOD_VERSION,
        "settings": settings,
        "versions": versions,
        "num_videos": num_videos,
        "num_pairs": num_pairs,
        "dropped": counts_of(losses),
        "instructions": _instruction_report(request, outcomes),
        "files": {f"data/{file.name}": _sha256(file) for file in sorted((request.out / "data").iterdir())},
    }
    with replacing(request.out / REPORT) as part:
        part.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def counts_of(losses: Iterable[Loss]) -> dict[str, dict[str, int]]:
    """Returns how often each reason occurred, by what was dropped."""
    counts: dict[str, Counter[str]] = {}
    for loss in losses:
        counts.setdefault(loss.what, Counter())[loss.reason] += 1
    return {what: dict(sorted(counts[what].items())) for what in sorted(counts)}


def nothing_left(request: BuildRequest, num_videos: int, losses: Sequence[Loss]) -> str:
    """Returns what to tell the user when no pair is left."""
    first = next((f" The first: {loss.message}" for loss in losses if loss.message), "")
    return (
        f"No pair is left of {num_videos} video(s), so no set was written. Dropped: "
        f"{json.dumps(counts_of(losses))}.{first} What was examined is kept in {request.out / WORK}; see "
        "docs/from-videos.md for what each reason means."
    )


def _instruction_report(request: BuildRequest, outcomes: Sequence[Outcome]) -> dict[str, object]:
    if request.vision is None:
        return {"from": "caption"}
    return {
        "from": request.vision.model,
        "prompt_version": PROMPT_VERSION,
        "num_requests": sum(outcome.num_requests for outcome in outcomes),
        "num_input_tokens": sum(outcome.num_input_tokens for outcome in outcomes),
        "num_output_tokens": sum(outcome.num_output_tokens for outcome in outcomes),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
