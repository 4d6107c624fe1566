"""What is to be edited into a folder, and the files of that folder while it is.

A journal for each rank proves by its hash which pictures are done; the manifest takes their place at the end.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from physedit.data_loaders.sample import PromptLevel
from physedit.eval_hooks.files import (
    DamagedFileError,
    encode_png,
    file_digest,
    link_or_copy,
    read_json_lines,
    write_bytes,
)
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem
from physedit.eval_hooks.picabench.folder import INPUTS, OUTPUTS, TARGETS, picture_name, write_meta_info
from physedit.eval_hooks.picabench.inputs import input_picture
from physedit.eval_hooks.picabench.manifest import Manifest, read_manifest, write_manifest
from physedit.models.backbone import Backbone

log = logging.getLogger(__name__)

TIME_IS_UP = ".time_is_up"
"""In the folder: the time budget is used up; not there before and after."""


@dataclass(frozen=True, slots=True)
class EditSettings:
    """How pictures are edited.

    Attributes:
        seed: with hook and item it decides the noise, so base and adapter start from the same.
        num_steps: denoising steps; None for the editor's own.
        guidance: guidance scale of the pipeline; None for the editor's own.
        level: which instruction is used.
        batch_size: pictures edited at once, if at one size.
        time_budget_s: no batch begins after so many seconds, and what is left stays unedited; None for no end.
        keep_encoded: keep what the editor's encoders make of the items on the disk, for every later checkpoint.
    """

    seed: int
    num_steps: int | None
    guidance: float | None
    level: PromptLevel
    batch_size: int
    time_budget_s: float | None = None
    keep_encoded: bool = False

    def for_editor(self, backbone: Backbone) -> "EditSettings":
        """Returns the settings with the editor's own number of steps and guidance where none are given."""
        return replace(
            self,
            num_steps=backbone.default_num_steps if self.num_steps is None else self.num_steps,
            guidance=backbone.default_guidance if self.guidance is None else self.guidance,
        )


@dataclass(frozen=True, slots=True)
class EditTask:
    """What to edit into which folder.

    Attributes:
        folder: receives pictures, ``meta_info.json`` and ``manifest.json``.
        items: the whole benchmark in use, not this rank's share.
        settings: how.
        hook: name of the hook, part of the noise's seed.
        key: hash of all that decides the pictures; pictures of another key are never kept.
        described: what the key was made of, for the manifest.
        twin: a finished folder with the same inputs, to link instead of storing them twice.
    """

    folder: Path
    items: Sequence[BenchmarkItem]
    settings: EditSettings
    hook: str
    key: str
    described: Mapping[str, object]
    twin: Path | None = None


def clear_stale(task: EditTask) -> None:
    """Removes what another key made: its pictures must not be taken for this one's."""
    task.folder.mkdir(parents=True, exist_ok=True)
    (task.folder / TIME_IS_UP).unlink(missing_ok=True)
    manifest = _manifest_of_side(task.folder)
    keys = {manifest.key} if manifest else set()
    for journal in journals(task.folder):
        keys |= {str(row["key"]) for row in _journal_rows(journal)}
    entries = [entry for entry in task.folder.iterdir() if not entry.name.startswith(".")]
    if keys == {task.key} or not entries:
        return
    log.warning("%s holds evaluations made by other weights or settings; they are replaced", task.folder)
    for entry in entries:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def journals(folder: Path) -> list[Path]:
    """Returns the files that prove what is done while a folder is not complete."""
    return sorted(folder.glob("generated.*.jsonl"))


def _journal_rows(journal: Path) -> list[dict[str, object]]:
    return read_json_lines(journal, required=("key", "file", "sha256"))


def _manifest_of_side(folder: Path) -> Manifest | None:
    """Returns the manifest, or None without one that can be read: the side is then not finished."""
    try:
        return read_manifest(folder)
    except DamagedFileError:
        return None


def proven_files(task: EditTask) -> dict[str, str]:
    """Returns the hashes by relative path of files that are there and have the recorded hash."""
    manifest = _manifest_of_side(task.folder)
    recorded = dict(manifest.files) if manifest else {}
    for journal in journals(task.folder):
        for row in _journal_rows(journal):
            recorded[str(row["file"])] = str(row["sha256"])
    return {
        name: digest
        for name, digest in recorded.items()
        if (task.folder / name).exists() and file_digest(task.folder / name) == digest
    }


def is_done(item: BenchmarkItem, proven: Mapping[str, str]) -> bool:
    """True if input and output of an item are among the proven files."""
    name = picture_name(item.index)
    return f"{INPUTS}/{name}" in proven and f"{OUTPUTS}/{name}" in proven


def store(task: EditTask, item: BenchmarkItem, edited: Tensor) -> list[dict[str, object]]:
    """Writes an item's pictures and returns the lines that prove them.

    Args:
        task: whose folder it is.
        item: what was edited.
        edited: uint8 ``[3, h, w]``.
    """
    name = picture_name(item.index)
    write_bytes(task.folder / OUTPUTS / name, encode_png(edited))
    store_input(task, item)
    if item.target is not None and task.twin is None:
        write_bytes(task.folder / TARGETS / name, item.target)
    return [
        {"key": task.key, "file": file, "sha256": file_digest(task.folder / file)}
        for file in (f"{INPUTS}/{name}", f"{OUTPUTS}/{name}")
    ]


def store_input(task: EditTask, item: BenchmarkItem) -> None:
    """Writes the picture that an item's editor is given, linked to the twin's where it has one."""
    name = picture_name(item.index)
    twin = task.twin / INPUTS / name if task.twin is not None else None
    if twin is not None and twin.exists():
        link_or_copy(twin, task.folder / INPUTS / name)
    else:
        write_bytes(task.folder / INPUTS / name, encode_png(input_picture(item)))


def complete(task: EditTask, *, may_lack: bool = False) -> None:
    """Writes what describes the pictures, the manifest last.

    Args:
        task: whose folder it is.
        may_lack: some items may not be edited, which the manifest tells.

    Raises:
        FileNotFoundError: an edit is not there, and none may lack.
    """
    proven = proven_files(task)
    missing = [item.index for item in task.items if not is_done(item, proven)]
    (task.folder / TIME_IS_UP).unlink(missing_ok=True)
    if missing and not may_lack:
        raise FileNotFoundError(
            f"{task.folder}: the edits of items {missing[:5]} are not there although every rank has finished. "
            "All ranks must see the same folder: put the run on a file system that they share."
        )
    edited = [item for item in task.items if is_done(item, proven)]
    for index in missing:  # what a kill left unproven is no picture of ours
        (task.folder / OUTPUTS / picture_name(index)).unlink(missing_ok=True)
    write_meta_info(task.folder, edited, task.settings.level)
    files = {f"{part}/{picture_name(item.index)}" for part in (INPUTS, OUTPUTS) for item in edited}
    kept = {name: digest for name, digest in sorted(proven.items()) if name in files}
    write_manifest(task.folder, Manifest(task.key, task.described, kept, tuple(missing)))
    for journal in journals(task.folder):
        journal.unlink()
