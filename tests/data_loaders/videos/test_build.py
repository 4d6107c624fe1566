"""Whole sets from synthesised videos: what is in them, and that a build which was stopped yields the same files."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet
from tests.data_loaders.videos.conftest import MakeVideo
from tests.support.instruction_writer import FINE, GOOD
from tests.support.judge_server import JudgeServer, Reply, judge_server
from tests.support.videos import panning, rolling_ball, wall, with_ball

from physedit.data_loaders.mira400k import Mira400k
from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.videos import build as building
from physedit.data_loaders.videos.build import build
from physedit.data_loaders.videos.examine import PairKind, PictureFormat, PictureSettings
from physedit.data_loaders.videos.journal import BuildError, only_builder
from physedit.data_loaders.videos.request import BuildRequest
from physedit.data_loaders.vision_settings import VisionRequestError, VisionSettings, VisionUnavailable

SMALL = PictureSettings(min_side_px=200)


def request_of(videos: Path, out: Path, **changes) -> BuildRequest:
    return BuildRequest(**{"videos": (videos,), "out": out, "pictures": SMALL, **changes})


def seen_by(server: JudgeServer, **settings) -> VisionSettings:
    return VisionSettings("seer", base_url=server.base_url, longest_wait_s=0.05, **settings)


def rows_of(out: Path) -> list[dict]:
    return [row for file in sorted((out / "data").iterdir()) for row in parquet.read_table(file).to_pylist()]


def report_of(out: Path) -> dict:
    return json.loads((out / "report.json").read_text())


def files_of(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}


def pixels_of(cell: dict) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(cell["bytes"]))).astype(int)


def test_three_videos_yield_the_expected_pairs(three_videos: Path, tmp_path: Path, own_arrow_cache: None):
    out = tmp_path / "set"
    build(request_of(three_videos, out))
    rows = rows_of(out)
    assert [(row["clip_id"], row["source_frame"], row["target_frame"]) for row in rows] == [
        ("ball_0", 0, 14),
        ("ball_1", 6, 14),
        ("ball_2", 0, 6),
    ]
    assert [row["instruction"] for row in rows] == [f"Ball number {seed} rolls." for seed in range(3)]
    for seed, row in enumerate(rows):
        ball = rolling_ball(seed)
        for kind in ("source", "target"):
            assert np.abs(pixels_of(row[kind]) - ball[row[f"{kind}_frame"]]).mean() < 6
        assert row["source"]["path"].endswith("-source.jpg")
    report = report_of(out)
    assert (report["num_videos"], report["num_pairs"], report["dropped"]) == (3, 3, {})
    assert sorted(files_of(out)) == ["data/train-00000-of-00001.parquet", "dropped.jsonl", "report.json"]
    loaded = Mira400k(path=str(out), min_frames_apart=7)
    assert loaded.sample(0, PromptLevel.SUPERFICIAL).instruction == "Ball number 0 rolls."
    assert len(loaded) == 2


def test_what_was_dropped_is_counted_by_reason(three_videos: Path, make_video: MakeVideo, tmp_path: Path):
    make_video("copy_of_0.mkv", rolling_ball(0), "The same again.")
    make_video("pan.mkv", panning(), "A wall.")
    make_video("silent.mkv", rolling_ball(7))
    make_video("small.mkv", [frame[:100] for frame in rolling_ball(8)], "Small.")
    (three_videos / "broken.mp4").write_bytes(b"no video")
    build(request_of(three_videos, tmp_path / "set"))
    report = report_of(tmp_path / "set")
    assert report["num_pairs"] == 3
    assert report["dropped"] == {
        "pair": {"near_duplicate": 1, "no_caption": 1},
        "stretch": {"camera_moves": 1},
        "video": {"damaged": 1, "too_small": 1},
    }
    losses = [json.loads(line) for line in (tmp_path / "set" / "dropped.jsonl").read_text().splitlines()]
    assert len(losses) == 5
    assert "broken.mp4 cannot be decoded" in losses[0]["message"]
    (pan,) = (loss for loss in losses if loss["video"] == "pan.mkv")
    assert (pan["first_frame"], pan["last_frame"]) == (0, 23)


def test_more_processes_yield_the_same_files(three_videos: Path, tmp_path: Path):
    for name, num_workers in (("one", 1), ("two", 2)):
        build(request_of(three_videos, tmp_path / name, num_workers=num_workers))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


@pytest.mark.parametrize(
    ("stage", "after"), [("examine", 1), ("extract", 1), ("write_instruction", 1), ("_publish", 0), ("write_report", 0)]
)
def test_a_build_that_stopped_anywhere_goes_on_to_the_same_files(
    three_videos: Path, tmp_path: Path, monkeypatch, stage: str, after: int
):
    with judge_server(always=FINE) as server:
        build(request_of(three_videos, tmp_path / "whole", vision=seen_by(server)))
        num_questions = len(server.asked)
        monkeypatch.setattr(building, stage, stopping(getattr(building, stage), after))
        with pytest.raises(RuntimeError, match="stopped"):
            build(request_of(three_videos, tmp_path / "stopped", vision=seen_by(server, max_parallel=1)))
        monkeypatch.undo()
        assert not (tmp_path / "stopped" / "report.json").exists()
        build(request_of(three_videos, tmp_path / "stopped", vision=seen_by(server)))
        assert len(server.asked) == 2 * num_questions, "no question is asked twice"
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "stopped")


def stopping(work: Callable, after: int) -> Callable:
    """Does its work ``after`` times, and stops in the next."""
    calls = []

    def stop(*arguments):
        calls.append(1)
        if len(calls) > after:
            raise RuntimeError("stopped")
        return work(*arguments)

    return stop


def test_a_killed_process_goes_on_to_the_same_files(three_videos: Path, tmp_path: Path):
    with judge_server(always=Reply(text=GOOD, delay_s=0.3)) as server:
        build(request_of(three_videos, tmp_path / "whole", vision=seen_by(server)))
        arguments = [str(three_videos), "--min-side", "200", "--model", "seer", "--base-url", server.base_url]
        killed = run_verb(*arguments, "--parallel", "1", "--out", str(tmp_path / "killed"))
        journal = tmp_path / "killed" / ".work" / "instructions.jsonl"
        deadline = time.monotonic() + 60
        while not (journal.exists() and journal.read_bytes().count(b"\n") == 2):
            assert killed.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        with journal.open("a") as stream:
            stream.write('{"key": "cut off')
        build(request_of(three_videos, tmp_path / "killed", vision=seen_by(server)))
        # The third question was under way when the process was killed.
        assert 6 <= len(server.asked) <= 7
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "killed")
    assert len(rows_of(tmp_path / "killed")) == 3


def run_verb(*arguments: str) -> subprocess.Popen:
    code = "import sys, typer; from physedit.train.cli_data import data_app; app = typer.Typer(); "
    code += "app.add_typer(data_app, name='data'); app(['data', 'from-videos', *sys.argv[1:]])"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL)


def test_a_finished_set_is_left_as_it_is_and_another_is_refused(
    three_videos: Path, tmp_path: Path, make_video: MakeVideo
):
    out = tmp_path / "set"
    build(request_of(three_videos, out))
    before = files_of(out)
    build(request_of(three_videos, out))
    assert files_of(out) == before
    with pytest.raises(BuildError, match="other settings"):
        build(request_of(three_videos, out, shard_mb=1))
    make_video("more.mkv", rolling_ball(5), "One more.")
    with pytest.raises(BuildError, match="other videos"):
        build(request_of(three_videos, out))
    assert files_of(out) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(BuildError, match="not empty"):
        build(request_of(three_videos, tmp_path / "notes"))


def test_two_builds_in_one_folder_are_kept_apart(three_videos: Path, tmp_path: Path):
    with only_builder(tmp_path / "set" / ".work"), pytest.raises(BuildError, match="Another process"):
        build(request_of(three_videos, tmp_path / "set"))


def test_shards_are_bounded_and_pictures_may_be_lossless(three_videos: Path, tmp_path: Path, monkeypatch):
    write_shards = building.shards.write_shards
    monkeypatch.setattr(building.shards, "write_shards", lambda *a: write_shards(*a[:3], 1))
    pictures = PictureSettings(PictureFormat.PNG, min_side_px=200, long_side_px=240)
    build(request_of(three_videos, tmp_path / "set", pictures=pictures))
    names = sorted(file.name for file in (tmp_path / "set" / "data").iterdir())
    assert names == [f"train-0000{i}-of-00003.parquet" for i in range(3)]
    assert [pixels_of(row["source"]).shape for row in rows_of(tmp_path / "set")] == [(180, 240, 3)] * 3
    assert all(row["source"]["bytes"].startswith(b"\x89PNG") for row in rows_of(tmp_path / "set"))


def test_first_and_last_frames_make_a_set_like_pica100k(three_videos: Path, tmp_path: Path, own_arrow_cache: None):
    out = tmp_path / "set"
    with judge_server(always=FINE) as server:
        build(request_of(three_videos, out, kind=PairKind.FIRST_LAST, vision=seen_by(server)))
    assert [asked.num_pictures for asked in server.asked] == [2] * 3
    (row, *_) = rows_of(out)
    assert list(row) == [
        "superficial_prompt",
        "intermediate_prompt",
        "explicit_prompt",
        "law",
        "op",
        "src_img",
        "tgt_img",
    ]
    loaded = Pica100k(path=str(out), laws=["Causality"])
    assert len(loaded) == 3
    sample = loaded.sample(1, PromptLevel.INTERMEDIATE)
    assert sample.instruction.startswith("Roll the ball to the right along")
    assert (sample.law, sample.operation) == ("Causality", "move")
    first, last = rolling_ball(1)[0], rolling_ball(1)[-1]
    for decoded, drawn in ((sample.source, first), (sample.target, last)):
        assert np.abs(decoded.permute(1, 2, 0).numpy().astype(int) - drawn).mean() < 6
    report = report_of(out)["instructions"]
    assert report == {
        "from": "seer",
        "prompt_version": 1,
        "num_requests": 3,
        "num_input_tokens": 3000,
        "num_output_tokens": 300,
    }


def test_pairs_with_written_instructions_keep_caption_and_levels(three_videos: Path, tmp_path: Path):
    with judge_server(always=FINE) as server:
        build(request_of(three_videos, tmp_path / "set", vision=seen_by(server)))
    row = rows_of(tmp_path / "set")[0]
    assert row["instruction"] == row["superficial_prompt"] == "Roll the ball to the right."
    assert row["caption"] == "Ball number 0 rolls."
    assert row["explicit_prompt"].startswith("Roll the red ball")
    assert (row["law"], row["op"], row["clip_id"]) == ("Causality", "move", "ball_0")
    question = json.dumps(server.asked[0].body)
    assert "Ball number 0 rolls." in question


def test_pairs_that_get_no_instruction_are_counted(three_videos: Path, tmp_path: Path):
    prose = [Reply(text="It rolls.")] * 3
    with judge_server([Reply(refusal="I would rather not."), *prose], FINE) as server:
        build(request_of(three_videos, tmp_path / "set", vision=seen_by(server, max_parallel=1)))
    report = report_of(tmp_path / "set")
    assert report["num_pairs"] == 1
    assert report["dropped"] == {"pair": {"instruction_refused": 1, "instruction_unusable": 1}}
    assert report["instructions"]["num_requests"] == 5
    assert "I would rather not." in (tmp_path / "set" / "dropped.jsonl").read_text()


def test_a_server_that_refuses_is_asked_once_and_nothing_examined_is_lost(
    three_videos: Path, tmp_path: Path, monkeypatch
):
    one_picture = Reply(status=400, error={"message": "At most 1 image(s) may be provided in one request."})
    with judge_server(always=one_picture) as server:
        with pytest.raises(VisionRequestError, match="At most 1 image"):
            build(request_of(three_videos, tmp_path / "set", vision=seen_by(server)))
        assert len(server.asked) == 1
        server.always = FINE
        monkeypatch.setattr(building, "examine", None)
        build(request_of(three_videos, tmp_path / "set", vision=seen_by(server)))
    assert len(rows_of(tmp_path / "set")) == 3


def test_a_busy_server_is_waited_for_and_a_dead_one_keeps_what_it_answered(three_videos: Path, tmp_path: Path):
    busy = Reply(status=429, error={"message": "slow"}, headers={"Retry-After": "0.1"})
    with judge_server([FINE, busy, FINE], Reply(status=503, error={"message": "away"})) as server:
        settings = seen_by(server, patience_s=0.4, max_parallel=1)
        with pytest.raises(VisionUnavailable, match="away"):
            build(request_of(three_videos, tmp_path / "set", vision=settings))
        num_before = len(server.asked)
        server.always = FINE
        build(request_of(three_videos, tmp_path / "set", vision=settings))
        assert len(server.asked) == num_before + 1
    assert report_of(tmp_path / "set")["num_pairs"] == 3


def test_a_server_that_is_not_there_is_noticed_before_a_video_is_decoded(
    three_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with judge_server(always=FINE) as server:
        settings = seen_by(server, patience_s=0.2, max_parallel=1)
    monkeypatch.setattr(building, "examine", None)
    with pytest.raises(VisionRequestError, match=r"Nobody answers for seer at http.*Start the server"):
        build(request_of(three_videos, tmp_path / "set", vision=settings))
    assert not (tmp_path / "set").exists()


def test_a_build_with_all_its_answers_needs_no_server(three_videos: Path, tmp_path: Path, monkeypatch):
    with judge_server(always=FINE) as server:
        settings = seen_by(server, patience_s=0.2)
        monkeypatch.setattr(building, "_publish", stopping(building._publish, 0))
        with pytest.raises(RuntimeError, match="stopped"):
            build(request_of(three_videos, tmp_path / "set", vision=settings))
    monkeypatch.undo()
    build(request_of(three_videos, tmp_path / "set", vision=settings))
    assert report_of(tmp_path / "set")["num_pairs"] == 3


def test_a_finished_set_without_its_files_is_not_called_complete(three_videos: Path, tmp_path: Path):
    build(request_of(three_videos, tmp_path / "set"))
    (shard,) = (tmp_path / "set" / "data").iterdir()
    shard.unlink()
    with pytest.raises(BuildError, match=r"1 of its 1 files are gone \(data/train-00000-of-00001.parquet\)"):
        build(request_of(three_videos, tmp_path / "set"))


def test_builds_that_cannot_come_to_anything_are_refused(tmp_path: Path, make_video: MakeVideo):
    silent = make_video("silent.mkv", rolling_ball(0))
    refused = {
        "no file or folder": request_of(tmp_path / "nowhere", tmp_path / "set"),
        "holds no video": request_of(empty_folder(tmp_path), tmp_path / "set"),
        "None of the 1 video": request_of(silent, tmp_path / "set"),
        "--model": request_of(silent, tmp_path / "set", kind=PairKind.FIRST_LAST),
        "is a file": request_of(make_video("said.mkv", rolling_ball(0), "Said."), silent),
    }
    for words, request in refused.items():
        with pytest.raises(BuildError, match=words):
            build(request)
    assert not (tmp_path / "set").exists()
    still = make_video("still.mkv", [wall(0)] * 24, "Nothing happens.")
    with pytest.raises(BuildError, match="too_little_change"):
        build(request_of(still, tmp_path / "set"))
    assert not (tmp_path / "set" / "report.json").exists()


def test_a_file_name_that_no_set_can_hold_is_refused(make_video: MakeVideo, tmp_path: Path):
    path = make_video("a.mkv", rolling_ball(0))
    odd = path.rename(path.with_name("\udcff.mkv"))
    with pytest.raises(BuildError, match="not UTF-8"):
        build(request_of(odd, tmp_path / "set"))


def empty_folder(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


META = """index,video_id,start_frame,end_frame,short_caption,dense_caption,fps
000000000001_abc-000001,abc,0,16,A ball rolls.,long,12
000000000001_abc-000002,abc,16,32,Another one.,long,12
000000000001_abc-000003,abc,8,24,Across the cut.,long,12
000000000001_abc-000004,abc,4800,4848,After the end.,long,12
000000000002_xyz-000001,xyz,0,16,Not downloaded.,long,12
"""


def test_a_meta_csv_names_stretches_and_captions(make_video: MakeVideo, tmp_path: Path):
    video = make_video("000000000001_abc.mkv", [*rolling_ball(2), *rolling_ball(3)])
    (tmp_path / "meta.csv").write_text(META)
    build(request_of(video.parent, tmp_path / "set", meta=tmp_path / "meta.csv"))
    rows = rows_of(tmp_path / "set")
    assert [(row["clip_id"][-1], row["instruction"]) for row in rows] == [("1", "A ball rolls."), ("2", "Another one.")]
    assert rows[0]["target_frame"] < 16 <= rows[1]["source_frame"] < rows[1]["target_frame"] < 32
    dropped = report_of(tmp_path / "set")["dropped"]
    assert dropped["clip"] == {"no_video_file": 1}
    assert dropped["stretch"]["no_frames"] == 1
    assert np.abs(pixels_of(rows[1]["source"]) - rolling_ball(3)[rows[1]["source_frame"] - 16]).mean() < 6


def test_one_row_of_a_pair_is_not_repeated_by_an_overlapping_row(make_video: MakeVideo, tmp_path: Path):
    video = make_video("v.mkv", [with_ball(wall(4), 40 + 5 * i) for i in range(48)])
    lines = ["index,video_id,start_frame,end_frame,short_caption,fps"]
    lines += [f"x_v-{i},v,{start},{start + 36},Rolling {i}.,12" for i, start in enumerate((0, 3, 6))]
    (tmp_path / "meta.csv").write_text("\n".join(lines))
    build(request_of(video, tmp_path / "set", meta=tmp_path / "meta.csv"))
    report = report_of(tmp_path / "set")
    assert report["num_pairs"] + report["dropped"]["pair"]["near_duplicate"] == 3
