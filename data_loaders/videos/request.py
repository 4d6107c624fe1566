"""What a build is asked for, and whether it can be done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from physedit.data_loaders.videos.choose import ChoiceSettings
from physedit.data_loaders.videos.examine import PairKind, PictureSettings
from physedit.data_loaders.videos.instructions import PROMPT_VERSION
from physedit.data_loaders.videos.journal import BuildError, key_of
from physedit.data_loaders.videos.sources import Sources
from physedit.data_loaders.vision_settings import VisionSettings

REPORT = "report.json"
WORK = ".work"
METHOD_VERSION = 1
"""Part of what a stored result is known by; to be raised with every change of how pairs are chosen."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Which set is to be built."""

    videos: tuple[Path, ...]
    """Video files, and folders that are searched for some."""
    out: Path
    """Where the set goes: a new or empty folder, or one with an unfinished build."""
    kind: PairKind = PairKind.MOTION
    """Which frames make a pair."""
    meta: Path | None = None
    """MiraData's meta CSV, or None."""
    caption_column: str = "short_caption"
    """Column of the meta CSV that holds the caption."""
    choice: ChoiceSettings = field(default_factory=ChoiceSettings)
    """How pairs are chosen."""
    pictures: PictureSettings = field(default_factory=PictureSettings)
    """How pictures are stored."""
    vision: VisionSettings | None = None
    """The model that writes instructions; None takes the caption."""
    num_workers: int = 1
    """Processes that decode; 1 decodes in this one."""
    shard_mb: int = 500
    """Most picture bytes of a parquet file, in millions."""


def check_request(request: BuildRequest) -> None:
    """Makes sure that the settings go together.

    Raises:
        BuildError: they do not.
    """
    if request.kind is PairKind.FIRST_LAST and request.vision is None:
        raise BuildError(
            "Pairs of first and last frames are written in PICA-100K's columns, which hold three levels of "
            "instruction, and only a model can write these. Give --model NAME, and --base-url for a server of yours."
        )
    if request.num_workers < 1 or request.shard_mb < 1:
        raise BuildError(f"workers={request.num_workers} and shard_mb={request.shard_mb} must be at least 1.")


def refuse_captionless(sources: Sources) -> None:
    """Makes sure that some video has a caption, for a build without a model.

    Raises:
        BuildError: none has.
    """
    if not any(clip.caption for video in sources.videos for clip in video.clips):
        raise BuildError(
            f"None of the {len(sources.videos)} video(s) has a caption, and no model was given to write instructions. "
            "Give --model NAME, or --meta FILE.csv, or a VIDEO.txt beside each video."
        )


def digest_of(request: BuildRequest, sources: Sources) -> str:
    """Names what a set is made of and with; speed and addresses do not count."""
    videos = [[video.identity(), [clip.caption for clip in video.clips]] for video in sources.videos]
    settings = [request.kind, asdict(request.choice), asdict(request.pictures), request.shard_mb]
    model = None if request.vision is None else [request.vision.model, PROMPT_VERSION]
    return key_of(METHOD_VERSION, videos, settings, model, sources.rows_without_file)


def is_finished(out: Path, made_of: str) -> bool:
    """True if the set that ``digest_of`` named is in ``out``; False if it can be built there.

    Raises:
        BuildError: something else is there, or files of the set are gone.
    """
    if out.is_file():
        raise BuildError(f"--out {out} is a file. Name a folder.")
    report = out / REPORT
    if report.is_file():
        try:
            content = json.loads(report.read_text(encoding="utf-8"))
            found, files = content.get("made_of"), list(content.get("files", ()))
        except (ValueError, AttributeError, TypeError):
            found, files = None, []
        if found == made_of:
            _refuse_gaps(out, files)
            return True
        raise BuildError(
            f"{out} holds a finished set that was made of other videos or with other settings (see {report}). Name "
            "another --out."
        )
    if out.is_dir() and any(out.iterdir()) and not (out / WORK).is_dir():
        raise BuildError(f"--out {out} is not empty and holds no unfinished build. Name a new folder.")
    return False


def _refuse_gaps(out: Path, files: Sequence[str]) -> None:
    """Refuses a finished set without all its files: to make them anew may cost what a model asks for its answers."""
    gone = [name for name in files if not (out / name).is_file()]
    if gone or not files:
        raise BuildError(
            f"{out / REPORT} tells of a finished set, but {len(gone)} of its {len(files)} files are gone "
            f"({', '.join(gone[:3]) or 'it names none'}). Put them back, or remove {out} and run this again to build "
            "the set anew."
        )
