"""Checks of where files go: the run folder and its clock, free disk, the encoded cache."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from physedit.train.doctor.finding import Finding, error, ok, refusal, warning
from physedit.train.run_folder import check_is_free, check_run_folder, run_folder_of
from physedit.train.upload import check_target

PROBE = ".physedit_doctor_"
"""How the names of files begin that are made to try a folder; they are removed at once."""
RECORDS_BYTES = 64 * 2**20
"""Ours: room for metrics, logs and the report of a run."""
FLOAT32_BYTES = 4
COPIES_IN_CHECKPOINT = 3
"""Adapter and two moments of Adam: a checkpoint over its adapter was measured as 3.00 (README)."""
_NUM_PER_RANK: Mapping[str, Mapping[str, int]] = {
    "FluxKontext": {
        "attention": 1634304, "attention_mlp": 4085760, "image_stream": 3035136, "all_linear": 5421440,
    },
    "QwenImageEdit": {
        "attention": 2936832, "attention_mlp": 6592512, "image_stream": 3317760, "all_linear": 9204608,
    },
}  # fmt: skip
"""Adapter parameters of the released editors for each unit of rank, counted on transformers of their sizes."""
_WARN_SKEW_S, _MOST_SKEW_S = 2.0, 60.0
"""Ours. A run tells new requests (SAVE, STOP) from old ones by file times; TLS fails on clocks that are far off."""
_EARLIEST_YEAR = 2026


def check_run_place(config: DictConfig) -> Finding:
    """Verifies that the run may use its folder, and that its place can be written; leaves nothing there."""
    folder = run_folder_of(config)
    try:
        check_target(config.checkpoint.upload_to)
        check_run_folder(config)
        if folder.is_dir():
            check_is_free(folder)
    except (ValueError, OSError) as refused:
        return refusal("run folder", refused)
    return _written("run folder", folder, "Choose another output_root, or mend the rights of that folder.")


def check_encode_place(config: DictConfig) -> Finding:
    """Verifies that the encoded cache can be written, where the run has one."""
    if config.encode.mode != "cached":
        return ok("encoded cache", "not used: encode=live")
    place = Path(str(config.encode.folder))
    if not config.encode.write_missing and not place.is_dir():
        remedy = "Fill it with physedit encode, or set encode.write_missing=true."
        return error("encoded cache", f"there is no {place}, and encode.write_missing=false", remedy)
    if place.is_dir() and not config.encode.write_missing:
        return ok("encoded cache", f"{place} is only read")
    return _written("encoded cache", place, "Choose another encode.folder, or mend the rights of that folder.")


def check_clock(config: DictConfig) -> Finding:
    """Compares the time of a file that is written now with the system's."""
    place = nearest(run_folder_of(config))
    try:
        skew_s = skew_of(place)
    except OSError:
        return warning("clock", f"not compared: {place} cannot be written", "Mend the run folder first.")
    found = f"file times in {place} are {skew_s:+.1f} s off this machine's clock"
    remedy = "Set the clocks of this machine and of the file server by NTP."
    if time.gmtime().tm_year < _EARLIEST_YEAR:
        return error("clock", f"the system's clock says {time.strftime('%Y-%m-%d', time.gmtime())}", remedy)
    if abs(skew_s) > _MOST_SKEW_S:
        return error("clock", found, remedy)
    return warning("clock", found, remedy) if abs(skew_s) > _WARN_SKEW_S else ok("clock", found)


def check_disk(config: DictConfig, num_parameters: int | None) -> Finding:
    """Verifies that the checkpoints that are kept at once fit where the run goes.

    Args:
        config: of the run.
        num_parameters: of the adapter; None where the editor was not loaded: that of the released ones is taken.
    """
    place = nearest(run_folder_of(config))
    free = shutil.disk_usage(place).free
    count = num_parameters if num_parameters is not None else _released(config)
    if count is None:
        return ok("disk", f"{shown(free)} free in {place}; checkpoints were not estimated")
    # The newest, the best ones, and one that is being written.
    kept = int(config.checkpoint.keep) + int(config.checkpoint.keep_best) + 1
    copies = COPIES_IN_CHECKPOINT + (config.ema_decay is not None)
    needed = kept * copies * FLOAT32_BYTES * count + RECORDS_BYTES
    found = f"{shown(free)} free in {place}, {kept} checkpoints and records take about {shown(needed)}"
    if free < needed:
        return error("disk", found, "Free space, choose another output_root, or lower checkpoint.keep.")
    return ok("disk", found)


def check_encode_disk(config: DictConfig, bytes_a_row: int, num_rows: int) -> Finding:
    """Verifies that the encoded cache has room for what it lacks at most: every row."""
    place = nearest(Path(str(config.encode.folder)))
    free, needed = shutil.disk_usage(place).free, bytes_a_row * num_rows
    found = f"{shown(free)} free in {place}, {num_rows} encoded rows take about {shown(needed)}"
    if free < needed:
        return warning("encoded cache disk", found, "Free space, choose another encode.folder, or set encode=live.")
    return ok("encoded cache disk", found)


def skew_of(folder: Path) -> float:
    """Returns the time of a file written now in ``folder``, less this machine's clock, in seconds.

    Raises:
        OSError: it cannot be written.
    """
    with tempfile.NamedTemporaryFile(dir=folder, prefix=PROBE) as file:
        file.write(b"physedit")
        file.flush()
        os.fsync(file.fileno())
        now_s = time.time()
        return file_time_s(Path(file.name)) - now_s


def file_time_s(path: Path) -> float:
    """Returns when a file was last written, in seconds, by whoever keeps it."""
    return path.stat().st_mtime


def nearest(folder: Path) -> Path:
    """Returns ``folder``, or its nearest parent that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def shown(num_bytes: float) -> str:
    """Returns a size in words."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def _written(check: str, folder: Path, remedy: str) -> Finding:
    links = [path for path in (folder.absolute(), *folder.absolute().parents) if path.is_symlink()]
    if dead := [path for path in links if not path.exists()]:
        return error(check, f"{dead[0]} is a link to {dead[0].readlink()}, where nothing is", remedy)
    place = nearest(folder)
    try:
        skew_of(place)
    except OSError as failed:
        said = "is no folder" if failed.errno == errno.ENOTDIR else f"cannot be written: {failed.strerror}"
        return error(check, f"{folder} cannot be made: {place} {said}", remedy)
    return ok(check, f"{folder} can be written")


def _released(config: DictConfig) -> int | None:
    name = str(config.backbone["_target_"]).rpartition(".")[2]
    num = _NUM_PER_RANK.get(name, {}).get(str(config.adapter.preset))
    return None if num is None else num * int(config.adapter.rank)
