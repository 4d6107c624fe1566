"""What a check of a data set found, as numbers for programs and as words."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import cast

from physedit.data_loaders.audit import NoteKind
from physedit.data_loaders.tally import Counting, Tally, TextCount
from physedit.data_loaders.text_limits import Overlong
from physedit.models.sizes import PictureSizes

PAGE, DROPPED, NOTED = "check.html", "dropped.jsonl", "noted.jsonl"
STOPS = "would stop training"
_NUM_REASONS = 3


def counts_of(counting: Counting) -> dict[str, object]:
    """Returns the counts as ``check.json`` holds them."""
    tally = counting.tally
    return {
        "checked": tally.num_checked,
        "kept": tally.num_kept,
        "would_stop": tally.num_stopping,
        "dropped": dict(tally.dropped.most_common()),
        "dropped_share": tally.num_dropped / tally.num_checked,
        "laws": dict(sorted(tally.laws.items())),
        "operations": dict(sorted(tally.operations.items())),
        "levels": dict(tally.levels),
        "sizes": {f"{width}x{height}": count for (height, width), count in tally.sizes.most_common()},
        "buckets": {bucket_name(bucket): count for bucket, count in tally.buckets.most_common()},
        "notes": {kind.value: tally.notes[kind] for kind in NoteKind if tally.notes[kind]},
        "texts": [
            {
                "encoder": text.limit.encoder,
                "max_tokens": text.limit.max_tokens,
                "longest": text.longest if text.limit.count else None,
                "over": text.num_over if text.limit.count else None,
                "overlong": text.limit.overlong.value,
                "said": text_said(text),
            }
            for text in counting.texts
        ],
    }


def bucket_name(bucket: Hashable) -> str:
    """Returns what a bucket is called: width and height of the source as it is worked at, and of its edit."""
    assert isinstance(bucket, PictureSizes)
    source, output = (f"{width}x{height}" for height, width in (bucket.source, bucket.output))
    return source if source == output else f"{source} to {output}"


def worked_px(bucket: Hashable) -> int:
    """Returns the pixels that a source is worked at."""
    assert isinstance(bucket, PictureSizes)
    return bucket.source[0] * bucket.source[1]


def text_said(text: TextCount) -> str:
    """Says what was counted of one encoder."""
    limit = text.limit
    if limit.count is None:
        return limit.not_counted
    said = f"the longest instruction has {text.longest} of {limit.max_tokens} tokens"
    if not text.num_over:
        return said
    note = f"harmless: {limit.why}" if limit.overlong is Overlong.HARMLESS else limit.why
    return f"{said}, {text.num_over} of {text.num_instructions} instructions are longer; {note}"


def failure_of(tally: Tally, max_share: float, names: Path) -> str:
    """Says in one paragraph why training would fail; empty if it would not.

    Args:
        tally: of the rows.
        max_share: as ``max_dropped_share`` of a run: beyond it a run stops.
        names: the file that names the rows.
    """
    reasons = Counter(tally.dropped)
    if tally.num_stopping:
        reasons[STOPS] = tally.num_stopping
    frequent = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(_NUM_REASONS))
    what = f"{tally.num_dropped} of {tally.num_checked} rows ({tally.num_dropped / tally.num_checked:.1%})"
    remedy = f"The most frequent reasons: {frequent}. {names} names the rows; mend or remove them"
    if tally.num_stopping:
        return f"{tally.num_stopping} of {tally.num_checked} rows would stop training, and {what} be dropped. {remedy}."
    if tally.num_kept == 0:
        return f"No row can be used: {what} would be dropped. {remedy}."
    if tally.num_dropped > max_share * tally.num_checked:
        return (
            f"Training would drop {what}, more than max_dropped_share={max_share:g} allows. {remedy}, or raise "
            "max_dropped_share."
        )
    return ""


def described(record: Mapping[str, object], folder: Path) -> str:
    """Returns what ``check.json`` holds in words, a line each, and the files in ``folder``."""
    dropped, notes = (cast("Mapping[str, int]", record[key]) for key in ("dropped", "notes"))
    of = "" if record["checked"] == record["rows"] else f", evenly spread over {record['rows']}"
    lines = [f"{record['checked']} row(s) looked at{of}: {record['kept']} can be used."]
    lines += [f"  {count} dropped: {reason}" for reason, count in dropped.items()]
    if record["would_stop"]:
        lines.append(f"  {record['would_stop']} would stop training")
    lines += [f"  {count} noted: {kind}" for kind, count in notes.items()]
    for text in cast("Sequence[Mapping[str, object]]", record["texts"]):
        lines.append(f"  {text['encoder']}: {text['said']}")
    if record["benchmark"] is None:
        lines.append("  Not compared with a benchmark's pictures: give --benchmark PATH.")
    return "\n".join([*lines, *(str(folder / name) for name in (PAGE, DROPPED, NOTED))])
