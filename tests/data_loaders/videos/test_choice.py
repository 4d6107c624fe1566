"""Which frames of which stretches become pairs."""

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from tests.data_loaders.videos.conftest import MakeVideo, examined
from tests.support.videos import HEIGHT, WIDTH, blurred, flickering, panning, rolling_ball, wall, with_ball

from physedit.data_loaders.marks import mark_of
from physedit.data_loaders.videos.choose import ChoiceError, ChoiceSettings, ChosenPair, SeenPairs
from physedit.data_loaders.videos.examine import ExaminedVideo, PairKind
from physedit.data_loaders.videos.looks import drift, small_size
from physedit.data_loaders.videos.reasons import Reason


def frames_of(video: ExaminedVideo) -> list[tuple[int, int]]:
    assert video.refused is None
    return [(pair.source_frame, pair.target_frame) for clip in video.clips for pair in clip.pairs]


def drops_of(video: ExaminedVideo) -> list[tuple[Reason, int, int]]:
    assert video.refused is None
    return [(drop.reason, drop.first_frame, drop.last_frame) for clip in video.clips for drop in clip.dropped]


@pytest.mark.parametrize(("codec", "suffix"), [("ffv1", "mkv"), ("libx264", "mp4")])
def test_a_rolling_ball_before_a_still_wall_makes_a_pair(make_video: MakeVideo, codec, suffix):
    found = examined(make_video(f"a.{suffix}", rolling_ball(0), codec=codec))
    assert frames_of(found) == [(0, 14)]
    assert drops_of(found) == []


def test_pairs_of_one_clip_lie_side_by_side(make_video: MakeVideo):
    found = frames_of(examined(make_video("a.mkv", rolling_ball(0, 24, step=10)), pairs_per_clip=2, max_gap_s=0.6))
    assert len(found) == 2
    assert all(first[1] < second[0] for first, second in pairwise(found))
    assert all(target - source >= 6 for source, target in found)


@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_panning_camera_is_dropped_as_one_stretch(make_video: MakeVideo, step):
    found = examined(make_video("a.mp4", panning(step=step), codec="libx264"))
    assert (frames_of(found), drops_of(found)) == ([], [(Reason.CAMERA_MOVES, 0, 23)])


def test_a_zooming_camera_is_dropped(make_video: MakeVideo):
    large = wall(3)
    rows, columns = (np.linspace(-0.5, 0.5, side) for side in (HEIGHT, WIDTH))
    zoomed = [
        large[np.ix_(((rows * z + 0.5) * (HEIGHT - 1)).astype(int), ((columns * z + 0.5) * (WIDTH - 1)).astype(int))]
        for z in np.linspace(1, 0.5, 24)
    ]
    assert drops_of(examined(make_video("a.mkv", zoomed))) == [(Reason.CAMERA_MOVES, 0, 23)]


def test_no_pair_spans_a_cut(make_video: MakeVideo):
    found = examined(make_video("a.mkv", rolling_ball(2) + rolling_ball(3)))
    assert frames_of(found) == [(0, 6), (18, 26)]
    assert drops_of(found) == []


def brighter(picture: np.ndarray) -> np.ndarray:
    return (picture.astype(int) + 30).clip(0, 255).astype(np.uint8)


def test_flicker_is_dropped_and_a_lamp_that_goes_on_parts_the_video(make_video: MakeVideo):
    assert drops_of(examined(make_video("a.mkv", flickering(rolling_ball(4))))) == [(Reason.FLICKER, 0, 15)]
    dark, light = rolling_ball(4, 16, step=6), [brighter(f) for f in rolling_ball(4, 16, start=136, step=6)]
    pairs = frames_of(examined(make_video("b.mkv", dark + light)))
    assert len(pairs) == 2
    assert pairs[0][1] < 16 <= pairs[1][0]


def test_blurred_frames_are_not_chosen(make_video: MakeVideo):
    ball = rolling_ball(6, 36, step=6)
    assert drops_of(examined(make_video("a.mkv", [blurred(frame) for frame in ball]))) == [(Reason.BLURRED, 0, 35)]
    mixed = [blurred(frame) if 10 <= i < 26 else frame for i, frame in enumerate(ball)]
    chosen = {number for pair in frames_of(examined(make_video("b.mkv", mixed))) for number in pair}
    assert not chosen & set(range(10, 26))


def test_a_still_or_plain_or_short_or_full_picture_makes_no_pair(make_video: MakeVideo):
    plain = np.full((HEIGHT, WIDTH, 3), 120, np.uint8)
    crowd = [with_ball(with_ball(wall(7), x, 60), x, 180) for x in range(40, 280, 10)]
    cases = {
        Reason.TOO_LITTLE_CHANGE: [wall(5)] * 24,
        Reason.TOO_PLAIN: [plain] * 24,
        Reason.TOO_SHORT: rolling_ball(0, 9),
    }
    for reason, frames in cases.items():
        found = examined(make_video(f"{reason}.mkv", frames))
        assert drops_of(found) == [(reason, 0, len(frames) - 1)]
    assert len(frames_of(examined(make_video("crowd.mkv", crowd)))) == 1


def test_a_long_take_is_divided(make_video: MakeVideo):
    background = wall(8)
    slow = [with_ball(background, 40 + i) for i in range(240)]
    found = examined(make_video("a.mkv", slow, rate=10))
    assert len(frames_of(found)) == 2
    assert all(1 <= (target - source) / 10 <= 5 for source, target in frames_of(found))


def test_every_second_frame_of_fast_film_is_looked_at(make_video: MakeVideo):
    ball = rolling_ball(9, 60, step=4)
    pairs = frames_of(examined(make_video("a.mkv", ball, rate=24)))
    assert [number % 2 for pair in pairs for number in pair] == [0, 0]


def test_first_and_last_are_just_these(make_video: MakeVideo):
    found = examined(make_video("a.mkv", rolling_ball(0, 38, step=6), rate=24), PairKind.FIRST_LAST)
    assert frames_of(found) == [(0, 37)]
    dusk = [(frame * (1 - i / 40)).astype(np.uint8) for i, frame in enumerate(rolling_ball(1))]
    assert frames_of(examined(make_video("dusk.mkv", dusk), PairKind.FIRST_LAST)) == [(0, 15)]


def test_first_and_last_may_be_dropped(make_video: MakeVideo):
    cases = {
        Reason.CUT_INSIDE: rolling_ball(2) + rolling_ball(3),
        Reason.CAMERA_MOVES: panning(step=1, num_frames=30),
        Reason.TOO_LITTLE_CHANGE: [wall(5)] * 12,
        Reason.TOO_SHORT: [wall(5)],
        Reason.BLURRED: [*rolling_ball(6, 20), blurred(rolling_ball(6, 21)[-1])],
    }
    for reason, frames in cases.items():
        found = examined(make_video(f"{reason}.mkv", frames), PairKind.FIRST_LAST)
        assert [drop[0] for drop in drops_of(found)] == [reason]
        assert frames_of(found) == []


def test_small_videos_and_videos_without_frames_are_refused(make_video: MakeVideo):
    found = examined(make_video("small.mkv", [frame[:180] for frame in rolling_ball(0)]))
    assert found.refused is not None
    assert found.refused[0] is Reason.TOO_SMALL
    assert "320x180" in found.refused[1]


@pytest.mark.parametrize("light", [1.0, 0.6, 1.3])
def test_the_drift_of_the_whole_is_read_below_a_pixel_whatever_the_light(light):
    large = np.array(Image.fromarray(wall(0, WIDTH + 20)).resize((4 * (WIDTH + 20), 4 * HEIGHT))).astype(float)[:, :, 0]

    def seen(quarters: int) -> np.ndarray:
        part = large[:, quarters : quarters + 4 * WIDTH].reshape(HEIGHT, 4, WIDTH, 4).mean(axis=(1, 3))
        return part.round().astype(np.uint8)

    for quarters in (0, 1, 2, 4):
        moved = (seen(quarters) * light).clip(0, 255).astype(np.uint8)
        found = drift(seen(0), moved)
        assert found.right_px == pytest.approx(-quarters / 4, abs=0.1)
        assert found.down_px == pytest.approx(0, abs=0.1)
    assert drift(seen(0), wall(1)[:, :, 0]).amount_px == 0, "unlike pictures tell nothing"


def test_a_ball_does_not_count_as_drift():
    first, later = rolling_ball(0, 2, step=10)
    noise = np.random.default_rng(0).normal(0, 2, (2, HEIGHT, WIDTH))
    noisy = [(f[:, :, 0] + n).clip(0, 255).astype(np.uint8) for f, n in zip((first, later), noise, strict=True)]
    assert drift(*noisy).amount_px < 0.2


def test_small_pictures_are_whole_blocks():
    assert small_size(1080, 1920) == (180, 320)
    assert small_size(1920, 1080) == (320, 180)
    assert small_size(1, 4000) == (20, 320)


def pair_of(source: np.ndarray, target: np.ndarray) -> ChosenPair:
    return ChosenPair(0, 1, 0.0, 1.0, mark_of(source[:, :, 0]), mark_of(target[:, :, 0]))


def test_near_duplicates_are_told_from_other_scenes():
    first, other = rolling_ball(0, 12), rolling_ball(1, 12)
    seen = SeenPairs(duplicate_bits=4)
    assert seen.take(pair_of(first[0], first[11]))
    noisy = [(f + np.random.default_rng(0).normal(0, 3, f.shape)).clip(0, 255).astype(np.uint8) for f in first]
    assert not seen.take(pair_of(noisy[0], noisy[11]))
    assert seen.take(pair_of(other[0], other[11]))
    grey, white = (np.full_like(first[0], level) for level in (120, 220))
    assert seen.take(pair_of(grey, grey))
    assert seen.take(pair_of(white, white)), "flat pictures share their hash, not their brightness"


def test_many_pairs_are_remembered():
    seen = SeenPairs(duplicate_bits=0)
    pictures = [wall(seed) for seed in range(150)]
    assert all(seen.take(pair_of(picture, picture)) for picture in pictures)
    assert not any(seen.take(pair_of(picture, picture)) for picture in pictures)


def test_settings_that_contradict_themselves_are_refused():
    for wrong in ({"min_gap_s": 3.0, "max_gap_s": 2.0}, {"pairs_per_clip": 0}, {"duplicate_bits": 64}):
        with pytest.raises(ChoiceError):
            ChoiceSettings(**wrong)
