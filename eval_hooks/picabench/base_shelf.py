"""Evaluations of base models that many runs share: pictures by their key, answers by key and judge."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from physedit.eval_hooks.files import DamagedFileError, digest_of, link_or_copy, read_json_lines
from physedit.eval_hooks.picabench.answer_rows import ANSWER_KEYS
from physedit.eval_hooks.picabench.folder import INPUTS, OUTPUTS, TARGETS
from physedit.eval_hooks.picabench.judging import ITEMS_FILE
from physedit.eval_hooks.picabench.manifest import read_whole_manifest
from physedit.eval_hooks.picabench.measure import CONSISTENCY_FILE, MEASURED_KEYS


class BaseShelf:
    """Where the base of one key and one judge is kept. Another judge finds the pictures and answers them anew."""

    def __init__(self, root: Path, key: str, judge_id: str) -> None:
        """Names the places below ``root``; touches nothing."""
        self._key = key
        self._pictures = root / key
        self._answers = root / digest_of({"pictures": key, "judge": judge_id})

    def fetch_into(self, folder: Path) -> None:
        """Puts the shelf's base into ``folder``, unless the folder has it or the shelf does not."""
        self._clear_damaged()
        manifest = read_whole_manifest(folder)
        if (manifest is not None and manifest.key == self._key) or not self._pictures.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        for place in (self._pictures, self._answers):
            for file in place.rglob("*"):
                if file.is_file():
                    link_or_copy(file, folder / file.relative_to(place))

    def publish(self, folder: Path) -> None:
        """Puts the finished base of ``folder`` on the shelf, unless it is there."""
        pictures = [
            f"{part}/{file.name}"
            for part in (INPUTS, OUTPUTS, TARGETS)
            for file in sorted((folder / part).glob("*.png"))
        ]
        _place(folder, self._pictures, [*pictures, "meta_info.json", "manifest.json"])
        _place(folder, self._answers, [ITEMS_FILE, CONSISTENCY_FILE])

    def _clear_damaged(self) -> None:
        """Removes what cannot be used any more, so that the next base that is published takes its place."""
        if read_whole_manifest(self._pictures) is None:
            shutil.rmtree(self._pictures, ignore_errors=True)
        if self._answers.exists() and not _are_answers(self._answers):
            shutil.rmtree(self._answers, ignore_errors=True)


def _are_answers(place: Path) -> bool:
    try:
        read_json_lines(place / ITEMS_FILE, ANSWER_KEYS)
        read_json_lines(place / CONSISTENCY_FILE, MEASURED_KEYS)
    except (FileNotFoundError, DamagedFileError):
        return False
    return True


def _place(folder: Path, place: Path, names: Sequence[str]) -> None:
    """Links the files all at once, so that another run finds all of them or none."""
    if place.exists():
        return
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    for name in names:
        link_or_copy(folder / name, part / name)
    try:
        part.rename(place)
    except OSError:
        if not place.exists():  # another run may have been first with the same files
            raise
        shutil.rmtree(part)
