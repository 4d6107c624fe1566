"""Frames as they are shown, and files that hold none."""

from pathlib import Path

import av
import numpy as np
import pytest
from tests.data_loaders.videos.conftest import MakeVideo
from tests.support.videos import wall, with_ball

from physedit.data_loaders import images
from physedit.data_loaders.videos import decode
from physedit.data_loaders.videos.decode import MissingExtra, VideoRefused, read_frames
from physedit.data_loaders.videos.reasons import Reason


def refusal_of(path: Path) -> VideoRefused:
    with pytest.raises(VideoRefused) as refused:
        list(read_frames(path))
    assert str(path) in str(refused.value)
    return refused.value


@pytest.mark.parametrize(("codec", "name"), [("ffv1", "a.mkv"), ("libx264", "a.mp4"), ("libvpx-vp9", "a.webm")])
def test_frames_come_in_order_with_time_stamps_and_their_pixels(make_video: MakeVideo, codec, name):
    pictures = [with_ball(wall(0), 60 + 30 * i) for i in range(6)]
    frames = list(read_frames(make_video(name, pictures, codec=codec)))
    assert [frame.number for frame in frames] == list(range(6))
    assert [frame.time_s for frame in frames] == pytest.approx([i / 12 for i in range(6)], abs=1e-3)
    for frame, picture in zip(frames, pictures, strict=True):
        decoded = frame.rgb()
        assert decoded.shape == (3, 240, 320)
        # Colour is stored at half resolution, and two of the codecs lose more.
        assert np.abs(decoded.permute(1, 2, 0).numpy().astype(int) - picture).mean() < 6


def test_the_rotation_of_the_metadata_is_applied(make_video: MakeVideo):
    upright = with_ball(wall(1), 60, 60)
    for turns in (1, 2, 3):
        stored = np.rot90(upright, -turns)
        (frame,) = read_frames(make_video(f"turned_{turns}.mp4", [stored], codec="libx264", quarter_turns=turns))
        assert frame.size == (240, 320)
        assert np.abs(frame.rgb().permute(1, 2, 0).numpy().astype(int) - upright).mean() < 6
        grey = frame.grey(120, 160).astype(int)
        assert np.abs(grey - upright.mean(axis=2).reshape(120, 2, 160, 2).mean(axis=(1, 3))).mean() < 12


def test_odd_sizes_and_uneven_time_stamps_are_kept(make_video: MakeVideo):
    odd = [with_ball(wall(2), 60 + i)[:201, :303] for i in range(4)]
    frames = list(read_frames(make_video("odd.mkv", odd, times=(500, 540, 900, 1700))))
    assert [tuple(frame.rgb().shape) for frame in frames] == [(3, 201, 303)] * 4
    assert [frame.time_s for frame in frames] == pytest.approx([0, 0.04, 0.4, 1.2], abs=2e-3)


def test_pixels_that_are_not_square_are_made_so(tmp_path: Path):
    path = tmp_path / "wide.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.height, stream.width, stream.pix_fmt = 240, 320, "yuv420p"
        stream.codec_context.sample_aspect_ratio = 2
        container.mux(stream.encode(av.VideoFrame.from_ndarray(wall(0), format="rgb24")))
        container.mux(stream.encode())
    (frame,) = read_frames(path)
    assert frame.rgb().shape == (3, 240, 640)


def test_files_without_a_video_are_refused_by_name(tmp_path: Path):
    assert refusal_of(tmp_path / "none.mp4").reason is Reason.UNREADABLE
    for name, content in (("empty.mp4", b""), ("text.mp4", b"hello " * 100)):
        (tmp_path / name).write_bytes(content)
        assert refusal_of(tmp_path / name).reason is Reason.DAMAGED
    sound = tmp_path / "sound.wav"
    with av.open(str(sound), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert refusal_of(sound).reason is Reason.NO_VIDEO_STREAM


def test_damage_in_the_middle_is_refused(make_video: MakeVideo):
    path = make_video("a.mp4", [wall(i) for i in range(12)], codec="mpeg4")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4000] = np.random.default_rng(0).bytes(4000)
    path.write_bytes(content)
    assert refusal_of(path).reason is Reason.DAMAGED
    cut = path.with_name("cut.mp4")
    cut.write_bytes(bytes(content[:middle]))
    assert refusal_of(cut).reason is Reason.DAMAGED


def test_a_giant_is_refused_before_it_is_decoded(make_video: MakeVideo, monkeypatch):
    path = make_video("a.mkv", [wall(0)])
    monkeypatch.setattr(decode, "MAX_PIXELS", 320 * 240 - 1)
    assert images.MAX_PIXELS > 8192 * 4320
    assert refusal_of(path).reason is Reason.TOO_LARGE


def test_without_pyav_the_extra_is_named(make_video: MakeVideo, monkeypatch):
    path = make_video("a.mkv", [wall(0)])
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(MissingExtra, match=r"\[video\]"):
        list(read_frames(path))
