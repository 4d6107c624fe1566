from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.videos import rolling_ball, write_video

from physedit.data_loaders.videos.choose import ChoiceSettings
from physedit.data_loaders.videos.examine import Examination, ExaminedVideo, PairKind, examine
from physedit.data_loaders.videos.sources import find_sources

MakeVideo = Callable[..., Path]


@pytest.fixture
def make_video(tmp_path: Path) -> MakeVideo:
    """Writes a video and, if given, its caption beside it."""

    def make(name: str, frames, caption: str | None = None, **how) -> Path:
        path = write_video(tmp_path / "videos" / name, frames, **how)
        if caption is not None:
            path.with_suffix(".txt").write_text(caption)
        return path

    return make


@pytest.fixture
def three_videos(make_video: MakeVideo) -> Path:
    """A folder with three videos of a ball that rolls past different walls, each with a caption."""
    for seed in range(3):
        path = make_video(f"ball_{seed}.mkv", rolling_ball(seed), f"Ball number {seed} rolls.")
    return path.parent


def examined(path: Path, kind: PairKind = PairKind.MOTION, **choice) -> ExaminedVideo:
    """Examines one video by itself."""
    (video,) = find_sources([path], None, "").videos
    return examine(Examination(video, kind, ChoiceSettings(**choice), min_side_px=200))
