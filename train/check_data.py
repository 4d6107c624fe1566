"""``physedit data check``: what training would make of a data set, row by row, before it trains.

Every row is decoded as a run decodes it. The page, the counts and the names of rows are published together.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from physedit.data_loaders.audit import Audit, Note, RowReport, audited
from physedit.data_loaders.marks import KnownPictures
from physedit.data_loaders.sample import EditDataset
from physedit.data_loaders.tally import Counting
from physedit.eval_hooks.files import digest_of, json_line, write_json
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem, load_benchmark
from physedit.train.assemble import build_checked, outline_of
from physedit.train.check_page import CheckedRows, Leak, write_page
from physedit.train.check_record import DROPPED, NOTED, PAGE, STOPS, counts_of, failure_of, worked_px
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.output import check_is_own, published
from physedit.train.preflight import check_references
from physedit.train.progress import RowsBar

DEFAULT_ROOT = Path("data_checks")
RECORD = "check.json"
_NUM_NAMED = 5
_NUM_LEAKS_SHOWN = 12
_DEFAULT_WORKERS = 8
_UNUSED = ("run_name=data_check", "num_steps=1", "global_batch=1", "micro_batch=1", "tracker=none")
"""Values of a run that a config must have and a check does not need."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What is asked beside the config.

    Attributes:
        out: the folder to write; None means ``data_checks/NAME_HASH``, with the hash of the data's settings.
        sample: decode only so many rows, evenly spread; None decodes all.
        benchmark: PICABench's file or folder, whose pictures should not be among the rows.
        max_dropped: the share of rows that may be dropped; None means the config's ``max_dropped_share``.
        num_examples: pairs of each law on the page.
    """

    out: Path | None = None
    sample: int | None = None
    benchmark: Path | None = None
    max_dropped: float | None = None
    num_examples: int = 4


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The folder, what its ``check.json`` holds, and why training would fail: empty if it would not."""

    folder: Path
    record: Mapping[str, object]
    failure: str


def check_config(overrides: Sequence[str], config_dir: Path | None) -> DictConfig:
    """Composes what a check needs: a recipe, or ``data=`` and ``backbone=`` alone.

    Raises:
        ConfigError: the overrides do not compose.
    """
    is_recipe = any(each.startswith("experiment=") for each in overrides)
    workers = f"num_workers={min(_DEFAULT_WORKERS, os.cpu_count() or 1)}"
    return compose_config([*(() if is_recipe else (*_UNUSED, workers)), *overrides], config_dir=config_dir)


def check_data(config: DictConfig, request: CheckRequest) -> CheckResult:
    """Looks at the rows of the config's data and writes the page, ``check.json`` and the names of rows.

    Raises:
        ValueError: input that cannot be used; nothing is written then.
    """
    max_share = float(config.max_dropped_share if request.max_dropped is None else request.max_dropped)
    _check_request(request, max_share)
    data = OmegaConf.to_container(config.data, resolve=True)
    assert isinstance(data, dict)
    identity = digest_of({"data": data})
    title = Path(str(data.get("path") or data["_target_"].rpartition(".")[2].lower())).name or "data"
    folder = request.out or DEFAULT_ROOT / f"{title}_{identity[:10]}"
    check_is_own(folder, RECORD, identity, other="the check of other data")
    outline = outline_of(config)
    dataset: EditDataset = build_checked("data", config.data)
    check_references(outline.max_sources, dataset)
    items = () if request.benchmark is None else load_benchmark(request.benchmark)
    known = KnownPictures(_sources(items)) if items else None
    try:
        audit = Audit(
            dataset,
            outline.sizes_of,
            area_of=worked_px,
            limits=outline.text_limits,
            text_rule=outline.text_rule,
            known=known,
        )
    except ValueError as error:
        raise ConfigError(f"data: {error}") from error
    indexes = _spread(len(dataset), request.sample)
    counting = Counting(len(indexes), outline.text_limits)
    with published(folder) as partial:
        partial.mkdir()
        seen = _look(audit, indexes, counting, partial, int(config.num_workers))
        failure = failure_of(counting.tally, max_share, folder / DROPPED)
        record = {
            "identity": identity,
            "data": data,
            "backbone": f"{str(config.backbone['_target_']).rpartition('.')[2]}, {config.backbone.weights}",
            "rows": len(dataset),
            "max_dropped_share": max_share,
            "failure": failure,
            **counts_of(counting),
            "benchmark": None if request.benchmark is None else {"path": str(request.benchmark), "items": len(items)},
            "files": {"page": PAGE, "dropped": DROPPED, "noted": NOTED},
        }
        write_json(partial / RECORD, record)
        rows = CheckedRows(dataset, counting, seen.named, seen.leaks, items, request.num_examples)
        write_page(partial / PAGE, rows, title=title, failure=failure, facts=_facts(record), max_share=max_share)
    return CheckResult(folder, record, failure)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The first names for each reason or kind, and the first rows that repeat a benchmark picture."""

    named: dict[str, list[str]]
    leaks: list[Leak]


def _look(audit: Audit, indexes: Sequence[int], counting: Counting, folder: Path, num_workers: int) -> _Seen:
    """Counts all rows and writes the names of those that are dropped, and of those with notes, as they come."""
    seen = _Seen({}, [])
    with (
        (folder / DROPPED).open("w", encoding="utf-8") as dropped,
        (folder / NOTED).open("w", encoding="utf-8") as noted,
        RowsBar(len(indexes)) as bar,
    ):
        for report in audited(audit, indexes, num_workers=num_workers):
            notes = counting.add(report)
            for reason, message in _reasons(report):
                dropped.write(json_line(_line(report, reason, message)))
                _name(seen, reason, report)
            for note in notes:
                noted.write(json_line(_line(report, note.kind.value, note.text)))
                _name(seen, note.kind.value, report)
                _keep_leak(seen, report, note)
            bar.advance(counting.tally.num_checked, counting.tally.num_dropped)
    return seen


def _reasons(report: RowReport) -> Iterator[tuple[str, str]]:
    if report.dropped is not None:
        yield report.dropped.reason, report.dropped.message
    if report.stops:
        yield STOPS, report.stops


def _line(report: RowReport, reason: str, message: str) -> dict[str, object]:
    return {
        "sample_id": report.sample_id, "file": report.file, "row": report.row, "reason": reason, "message": message,
    }  # fmt: skip


def _name(seen: _Seen, reason: str, report: RowReport) -> None:
    names = seen.named.setdefault(reason, [])
    if len(names) < _NUM_NAMED:
        names.append(report.sample_id)


def _keep_leak(seen: _Seen, report: RowReport, note: Note) -> None:
    if note.known is not None and len(seen.leaks) < _NUM_LEAKS_SHOWN:
        seen.leaks.append(Leak(report.index, report.sample_id, note.text, note.known.number))


def _check_request(request: CheckRequest, max_share: float) -> None:
    if request.sample is not None and request.sample < 1:
        raise ConfigError(f"--sample {request.sample} must be a number of rows of at least 1.")
    if request.num_examples < 0:
        raise ConfigError(f"--examples {request.num_examples} must be a number of pairs of at least 0.")
    if not (math.isfinite(max_share) and 0 <= max_share <= 1):
        raise ConfigError(f"--max-dropped {max_share} must be a share: from 0 to 1.")


def _spread(num_rows: int, limit: int | None) -> Sequence[int]:
    if limit is None or limit >= num_rows:
        return range(num_rows)
    return [position * num_rows // limit for position in range(limit)]


def _sources(items: Sequence[BenchmarkItem]) -> Iterator[Tensor]:
    for item in items:
        yield item.source


def _facts(record: Mapping[str, object]) -> dict[str, str]:
    data, benchmark = record["data"], record["benchmark"]
    assert isinstance(data, dict)
    looked = "all of them" if record["checked"] == record["rows"] else f"{record['checked']}, evenly spread"
    compared = f"{benchmark['path']}, {benchmark['items']} pictures" if isinstance(benchmark, dict) else "not compared"
    return {
        "data": str(data.get("path") or data["_target_"]),
        "editor": str(record["backbone"]),
        "rows": f"{record['rows']}, looked at: {looked}",
        "benchmark": compared,
    }
