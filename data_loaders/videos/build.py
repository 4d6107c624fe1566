"""Builds a set of edit pairs from videos; a build that was killed goes on where it was and yields the same files.

OUT/data/train-00000-of-00001.parquet   the pairs, in the order of the videos
OUT/report.json                         what it was made of and with, and how much was dropped why; written last
OUT/dropped.jsonl                       every video, stretch and pair that was dropped, with the reason
OUT/.work/                              while it is being built: journals and pictures
"""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import TypeVar

from physedit.data_loaders.videos import shards
from physedit.data_loaders.videos.choose import ChosenPair, SeenPairs
from physedit.data_loaders.videos.examine import (
    Examination,
    ExaminedVideo,
    Extraction,
    PairKind,
    examine,
    extract,
)
from physedit.data_loaders.videos.instructions import (
    PROMPT_VERSION,
    NoInstruction,
    Outcome,
    WrittenInstruction,
    outcome_from_json,
    outcome_to_json,
    write_instruction,
)
from physedit.data_loaders.videos.journal import BuildError, Journal, key_of, only_builder
from physedit.data_loaders.videos.reasons import Reason
from physedit.data_loaders.videos.report import Loss, nothing_left, write_report
from physedit.data_loaders.videos.request import (
    METHOD_VERSION,
    REPORT,
    WORK,
    BuildRequest,
    check_request,
    digest_of,
    is_finished,
    refuse_captionless,
)
from physedit.data_loaders.videos.sources import Sources, SourceVideo, WantedClip, find_sources
from physedit.data_loaders.vision_client import VisionClient

logger = logging.getLogger(__name__)

_SAID_CHARS = 500
"""So much of an unusable reply goes into dropped.jsonl."""

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A pair that was chosen, with where it comes from and where its pictures lie."""

    video: SourceVideo
    clip: WantedClip
    pair: ChosenPair
    key: str
    source: Path
    target: Path


def build(request: BuildRequest) -> Path:
    """Builds the set and returns the path of its report; a finished build of the same is left as it is.

    Raises:
        BuildError: settings that do not go together, a folder with something else in it, or no pair at all.
        DatasetLayoutError: the meta file is not MiraData's.
        DatasetRowError: a row of the meta file does not say where its clip lies.
        MissingExtra: PyAV is not installed.
        VisionRequestError: the model's server refuses the requests as such, or never answered: seen before decoding.
        VisionUnavailable: it does not answer any more; what was answered is kept.
    """
    check_request(request)
    client = None if request.vision is None else VisionClient(request.vision)
    sources = find_sources(request.videos, request.meta, request.caption_column)
    if client is None:
        refuse_captionless(sources)
    made_of = digest_of(request, sources)
    if is_finished(request.out, made_of):
        shutil.rmtree(request.out / WORK, ignore_errors=True)
        logger.info("%s holds this set already; nothing was done.", request.out)
        return request.out / REPORT
    if client is not None and not _has_answers(request):
        client.require_server()
    with only_builder(request.out / WORK):
        losses = [Loss("clip", "", Reason.NO_VIDEO_FILE, clip=name) for name in sources.rows_without_file]
        with _Workers(request.num_workers) as workers:
            examined = _examined(request, sources, workers)
            candidates = list(_distinct(request, sources, examined, losses))
            logger.info("%d pair(s) chosen from %d video(s).", len(candidates), len(sources.videos))
            _extract(request, candidates, workers)
        outcomes = {} if client is None else _instructed(request, client, candidates)
        rows = list(_rows(candidates, outcomes, losses))
        if not rows:
            raise BuildError(nothing_left(request, len(sources.videos), losses))
        _publish(request, rows)
        write_report(request, made_of, len(sources.videos), len(rows), losses, list(outcomes.values()))
    shutil.rmtree(request.out / WORK)
    return request.out / REPORT


def _examined(request: BuildRequest, sources: Sources, workers: _Workers) -> dict[str, ExaminedVideo]:
    """Examines the videos that the journal does not know; returns all by name."""
    journal = Journal(request.out / WORK / "examined.jsonl")
    how = [METHOD_VERSION, request.kind, asdict(request.choice), request.pictures.min_side_px]
    keys = {video.name: key_of(how, video.identity()) for video in sources.videos}
    due = [video for video in sources.videos if journal.get(keys[video.name]) is None]
    jobs = [Examination(video, request.kind, request.choice, request.pictures.min_side_px) for video in due]
    if len(due) < len(sources.videos):
        logger.info("%d of %d videos were examined before.", len(sources.videos) - len(due), len(sources.videos))
    for job, result in workers.mapped(examine, jobs):
        journal.add(keys[job.video.name], result.to_json())
        pairs = sum(len(clip.pairs) for clip in result.clips)
        logger.info("%s: %s", job.video.name, result.refused[1] if result.refused else f"{pairs} pair(s)")
    journal.close()
    results: dict[str, ExaminedVideo] = {}
    for name, key in keys.items():
        stored = journal.get(key)
        assert stored is not None
        results[name] = ExaminedVideo.from_json(stored)
    return results


class _Workers:
    """Processes that are started with the first work that is worth it, and serve all stages."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._pool: Pool | None = None

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._pool is not None:
            self._pool.terminate()

    def mapped(self, work: Callable[[_Job], _Result], jobs: Sequence[_Job]) -> Iterator[tuple[_Job, _Result]]:
        """Yields each job with its result, in order."""
        if self._num_workers == 1 or len(jobs) <= 1:
            yield from ((job, work(job)) for job in jobs)
            return
        if self._pool is None:
            self._pool = multiprocessing.get_context("spawn").Pool(self._num_workers, end_with_parent)
        yield from zip(jobs, self._pool.imap(work, jobs), strict=True)


def end_with_parent() -> None:
    """Makes this worker process leave Ctrl-C to its parent, and end when the parent does, even if that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _distinct(
    request: BuildRequest, sources: Sources, examined: dict[str, ExaminedVideo], losses: list[Loss]
) -> Iterator[_Candidate]:
    """Yields the pairs that repeat none before them, in the order of the videos; notes all that is dropped."""
    seen = SeenPairs(request.choice.duplicate_bits)
    folder = request.out / WORK / "pictures"
    suffix = request.pictures.format
    for video in sources.videos:
        result = examined[video.name]
        if result.refused is not None:
            losses.append(Loss("video", video.name, result.refused[0], message=result.refused[1]))
            continue
        for clip, found in zip(video.clips, result.clips, strict=True):
            for drop in found.dropped:
                losses.append(Loss("stretch", video.name, drop.reason, clip.name, drop.first_frame, drop.last_frame))
            for pair in found.pairs:
                frames = pair.source_frame, pair.target_frame
                if request.vision is None and not clip.caption:
                    losses.append(Loss("pair", video.name, Reason.NO_CAPTION, clip.name, *frames))
                elif not seen.take(pair):
                    losses.append(Loss("pair", video.name, Reason.NEAR_DUPLICATE, clip.name, *frames))
                else:
                    key = key_of(video.identity(), frames, asdict(request.pictures))
                    files = (folder / f"{key}-{which}.{suffix}" for which in ("source", "target"))
                    yield _Candidate(video, clip, pair, key, *files)


def _extract(request: BuildRequest, candidates: Sequence[_Candidate], workers: _Workers) -> None:
    frames: dict[Path, list[tuple[int, Path]]] = {}
    for one in candidates:
        frames.setdefault(one.video.path, []).append((one.pair.source_frame, one.source))
        frames[one.video.path].append((one.pair.target_frame, one.target))
    jobs = [Extraction(path, tuple(wanted), request.pictures) for path, wanted in frames.items()]
    for _ in workers.mapped(extract, jobs):
        pass


def _answers_file(request: BuildRequest) -> Path:
    return request.out / WORK / "instructions.jsonl"


def _has_answers(request: BuildRequest) -> bool:
    """True if the server has answered before: then it may not be needed any more."""
    file = _answers_file(request)
    return file.is_file() and file.stat().st_size > 0


def _instructed(request: BuildRequest, client: VisionClient, candidates: Sequence[_Candidate]) -> dict[str, Outcome]:
    """Asks for the instructions that the journal does not know; returns the outcomes by pair.

    The first error ends it: what is under way is finished and kept, the rest is not asked.
    """
    journal = Journal(_answers_file(request))
    keys = {one.key: _question_key(one, client.settings.model) for one in candidates}

    def ask(one: _Candidate) -> None:
        outcome = write_instruction(client, one.source.read_bytes(), one.target.read_bytes(), one.clip.caption)
        journal.add(keys[one.key], outcome_to_json(outcome))

    due = [one for one in candidates if journal.get(keys[one.key]) is None]
    logger.info("Asking %s for %d of %d instructions.", client.settings.model, len(due), len(candidates))
    # The first alone: a server that refuses such requests as such is asked once, not by every thread.
    for one in due[:1]:
        ask(one)
    with ThreadPoolExecutor(client.settings.max_parallel) as pool:
        asked = [pool.submit(ask, one) for one in due[1:]]
        done, _ = wait(asked, return_when=FIRST_EXCEPTION)
        for future in asked:
            future.cancel()
    journal.close()
    for future in done:
        future.result()
    stored = {pair: journal.get(key) for pair, key in keys.items()}
    return {pair: outcome_from_json(value) for pair, value in stored.items() if value is not None}


def _question_key(one: _Candidate, model: str) -> str:
    pictures = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (one.source, one.target)]
    return key_of(PROMPT_VERSION, model, pictures, one.clip.caption)


def _rows(
    candidates: Iterable[_Candidate], outcomes: dict[str, Outcome], losses: list[Loss]
) -> Iterator[shards.PairRow]:
    for one in candidates:
        outcome = outcomes.get(one.key)
        if isinstance(outcome, NoInstruction):
            frames = one.pair.source_frame, one.pair.target_frame
            losses.append(
                Loss("pair", one.video.name, outcome.reason, one.clip.name, *frames, message=outcome.said[:_SAID_CHARS])
            )
        else:
            yield _row(one, outcome)


def _row(one: _Candidate, written: WrittenInstruction | None) -> shards.PairRow:
    name = one.clip.name.replace("/", "_")
    return shards.PairRow(
        pair_id=f"{name}-{one.pair.source_frame:06d}-{one.pair.target_frame:06d}",
        source=one.source,
        target=one.target,
        clip_id=one.clip.name,
        source_frame=one.pair.source_frame,
        target_frame=one.pair.target_frame,
        caption=one.clip.caption,
        written=written,
    )


def _publish(request: BuildRequest, rows: Sequence[shards.PairRow]) -> None:
    unfinished, finished = request.out / WORK / "data", request.out / "data"
    for folder in (unfinished, finished):
        # Left by a build that was killed between here and its report.
        shutil.rmtree(folder, ignore_errors=True)
    schema = shards.CAPTION_PAIRS if request.vision is None else shards.WRITTEN_PAIRS
    if request.kind is PairKind.FIRST_LAST:
        schema = shards.PICA_PAIRS
    shards.write_shards(unfinished, rows, schema, request.shard_mb * 10**6)
    unfinished.replace(finished)
