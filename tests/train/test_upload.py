"""Copies of checkpoints: the manifest last, again after a failure, and never a reason to end a run."""

import logging
import threading
from pathlib import Path

import fsspec
import pytest

from physedit.train.config import ConfigError
from physedit.train.upload import Uploads, check_target


def checkpoint(root: Path, name: str) -> Path:
    folder = root / name
    (folder / "adapter").mkdir(parents=True)
    for file in ("adapter/weights.safetensors", "run_state.json", "manifest.json"):
        (folder / file).write_text(f"{name} {file}")
    return folder


def test_a_bucket_gets_every_file_and_the_manifest_last(tmp_path: Path, monkeypatch) -> None:
    system = fsspec.filesystem("memory")
    order: list[str] = []
    put = type(system).put_file

    def watched(self, source, place, **more):
        order.append(place)
        return put(self, source, place, **more)

    monkeypatch.setattr(type(system), "put_file", watched)
    uploads = Uploads("memory://bucket/runs")
    uploads.add(checkpoint(tmp_path, "step_00000004"))
    uploads.finish()
    assert uploads.waiting() == set()
    assert order[-1].endswith("step_00000004/manifest.json")
    assert len(order) == 3
    assert system.cat("/bucket/runs/step_00000004/adapter/weights.safetensors").startswith(b"step_00000004")


def test_a_copy_that_fails_is_made_with_the_next_one(tmp_path: Path) -> None:
    done: list[str] = []
    failures = [OSError("no route")]
    tried = threading.Event()

    def copy(folder: Path) -> None:
        tried.set()
        if failures:
            raise failures.pop()
        done.append(folder.name)

    uploads = Uploads("memory://x", copy)
    uploads.add(checkpoint(tmp_path, "step_00000004"))
    assert tried.wait(10)
    uploads.add(checkpoint(tmp_path, "step_00000008"))
    uploads.finish()
    assert sorted(set(done)) == ["step_00000004", "step_00000008"]
    assert uploads.waiting() == set()


def test_copies_that_are_never_made_are_named_at_the_end(tmp_path: Path, caplog) -> None:
    def copy(_folder: Path) -> None:
        raise OSError("no route")

    uploads = Uploads("memory://x", copy)
    uploads.add(checkpoint(tmp_path, "step_00000004"))
    with caplog.at_level(logging.ERROR):
        uploads.finish()
    assert "Not copied to memory://x: step_00000004" in caplog.text


@pytest.mark.parametrize(
    "target", [None, "memory://x", "hf://someone/adapters", "hf://someone/adapters/run", "runs/copy"]
)
def test_places_that_can_be_written_are_taken(target) -> None:
    check_target(target)


@pytest.mark.parametrize("target", ["hf://someone", "nowhere://x"])
def test_other_places_are_refused(target) -> None:
    with pytest.raises(ConfigError, match="upload_to"):
        check_target(target)
