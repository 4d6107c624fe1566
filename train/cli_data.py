"""``physedit data``: checking and making data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from physedit.train.cli_options import ConfigDir
from physedit.train.config import ConfigError
from physedit.train.guarded import fail

if TYPE_CHECKING:
    from physedit.data_loaders.vision_settings import VisionSettings

data_app = typer.Typer(help="Check data sets, and make some of your own.", no_args_is_help=True)


@data_app.command("check")
def check(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Hydra overrides, such as data=pairs data.path=FOLDER backbone=toy")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; default: data_checks/NAME_HASH.")] = None,
    sample: Annotated[int | None, typer.Option(help="Look at so many rows alone, evenly spread.")] = None,
    benchmark: Annotated[
        Path | None, typer.Option(help="PICABench's file or folder: look for its pictures among the rows.")
    ] = None,
    max_dropped: Annotated[
        float | None, typer.Option(help="Share of rows that may be dropped; default: max_dropped_share.")
    ] = None,
    examples: Annotated[int, typer.Option(help="Pairs of each law on the page.")] = 4,
    config_dir: ConfigDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print check.json.")] = False,
) -> None:
    """Decodes every row, says what training would drop and why, and writes a page with pairs to look at."""
    from physedit.train import check_data
    from physedit.train.check_record import described

    request = check_data.CheckRequest(out, sample, benchmark, max_dropped, examples)
    result = check_data.check_data(check_data.check_config(overrides or [], config_dir), request)
    if as_json:
        typer.echo(json.dumps(result.record, indent=2, ensure_ascii=False))
    else:
        typer.echo(described(result.record, result.folder))
    if result.failure:
        fail(result.failure, 1)


@data_app.command("from-videos")
def from_videos(
    videos: Annotated[list[Path], typer.Argument(help="Video files, and folders that are searched for some.")],
    out: Annotated[Path, typer.Option(help="Where the set goes: a new folder, or one with an unfinished build.")],
    first_last: Annotated[
        bool, typer.Option("--first-last", help="First and last frame, in PICA-100K's columns; needs --model.")
    ] = False,
    meta: Annotated[Path | None, typer.Option(help="MiraData's meta CSV: which stretches, with captions.")] = None,
    caption_column: Annotated[
        str | None, typer.Option(help="Column of --meta with the caption; default: short_caption.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Vision-language model that writes instructions; else the caption is taken.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Its OpenAI-compatible server, up to /v1; default: OpenAI's.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key; with --base-url, none is sent by default.")
    ] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Questions at the same time; default: 4.")] = None,
    pairs_per_clip: Annotated[int | None, typer.Option(min=1, help="Pairs of one still clip; default: 1.")] = None,
    min_gap: Annotated[float | None, typer.Option(help="Least seconds between the frames; default: 0.5.")] = None,
    max_gap: Annotated[float | None, typer.Option(help="Greatest; default: 5.")] = None,
    duplicate_bits: Annotated[
        int, typer.Option(help="Pairs whose 64-bit hashes differ in at most so many bits are near-duplicates.")
    ] = 4,
    min_side: Annotated[int, typer.Option(help="Drop videos whose short side has fewer pixels.")] = 256,
    long_side: Annotated[int, typer.Option(help="Scale larger pictures down to it.")] = 1536,
    pictures: Annotated[Literal["jpg", "png"], typer.Option(help="JPEG of quality 95, or lossless.")] = "jpg",
    workers: Annotated[int, typer.Option(min=1, help="Processes that decode.")] = 1,
    shard_mb: Annotated[int, typer.Option(min=1, help="Most picture megabytes of a parquet file.")] = 500,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json.")] = False,
) -> None:
    """Makes a set of edit pairs from videos; run it again to go on with a build that was stopped."""
    from physedit.data_loaders.videos.build import build
    from physedit.data_loaders.videos.choose import ChoiceSettings
    from physedit.data_loaders.videos.examine import PairKind, PictureFormat, PictureSettings
    from physedit.data_loaders.videos.request import BuildRequest
    from physedit.data_loaders.vision_settings import VisionUnavailable

    motion_only = {"--pairs-per-clip": pairs_per_clip, "--min-gap": min_gap, "--max-gap": max_gap}
    if first_last:
        _refuse_idle("--first-last, which takes one pair of each video", motion_only)
    if meta is None:
        _refuse_idle("no --meta", {"--caption-column": caption_column})
    default = ChoiceSettings()
    request = BuildRequest(
        videos=tuple(videos),
        out=out,
        kind=PairKind.FIRST_LAST if first_last else PairKind.MOTION,
        meta=meta,
        caption_column=caption_column or "short_caption",
        choice=ChoiceSettings(
            min_gap_s=default.min_gap_s if min_gap is None else min_gap,
            max_gap_s=default.max_gap_s if max_gap is None else max_gap,
            pairs_per_clip=pairs_per_clip or default.pairs_per_clip,
            duplicate_bits=duplicate_bits,
        ),
        pictures=PictureSettings(PictureFormat(pictures), min_side_px=min_side, long_side_px=long_side),
        vision=_vision(model, base_url, api_key_env, parallel),
        num_workers=workers,
        shard_mb=shard_mb,
    )
    try:
        report = build(request)
    except VisionUnavailable as error:
        fail(f"{error}. What was answered is kept: run the same command again to go on.", 1)
    typer.echo(report.read_text(encoding="utf-8") if as_json else _summary(report), nl=not as_json)


def _vision(
    model: str | None, base_url: str | None, api_key_env: str | None, parallel: int | None
) -> VisionSettings | None:
    from physedit.data_loaders.vision_settings import VisionSettings

    if model is None:
        _refuse_idle("no --model", {"--base-url": base_url, "--api-key-env": api_key_env, "--parallel": parallel})
        return None
    return VisionSettings(model, base_url=base_url, api_key_env=api_key_env, max_parallel=parallel or 4)


def _refuse_idle(why: str, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} {value} has no effect with {why}. Leave it out.")


def _summary(report: Path) -> str:
    found = json.loads(report.read_text(encoding="utf-8"))
    lines = [f"{found['num_pairs']} pair(s) from {found['num_videos']} video(s) in {report.parent / 'data'}"]
    for what, counts in found["dropped"].items():
        said = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        lines.append(f"dropped of {what}s: {said}")
    return "\n".join([*lines, str(report)])
