"""The page of a check: one HTML file that needs nothing else, with pairs of each law to look at.

Shape legend: H W pixels.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from PIL import Image
from torch import Tensor

from physedit.data_loaders.audit import NoteKind
from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.sample import EditDataset, PromptLevel
from physedit.data_loaders.tally import Counting
from physedit.eval_hooks.files import write_bytes
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem
from physedit.train.check_record import DROPPED, NOTED, STOPS, bucket_name, text_said

_TEMPLATE = "check_data.html.jinja"
_MAX_LINES = 24
"""Lines of a table of sizes; check.json has them all."""
_PIXEL_ART_BELOW_PX = 96
_LARGEST_PX = 320
_JPEG_QUALITY = 85
_LONGEST_TEXT = 600
"""Characters of an instruction that are shown."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A row that repeats picture ``item`` of the benchmark; ``text`` says how."""

    index: int
    sample_id: str
    text: str
    item: int


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """What the page shows.

    Attributes:
        dataset: the rows, of which a few are decoded anew.
        counting: of all that were looked at.
        named: the first names for each reason or kind of note.
        leaks: the first rows that repeat a benchmark picture.
        items: of the benchmark; empty without one.
        num_examples: pairs of each law.
    """

    dataset: EditDataset
    counting: Counting
    named: Mapping[str, Sequence[str]]
    leaks: Sequence[Leak]
    items: Sequence[BenchmarkItem]
    num_examples: int


@dataclass(frozen=True, slots=True)
class _Shown:
    """A picture as the page holds it: a data URI, its width in CSS pixels, whether single pixels are to be seen."""

    name: str
    uri: str
    width_px: int
    is_pixel_art: bool


@dataclass(frozen=True, slots=True)
class _Example:
    sample_id: str
    label: str
    texts: tuple[tuple[str, str], ...]
    pictures: tuple[_Shown, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    first: str
    lines: tuple[tuple[str, int], ...]
    num_left_out: int


def write_page(
    path: Path, rows: CheckedRows, *, title: str, failure: str, facts: Mapping[str, str], max_share: float
) -> None:
    """Writes the page.

    Args:
        path: of the file.
        rows: what it shows.
        title: of the data set.
        failure: why training would fail; empty if it would not.
        facts: short labelled facts, shown under the heading.
        max_share: of rows that may be dropped.

    Raises:
        DatasetRowError: a row to be shown changed since it was looked at.
    """
    template = resources.files("physedit.train").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    tally = rows.counting.tally
    dropped = [*tally.dropped.most_common(), *([(STOPS, tally.num_stopping)] if tally.num_stopping else [])]
    examples = rows.counting.examples(rows.num_examples)
    html = environment.from_string(template).render(
        title=title,
        facts=facts,
        failure=failure,
        max_share=max_share,
        tally=tally,
        dropped=[(reason, count, rows.named.get(reason, ())) for reason, count in dropped],
        notes=[(kind, tally.notes[kind], rows.named.get(kind, ())) for kind in NoteKind if tally.notes[kind]],
        texts=[(text.limit.encoder, text_said(text)) for text in rows.counting.texts],
        tables=_tables(rows.counting),
        leaks=[_leak(rows, leak) for leak in rows.leaks],
        laws=[(law, tally.laws[law], [_example(rows.dataset, i) for i in chosen]) for law, chosen in examples.items()],
        files=(DROPPED, NOTED),
    )
    write_bytes(path, html.encode())


def _tables(counting: Counting) -> list[_Table]:
    tally = counting.tally
    sizes = [(f"{width}x{height}", count) for (height, width), count in tally.sizes.most_common()]
    buckets = [(bucket_name(bucket), count) for bucket, count in tally.buckets.most_common()]
    return [
        _table("By law", "law", tally.laws.most_common()),
        _table("By operation", "operation", tally.operations.most_common()),
        _table("By prompt level", "level", tally.levels.items()),
        _table("By stored size of the source", "width x height", sizes),
        _table("By size it is edited at", "width x height", buckets),
    ]


def _table(title: str, first: str, lines: Iterable[tuple[str, int]]) -> _Table:
    found = tuple(lines)
    return _Table(title, first, found[:_MAX_LINES], max(0, len(found) - _MAX_LINES))


def _example(dataset: EditDataset, index: int) -> _Example:
    levels = sorted(dataset.levels, key=list(PromptLevel).index)
    sample = dataset.sample(index, levels[0])
    texts = {sample.level: sample.instruction}
    for level in levels[1:]:
        pair = dataset.stored(index, level)
        texts[pair.level] = pair.instruction
    references = [(f"reference {number}", each) for number, each in enumerate(sample.references, start=1)]
    pictures = [("source", sample.source), *references, ("target", sample.target)]
    return _Example(
        sample.sample_id,
        ", ".join(each for each in (sample.law, sample.operation) if each is not None),
        tuple((level.value, _cut(text)) for level, text in texts.items()),
        tuple(_shown(name, picture) for name, picture in pictures),
    )


def _leak(rows: CheckedRows, leak: Leak) -> _Example:
    sample = _example(rows.dataset, leak.index)
    known = _shown(f"benchmark item {leak.item}", rows.items[leak.item].source)
    return _Example(leak.sample_id, leak.text, sample.texts, (*sample.pictures, known))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}… ({len(text)} characters)"


def _shown(name: str, picture: Tensor) -> _Shown:
    height, width = picture.shape[-2:]
    image, buffer = as_image(picture), io.BytesIO()
    is_pixel_art = max(height, width) <= _PIXEL_ART_BELOW_PX
    if is_pixel_art:
        image.save(buffer, format="PNG", optimize=True)
    else:
        image.thumbnail((_LARGEST_PX, _LARGEST_PX), Image.Resampling.LANCZOS)
        image.save(buffer, format="JPEG", quality=_JPEG_QUALITY)
    kind = "png" if is_pixel_art else "jpeg"
    uri = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
    return _Shown(f"{name}, {width}x{height}", uri, 2 * width if is_pixel_art else image.width, is_pixel_art)
