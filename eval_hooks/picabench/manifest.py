"""What ties every picture of a folder to the settings that made it, by its hash: ``manifest.json``, written last."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError
from physedit.eval_hooks.files import DamagedFileError, file_digest, read_json, write_json
from physedit.eval_hooks.picabench.folder import MANIFEST, OUTPUTS, read_meta_info


class OutputsMismatch(ValueError):
    """The pictures in a folder are not the ones its manifest lists."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What made the pictures of a folder.

    Attributes:
        key: hash of everything that decides the pictures.
        settings: what the key was made of, in words.
        files: SHA-256 of every input and output picture by relative path.
        not_edited: items of the benchmark in use that the time budget left out, by index.
    """

    key: str
    settings: Mapping[str, object]
    files: Mapping[str, str]
    not_edited: tuple[int, ...] = ()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes ``manifest.json``: the folder is complete from here on."""
    record = {"key": manifest.key, "settings": manifest.settings, "not_edited": list(manifest.not_edited)}
    write_json(folder / MANIFEST, {**record, "files": manifest.files})


def read_manifest(folder: Path) -> Manifest | None:
    """Returns the manifest, or None if the folder's edits are not finished.

    Raises:
        DamagedFileError: the file is none that ``write_manifest`` wrote.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    record = read_json(path)
    key, settings, files = (record.get(name) for name in ("key", "settings", "files"))
    if not isinstance(key, str) or not isinstance(settings, dict) or not isinstance(files, dict):
        raise DamagedFileError(
            f"{path} is damaged: expected key, settings and files, found {', '.join(record) or 'nothing'}. Delete the "
            f"folder {folder} to edit and judge anew."
        )
    not_edited = record.get("not_edited", [])
    return Manifest(
        key=key,
        settings=settings,
        files=files,
        not_edited=tuple(not_edited) if isinstance(not_edited, list) else (),
    )


def read_whole_manifest(folder: Path) -> Manifest | None:
    """Returns the manifest, or None if the edits are not finished or anything that describes them is damaged."""
    try:
        manifest = read_manifest(folder)
        described = {item.output_path for item in read_meta_info(folder)} if manifest else set()
    except (DamagedFileError, DatasetLayoutError, DatasetRowError):
        return None
    return manifest if manifest and _outputs(manifest) <= described else None


def not_edited(folder: Path) -> tuple[int, ...]:
    """Returns the items that a time budget left out, by index; none if the edits are not finished."""
    manifest = read_whole_manifest(folder)
    return () if manifest is None else manifest.not_edited


def has_its_pictures(folder: Path) -> bool:
    """Tells whether every picture that a whole manifest lists is there and has the listed hash."""
    manifest = read_whole_manifest(folder)
    return manifest is not None and all(_digest(folder / name) == digest for name, digest in manifest.files.items())


def verify_outputs(folder: Path, manifest: Manifest) -> frozenset[str]:
    """Returns the relative paths of pictures whose bytes differ from the manifest's hash.

    Raises:
        OutputsMismatch: an output is missing, or one lies there that the manifest does not list.
    """
    listed = _outputs(manifest)
    present = {f"{OUTPUTS}/{file.name}" for file in (folder / OUTPUTS).glob("*.png")}
    missing, unknown = sorted(listed - present), sorted(present - listed)
    if missing or unknown:
        raise OutputsMismatch(
            f"{folder}: {len(missing)} missing and {len(unknown)} unknown outputs. "
            f"Missing: {', '.join(missing[:5]) or 'none'}. Unknown: {', '.join(unknown[:5]) or 'none'}. "
            "Pictures were renamed, removed or added after editing; delete the folder to edit anew."
        )
    return frozenset(name for name, digest in manifest.files.items() if _digest(folder / name) != digest)


def _outputs(manifest: Manifest) -> set[str]:
    return {name for name in manifest.files if name.startswith(f"{OUTPUTS}/")}


def _digest(path: Path) -> str | None:
    return file_digest(path) if path.exists() else None
