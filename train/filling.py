"""Filling the encoded cache: which rows lack an entry, what they need of the disk, and encoding them on all ranks."""

import itertools
import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from physedit.data_loaders.encoded import LEVELS, KeyRule, RowKeys
from physedit.data_loaders.encoded_lookup import Decoded, Decoder, LookedUp, LookUp, loaded
from physedit.data_loaders.encoded_store import EncodedStore, StoreWriter
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import (
    DroppedRow,
    EditDataset,
    collate,
)
from physedit.data_loaders.slots import RunPlan
from physedit.models.backbone import Backbone
from physedit.models.encoding import latents_as_tensors
from physedit.train.config import ConfigError
from physedit.train.processes import Processes
from physedit.train.signals import StopFlag, Stopped

logger = logging.getLogger(__name__)

NUM_MEASURED = 4
"""Ours: so many encoded rows of each process tell what the others will need; they are held in memory until then."""
_SECONDS_BETWEEN_LINES = 30.0
_Entries = Mapping[bytes, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Filling:
    """What is to be in the cache.

    Attributes:
        backbone: encodes; on its device.
        dataset: whose rows are encoded.
        plan: of the run, which says which rows are shown at which levels.
        folder: of the cache; all ranks share it.
        with_text: instructions too, or pictures alone.
        can_write: False if nothing may be missing.
        can_encode_text: False if there are no text encoders.
        num_workers: processes that read and decode.
        stop: raised when a signal asks the process to end.
    """

    backbone: Backbone
    dataset: EditDataset
    plan: RunPlan
    folder: Path
    with_text: bool
    can_write: bool
    can_encode_text: bool
    num_workers: int
    stop: StopFlag = field(default_factory=StopFlag)


@dataclass(frozen=True, slots=True)
class EncodeCounts:
    """What filling did: ``encoded``, ``reused`` and dropped rows are all ``rows``.

    Attributes:
        rows: of the data set.
        encoded: rows that an entry was written for.
        reused: rows whose entries were all there.
        dropped: rows that cannot be used, by reason.
        damaged: entries that were there but not as they were written; they are encoded anew.
        bytes_written: now.
        bytes_in_use: of all entries of this data.
        folder: of the cache.
    """

    rows: int
    encoded: int
    reused: int
    dropped: Mapping[str, int]
    damaged: int
    bytes_written: int
    bytes_in_use: int
    folder: str


def fill(task: Filling, processes: Processes) -> tuple[EncodedStore, RowKeys, EncodeCounts]:
    """Ensures that every row of the plan has its entries; returns the store, their keys and what was done.

    All ranks call it, and each encodes its share. What was encoded before it ends stays and is not encoded again.

    Raises:
        ConfigError: entries are missing and may not or cannot be written, the disk is too small for them, or the
            folder is not one for all ranks.
        Stopped: a signal arrived.
    """
    rule = KeyRule(task.backbone.encoding_key, task.backbone.text_sees_pictures)
    share = task.plan.shown[processes.rank :: processes.num_processes]
    look_up = LookUp(task.dataset, share, EncodedStore(task.folder), rule, with_text=task.with_text)
    done = _Done()
    for each in loaded(look_up, task.num_workers):
        _check_stop(task)
        done.add(each)
    missing = [(row, levels) for row, levels in share if row in done.rows and done.rows[row].lacking]
    done.num_damaged = sum(each.num_damaged for each in done.rows.values())
    _refuse_missing(task, processes, [done.rows[row] for row, _ in missing])
    decoded = loaded(Decoder(look_up, missing, task.plan.index), task.num_workers)
    _write_all(task, processes, decoded, len(missing), done)
    return _gathered(task, processes.gather(done))


@dataclass
class _Done:
    """What one process found and did."""

    rows: dict[int, LookedUp] = field(default_factory=dict)
    dropped: dict[int, DroppedRow] = field(default_factory=dict)
    encoded: set[int] = field(default_factory=set)
    num_damaged: int = 0
    bytes_written: int = 0

    def add(self, found: LookedUp | DroppedRow) -> None:
        if isinstance(found, DroppedRow):
            self.dropped[found.index] = found
            self.rows.pop(found.index, None)
        else:
            self.rows[found.row] = found


def _refuse_missing(task: Filling, processes: Processes, rows: Sequence[LookedUp]) -> None:
    """Raises on every rank if some rank lacks entries that must not, or cannot, be written."""
    mine = (len(rows), sum(row.lacks_text for row in rows))
    num_rows, num_texts = (sum(counts) for counts in zip(*processes.gather(mine), strict=True))
    if num_rows and not task.can_write:
        raise ConfigError(
            f"{num_rows} of {task.plan.num_usable} rows lack an entry in the encoded cache {task.folder}, and "
            "encode.write_missing=false was asked. Run `physedit encode` with the same settings, or set "
            "encode.write_missing=true."
        )
    if num_texts and not task.can_encode_text:
        raise ConfigError(
            f"The instructions of {num_texts} of {task.plan.num_usable} rows are not in the encoded cache "
            f"{task.folder}, and backbone.encoders=absent leaves out the text encoders. Run `physedit encode` with "
            "backbone.encoders=resident or offload first."
        )


def _write_all(
    task: Filling, processes: Processes, decoded: Iterator[Decoded | DroppedRow], num_missing: int, done: _Done
) -> None:
    """Encodes this rank's rows and writes them, once the first have shown that the disk is large enough."""
    entries = _encoded(task, decoded, done)
    with StoreWriter(task.folder) as writer, task.backbone.encoders.encoding():
        first = list(itertools.islice(entries, NUM_MEASURED))
        _check_disk(task.folder, processes, num_missing, first)
        line = _ProgressLine(num_missing)
        for row in itertools.chain(first, entries):
            done.bytes_written += sum(writer.add(key, tensors) for key, tensors in row.items())
            line.advance()


def _encoded(task: Filling, decoded: Iterable[Decoded | DroppedRow], done: _Done) -> Iterator[_Entries]:
    """Yields the entries that each row lacks; a row that cannot be encoded is dropped."""
    known: set[bytes] = set()
    for each in decoded:
        _check_stop(task)
        if isinstance(each, DroppedRow):
            done.add(each)
            continue
        entries = _encode(task.backbone, each, each.row.lacking - known)
        task.backbone.forget()
        name = next((name for tensors in entries.values() for name, value in tensors.items() if _is_broken(value)), "")
        if name:
            message = f"{each.sample.origin}: its encoded {name} holds NaN or infinity. Look at its pictures and text."
            row_name = task.dataset.name(each.row.row)
            done.add(DroppedRow(each.row.row, row_name, RowProblem.NOT_FINITE, message))
            continue
        known.update(entries)
        done.add(each.row)
        done.encoded.add(each.row.row)
        yield entries


def _encode(backbone: Backbone, decoded: Decoded, lacking: frozenset[bytes]) -> _Entries:
    batch = collate([decoded.sample])
    entries: dict[bytes, Mapping[str, Tensor]] = {}
    if decoded.row.latents in lacking:
        entries[decoded.row.latents] = latents_as_tensors(backbone.encode_pictures(batch))
    for level, key in decoded.row.texts.items():
        if key in lacking and key not in entries:
            entries[key] = backbone.encode_text(batch.given, (decoded.instructions[level],))
    return entries


def _check_stop(task: Filling) -> None:
    if task.stop:
        raise Stopped("Stopped while the encoded cache was filled; what was encoded is kept.")


def _is_broken(value: Tensor) -> bool:
    return value.is_floating_point() and not bool(value.isfinite().all())


def _check_disk(folder: Path, processes: Processes, num_missing: int, measured: Sequence[_Entries]) -> None:
    """Says what the cache will need of the disk and what is free; raises on every rank if that is too little."""
    num_bytes = sum(value.nbytes for entries in measured for tensors in entries.values() for value in tensors.values())
    counts = processes.gather((num_missing, len(measured), num_bytes))
    rows, num_measured, measured_bytes = (sum(count) for count in zip(*counts, strict=True))
    if rows == 0:
        return
    need, free = rows * measured_bytes // max(1, num_measured), shutil.disk_usage(folder).free
    logger.info(
        "Encoding %d rows into %s: about %s are needed and %s free.", rows, folder, shown_bytes(need), shown_bytes(free)
    )
    if need > free:
        raise ConfigError(
            f"The encoded cache needs about {shown_bytes(need)} more in {folder}, but {shown_bytes(free)} are free. "
            "Set encode.folder to a larger disk, keep latents alone with encode.text=live, or use encode=live, which "
            "needs none."
        )


def shown_bytes(num_bytes: int) -> str:
    """Returns a number of bytes in GiB, or in MiB if it is less than one."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.2f} MiB"


class _ProgressLine:
    """Says now and then how far this process is."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._num_done = 0
        self._started = self._said = time.monotonic()

    def advance(self) -> None:
        self._num_done += 1
        now = time.monotonic()
        if now - self._said < _SECONDS_BETWEEN_LINES and self._num_done < self._num_rows:
            return
        self._said = now
        rate = self._num_done / max(1e-9, now - self._started)
        logger.info(
            "Encoded %d of %d rows of this process, %.1f rows/s, about %.0f min left.",
            self._num_done,
            self._num_rows,
            rate,
            (self._num_rows - self._num_done) / rate / 60,
        )


def _gathered(task: Filling, parts: Sequence[_Done]) -> tuple[EncodedStore, RowKeys, EncodeCounts]:
    """Returns the keys and counts of all ranks, and the store as they left it."""
    keys = RowKeys.none(task.plan.num_rows)
    dropped = {row: each for part in parts for row, each in part.dropped.items()}
    for part in parts:
        for row, found in part.rows.items():
            keys.latents[row] = found.latents
            for level, key in found.texts.items():
                keys.texts[row, LEVELS.index(level)] = key
    keys = RowKeys(keys.latents, keys.texts, dropped)
    store = EncodedStore(task.folder)
    wanted = np.unique(np.concatenate([keys.latents, keys.texts.reshape(-1)]))
    wanted = wanted[wanted != b""]
    num_lacking = store.num_lacking(wanted)
    if num_lacking:
        raise ConfigError(
            f"{num_lacking} entries that the processes of this run have written are not in {task.folder} as seen from "
            "here. encode.folder must be one that all of them share; if it is, run the same command again."
        )
    reasons = Counter([reason for _, reason in task.plan.unusable] + [row.reason for row in dropped.values()])
    num_encoded = sum(len(part.encoded) for part in parts)
    counts = EncodeCounts(
        rows=task.plan.num_rows,
        encoded=num_encoded,
        reused=sum(len(part.rows) for part in parts) - num_encoded,
        dropped={str(reason): count for reason, count in reasons.items()},
        damaged=sum(part.num_damaged for part in parts),
        bytes_written=sum(part.bytes_written for part in parts),
        bytes_in_use=sum(store.num_bytes(bytes(key)) for key in wanted),
        folder=str(task.folder),
    )
    return store, keys, counts
