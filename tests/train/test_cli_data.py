"""``physedit data``, as a user types it."""

import json
from pathlib import Path

import pytest
import typer
from tests.support.judge_server import Reply, judge_server
from tests.support.videos import rolling_ball, write_video
from typer.testing import CliRunner

from physedit.data_loaders.videos.journal import BuildError
from physedit.data_loaders.vision_settings import VisionSettings
from physedit.train import cli_data
from physedit.train.cli_data import data_app
from physedit.train.config import ConfigError
from physedit.train.guarded import guarded

app = typer.Typer()
app.add_typer(data_app, name="data")


def run(*arguments: object):
    result = CliRunner().invoke(app, ["data", "from-videos", *map(str, arguments), "--min-side", "200"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = write_video(tmp_path / "ball.mkv", rolling_ball(0))
    path.with_suffix(".txt").write_text("A ball rolls.")
    return path


def test_a_set_is_made_and_said_to_be(video: Path, tmp_path: Path):
    (tmp_path / "broken.mp4").write_bytes(b"")
    said = run(video, tmp_path / "broken.mp4", "--out", tmp_path / "set")
    assert said.exit_code == 0
    assert f"1 pair(s) from 2 video(s) in {tmp_path / 'set' / 'data'}" in said.stdout
    assert "dropped of videos: 1 damaged" in said.stdout
    again = run(video, tmp_path / "broken.mp4", "--out", tmp_path / "set", "--json")
    assert json.loads(again.stdout) == json.loads((tmp_path / "set" / "report.json").read_text())


def test_options_without_effect_are_refused(video: Path, tmp_path: Path):
    cases = {
        "--base-url": ["--base-url", "http://x/v1"],
        "--parallel 3 has no effect with no --model": ["--parallel", "3"],
        "--caption-column": ["--caption-column", "dense_caption"],
        "--min-gap 2.0 has no effect with --first-last": ["--first-last", "--model", "seer", "--min-gap", "2"],
    }
    for words, options in cases.items():
        with pytest.raises(ConfigError, match=words):
            run(video, "--out", tmp_path / "set", *options)
    with pytest.raises(BuildError, match="--model"):
        run(video, "--out", tmp_path / "set", "--first-last")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("name", ["none.mp4", "empty.mp4"])
def test_what_cannot_be_used_ends_in_one_paragraph(tmp_path: Path, capfd, name: str):
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "empty.txt").write_text("Nothing.")
    command = ["data", "from-videos", str(tmp_path / name), "--out", str(tmp_path / "set")]
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: app(command, standalone_mode=False))
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert name in said
    assert "Traceback" not in said


def test_a_server_that_is_away_ends_in_one_paragraph(video: Path, tmp_path: Path, capfd, monkeypatch):
    with judge_server(always=Reply(status=503, error={"message": "loading"})) as server:
        impatient = VisionSettings("seer", base_url=server.base_url, patience_s=0.1)
        monkeypatch.setattr(cli_data, "_vision", lambda *_options: impatient)
        command = ["data", "from-videos", str(video), "--min-side", "200", "--out", str(tmp_path / "set")]
        with pytest.raises(SystemExit) as ended:
            guarded(lambda: app(command, standalone_mode=False))
    assert ended.value.code == 1
    said = " ".join(capfd.readouterr().err.split())
    assert "loading" in said
    assert "run the same command again" in said
