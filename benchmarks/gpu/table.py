"""The results of ``benchmarks/gpu.sh``: measured beside predicted, as a table."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_GIB = 2**30
_LEGEND = (
    "MFU: operations of transformer and adapter, forward and backward, none twice, by the card's dense bfloat16 rate; "
    '"of all done" counts recomputed blocks and encoding too. Peak: `torch.cuda.max_memory_allocated` since the editor '
    "was built; held: `max_memory_reserved`. Steps are the real loop's, the first left out: loading, encoding by VAE "
    "and text encoders, forward, backward, update. Not measured: released weights, evaluations, checkpoints, several "
    "GPUs."
)
_TITLES = {"kontext": "FLUX.1-Kontext", "qwen": "Qwen-Image-Edit"}


@dataclass(frozen=True, slots=True)
class Leg:
    """One setting: what was predicted and what was measured. Sizes are bytes, times seconds a sample.

    Attributes:
        model: ``kontext`` or ``qwen``.
        overrides: of the setting.
        outcome: ``measured``, or why there is no measurement.
        message: of what ended it.
        num_steps: that were measured, the first left out.
        sample_s: measured, the median of the steps.
        spread_s: of the fastest and of the slowest step.
        mfu: share of the card's dense bfloat16 rate by what a step cannot do without.
        done_share: the same by all that is computed: what is computed twice, and encoding, too.
        allocated: most bytes of torch's tensors.
        reserved: most bytes that torch's allocator held.
        built_s: seconds until the first step.
        predicted_peak: of allocated bytes.
        predicted_s: seconds a sample.
        predicted_range_s: at best and at worst.
    """

    model: str
    overrides: tuple[str, ...]
    outcome: str
    message: str
    num_steps: int
    sample_s: float | None
    spread_s: tuple[float, float] | None
    mfu: float | None
    done_share: float | None
    allocated: int | None
    reserved: int | None
    built_s: float
    predicted_peak: int
    predicted_s: float
    predicted_range_s: tuple[float, float]

    @staticmethod
    def of(
        record: Mapping[str, Any],  # as json gave it
        *,
        model: str,
        overrides: Sequence[str],
        predicted_peak: int,
        predicted_s: float,
        predicted_range_s: tuple[float, float],
        useful_flops: int,
        done_flops: int,
        peak_flops: float,
    ) -> "Leg":
        """Returns the leg of a record of ``gpu.leg``; operations are a sample's, ``peak_flops`` a second's."""
        steps: list[float] = record["step_s"][1:]
        samples = [seconds / record["samples_a_step"] for seconds in steps]
        sample_s = statistics.median(samples) if samples else None
        return Leg(
            model=model,
            overrides=tuple(overrides),
            outcome=record["outcome"],
            message=record["message"],
            num_steps=len(steps),
            sample_s=sample_s,
            spread_s=(min(samples), max(samples)) if samples else None,
            mfu=None if sample_s is None else useful_flops / sample_s / peak_flops,
            done_share=None if sample_s is None else done_flops / sample_s / peak_flops,
            allocated=record.get("allocated"),
            reserved=record.get("reserved"),
            built_s=record.get("built_s", 0.0),
            predicted_peak=predicted_peak,
            predicted_s=predicted_s,
            predicted_range_s=predicted_range_s,
        )


@dataclass
class Report:
    """Everything that is written."""

    card: str
    predicted_for: str
    driver: str
    torch: str
    cuda: str
    commit: str
    date: str
    command: str
    is_tiny: bool
    products: str
    rank: int
    side_px: int
    legs: list[Leg]


def table(report: Report) -> str:
    """Returns Markdown: where and how it was run, a row a setting, and what is not measured."""
    about = f"{report.card}, driver {report.driver or '-'}, torch {report.torch}, CUDA {report.cuda or '-'}"
    about += f", the adapter's products in {report.products}"
    lines = [
        f"LoRA of rank {report.rank} at {report.side_px}x{report.side_px}, one device, random weights: {about}; "
        f"{report.date}, commit {report.commit or '-'}.",
        "",
        f"    {report.command}",
        "",
    ]
    if report.is_tiny:
        lines += [
            f"**Tiny size on the CPU: this shows that the path works. Predictions are for one {report.predicted_for}; "
            "no figure here tells anything of a GPU.**",
            "",
        ]  # fmt: skip
    lines += [
        "| editor | setting | samples/s | s a sample (steps) | predicted | MFU | of all done | peak GiB | held GiB | "
        "predicted | peak / predicted |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, report.legs),
        "",
        _LEGEND,
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _row(leg: Leg) -> str:
    settings = " ".join(each.rpartition(".")[2] for each in leg.overrides if each != "backbone.quantization=null")
    best, worst = leg.predicted_range_s
    if leg.sample_s is None:
        measured = [f"{leg.outcome}: {leg.message}" if leg.message else leg.outcome, "-"]
    else:
        assert leg.spread_s is not None
        spread = f"{leg.spread_s[0]:.3g} to {leg.spread_s[1]:.3g}, {leg.num_steps} steps"
        measured = [f"{1 / leg.sample_s:.3g}", f"{leg.sample_s:.3g} ({spread})"]
    cells = [
        _TITLES[leg.model],
        settings,
        *measured,
        f"{leg.predicted_s:.3g} ({best:.3g} to {worst:.3g})",
        _percent(leg.mfu),
        _percent(leg.done_share),
        _gib(leg.allocated),
        _gib(leg.reserved),
        _gib(leg.predicted_peak),
        "-" if leg.allocated is None else f"{leg.allocated / leg.predicted_peak:.3f}",
    ]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


def _gib(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / _GIB:.2f}"
