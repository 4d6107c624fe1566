"""Checkpoints on disk: small, atomic, complete or ignored.

    checkpoints/step_00000400/
        adapter/pytorch_lora_weights.safetensors   what is evaluated and shipped (the average if there is one)
        optimizer.safetensors                      moments as PARAMETER/FIELD, and the live adapter under an average
        run_state.json  config.yaml
        manifest.json                              sizes and SHA-256 of all files; written last

A checkpoint is written into a hidden folder and renamed, so a name without the dot is always complete; the
manifest is checked on load all the same, because disks fail and people copy folders by hand. What is replaced or
removed is renamed first, so that a kill never leaves half of it under its name, and ``tidy`` puts it right.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from physedit.eval_hooks.files import file_digest, free_space, write_json, write_text
from physedit.models.adapter_file import AdapterFormat, read_adapter
from physedit.models.backbone import Backbone
from physedit.train.state import Progress

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the layout; raised when an older reader would misread it."""


FILES = ("adapter/pytorch_lora_weights.safetensors", "optimizer.safetensors", "run_state.json", "config.yaml")


class CheckpointIncomplete(ValueError):
    """A checkpoint lacks a file, or a file is not what its manifest says."""


class CheckpointNotSaved(OSError):
    """A checkpoint could not be written; the message names step, folder, cause and the space that is free there."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint holds.

    Attributes:
        progress: where the run stood.
        adapter: the weights to evaluate and ship, by the adapter's names, float32.
        live: the weights that training goes on from; equals ``adapter`` without an average.
        optimizer: tensors as ``PARAMETER/FIELD``.
    """

    progress: Progress
    adapter: Mapping[str, Tensor]
    live: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]


class CheckpointStore:
    """The ``checkpoints`` folder of one run. Only rank 0 writes."""

    def __init__(self, folder: Path, backbone: Backbone, adapter_format: AdapterFormat, config_yaml: str) -> None:
        self.folder = folder
        self._backbone = backbone
        self._format = adapter_format
        self._config_yaml = config_yaml

    def save(self, snapshot: Snapshot) -> Path:
        """Writes a checkpoint of ``snapshot`` and returns its folder; an existing one of that step is replaced.

        Raises:
            CheckpointNotSaved: the disk is full or not writable; older checkpoints are untouched.
        """
        final = self.folder / step_name(snapshot.progress.step)
        partial = self.folder / f".{final.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            self._fill(partial, snapshot)
        except BaseException as error:
            free = free_space(self.folder)  # before what there is so far goes
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, (OSError, SafetensorError)):
                raise CheckpointNotSaved(
                    f"The checkpoint of step {snapshot.progress.step} could not be written to {final}: {error}. {free}"
                ) from error
            raise
        replaced = self.folder / f".{final.name}{_REPLACED}"
        if final.exists():
            _remove(replaced)
            final.replace(replaced)
        partial.replace(final)
        _sync(self.folder)
        _remove(replaced)
        return final

    def tidy(self) -> None:
        """Ends what a kill cut off: puts back what was to be replaced, removes the rest. Only rank 0 calls it."""
        for path in sorted(self.folder.glob(".step_*")):
            if not _LEFT.fullmatch(path.name):
                continue
            final = self.folder / path.name[1:].removesuffix(_REPLACED)
            if path.name.endswith(_REPLACED) and not final.exists():
                path.replace(final)
            else:
                _remove(path)

    def newest(self) -> Path | None:
        """Returns the newest complete checkpoint, or None before the first; broken ones are named in the log.

        Raises:
            CheckpointIncomplete: there are checkpoints, but none is complete or one cannot be reached.
        """
        check_reachable(self.folder)
        folders = step_folders(self.folder)
        for path in reversed(folders):
            try:
                verify(path)
            except CheckpointIncomplete as error:
                logger.warning("%s It is passed over.", error)
            else:
                return path
        if folders:
            raise CheckpointIncomplete(
                f"None of the {len(folders)} checkpoints in {self.folder} can be resumed from; see the lines above. "
                f"Choose another run_name, or remove the folder to start over."
            )
        return None

    def set_aside_after(self, path: Path) -> None:
        """Renames the folders of later steps than ``path``: broken ones, whose steps will be saved again."""
        for later in step_folders(self.folder):
            if later.name > path.name:
                aside = self.folder / f"broken_{later.name}"
                _remove(aside)
                later.rename(aside)

    def load(self, path: Path) -> Snapshot:
        """Reads a checkpoint.

        Raises:
            CheckpointIncomplete: a file is missing or damaged.
        """
        verify(path)
        tensors = load_file(str(path / "optimizer.safetensors"))
        adapter = read_adapter(path / "adapter")
        live = {key.removeprefix(_LIVE): value for key, value in tensors.items() if key.startswith(_LIVE)}
        state = json.loads((path / "run_state.json").read_text(encoding="utf-8"))
        return Snapshot(
            progress=Progress(**state["progress"]),
            adapter=adapter,
            live=live or adapter,
            optimizer={key: value for key, value in tensors.items() if not key.startswith(_LIVE)},
        )

    def prune(self, keep: int, protected: Collection[int]) -> None:
        """Removes all but the ``keep`` newest checkpoints and those of the ``protected`` steps; other folders stay."""
        kept = {step_name(step) for step in protected}
        for path in step_folders(self.folder)[:-keep]:
            if path.name not in kept:
                removed = self.folder / f".{path.name}.removed"
                path.replace(removed)
                if removed.is_symlink():
                    removed.unlink()
                else:
                    shutil.rmtree(removed)

    def _fill(self, folder: Path, snapshot: Snapshot) -> None:
        (folder / "adapter").mkdir()
        self._backbone.save_adapter(snapshot.adapter, str(folder / "adapter"), self._format)
        live = {} if snapshot.live is snapshot.adapter else snapshot.live
        tensors = dict(snapshot.optimizer) | {_LIVE + name: value for name, value in live.items()}
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "optimizer.safetensors")
        write_json(folder / "run_state.json", {"format": FORMAT, "progress": snapshot.progress.to_json()})
        write_text(folder / "config.yaml", self._config_yaml)
        for path in (*_files_below(folder), folder / "adapter", folder):
            _sync(path)
        files = {str(path.relative_to(folder)): _describe(path) for path in _files_below(folder)}
        write_json(folder / "manifest.json", {"format": FORMAT, "files": files})


_LIVE = "live/"
_REPLACED = ".replaced"
_NAME = re.compile(r"step_\d{8}")
_LEFT = re.compile(rf"\.{_NAME.pattern}\.(partial|replaced|removed)")
"""What a kill may leave of a save or a removal."""


def step_name(step: int) -> str:
    """Returns the folder name of a step: eight digits, so that names sort as steps do."""
    return f"step_{step:08d}"


def step_folders(folder: Path) -> list[Path]:
    """Returns the checkpoint folders in the order of their steps; copies under names of another form are none."""
    return sorted(path for path in folder.glob("step_*") if _NAME.fullmatch(path.name) and path.is_dir())


def check_reachable(folder: Path) -> None:
    """Verifies that a run's ``checkpoints`` is a folder or absent, and that no link in its place or in it is broken.

    Raises:
        CheckpointIncomplete: a run that went on would begin anew, though its checkpoints may be elsewhere.
    """
    steps = [path for path in folder.glob("step_*") if _NAME.fullmatch(path.name)]
    for path in (folder, *sorted(steps)):
        if path.is_symlink() and not path.exists():
            raise CheckpointIncomplete(
                f"{path} is a link to {path.readlink()}, where nothing is, so the run cannot go on from what it saved. "
                f"Mount that disk or mend the link; remove the link to go on without it, or choose another run_name."
            )
        if path.exists() and not path.is_dir():
            raise CheckpointIncomplete(
                f"{path} is a file, but a folder is to be there. Move it away, or choose another run_name."
            )


def verify(path: Path) -> None:
    """Checks every file of a checkpoint against its manifest.

    Raises:
        CheckpointIncomplete: naming the file and what is wrong with it.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        version, files = manifest["format"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointIncomplete(f"Checkpoint {path} has no readable manifest.json ({error!r}).") from error
    if version != FORMAT:
        raise CheckpointIncomplete(f"Checkpoint {path} has layout version {version}; this release reads {FORMAT}.")
    for name in (*FILES, *files):
        file = path / name
        if not file.is_file():
            raise CheckpointIncomplete(f"Checkpoint {path} lacks {name}.")
        if _describe(file) != files.get(name):
            raise CheckpointIncomplete(f"Checkpoint {path}: {name} is not the file that was saved.")
    state = json.loads((path / "run_state.json").read_text(encoding="utf-8"))
    if step_name(int(state["progress"]["step"])) != path.name:
        raise CheckpointIncomplete(f"Checkpoint {path} is of step {state['progress']['step']}: its folder was renamed.")


def _describe(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def _remove(path: Path) -> None:
    """Removes a checkpoint folder, or the link to one that lies elsewhere, as far as that is possible."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    """Waits until a file or folder is on the disk: the manifest must not be there before what it lists."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
