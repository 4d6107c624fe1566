"""GPUs as their makers publish them, and how long a step takes on one: a range, not a measurement."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from physedit.train.config import ConfigError
from physedit.train.estimate import RESERVE_BYTES, Estimate

GIB = 2**30
_TERA, _GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU.

    Attributes:
        memory: bytes that a process can have, whole GiB: somewhat less than the card is sold with.
        tensor_tflops: dense, bfloat16 with float32 sums.
        float_tflops: float32 outside the tensor cores.
        bandwidth_gb: of its memory, GB/s.
        link_gb: to other GPUs of the machine, GB/s in both directions together.
    """

    memory: int
    tensor_tflops: float
    float_tflops: float
    bandwidth_gb: float
    link_gb: float


GPUS: Mapping[str, Gpu] = {
    "A100-40GB": Gpu(39 * GIB, 312, 19.5, 1555, 600),
    "A100-80GB": Gpu(79 * GIB, 312, 19.5, 2039, 600),
    "A6000": Gpu(47 * GIB, 154.8, 38.7, 768, 64),
    "H100": Gpu(79 * GIB, 989.4, 67, 3350, 900),
    "H100-PCIe": Gpu(79 * GIB, 756, 51, 2000, 128),
    "H200": Gpu(139 * GIB, 989.4, 67, 4800, 900),
    "L40S": Gpu(44 * GIB, 362, 91.6, 864, 64),
    "RTX4090": Gpu(23 * GIB, 165.2, 82.6, 1008, 64),
}
"""Source: NVIDIA's data sheets of A100 (SXM), RTX A6000, H100 (SXM and PCIe), H200, L40S, and the Ada white paper
(RTX 4090): dense rates, half of those given with sparsity. They could not be compared with the sheets
from here."""
_FAST, _SLOW = 0.6, 0.25
"""Shares of the published rates that training reaches at best and at worst. Ours, not measured here."""
_HOST_LINK_GB = 50.0
"""PCIe 4 x16, both directions; for what DeepSpeed keeps in the machine's memory."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Seconds of an optimizer step, and samples a second of the whole launch: at best and at worst."""

    fast_s: float
    slow_s: float
    most_samples_s: float
    least_samples_s: float


def find_gpu(name: str) -> Gpu:
    """Returns the GPU of that name, in whatever case.

    Raises:
        ConfigError: it is not in the table.
    """
    known = {each.lower(): gpu for each, gpu in GPUS.items()}
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f" Did you mean {next(each for each in GPUS if each.lower() == near[0])}?" if near else ""
        raise ConfigError(f"--gpu {name} is not in the table.{hint} Known: {', '.join(GPUS)}.")
    return known[name.lower()]


def fits(estimate: Estimate, gpu: Gpu) -> bool:
    """Returns whether the peak and the reserve are no more than the GPU has."""
    return estimate.peak + RESERVE_BYTES <= gpu.memory


def time_range(estimate: Estimate, gpu: Gpu) -> TimeRange:
    """Returns how long a step takes: its arithmetic at a share of the published rates, or its reading if that is more.

    Products with the float32 adapter do not run on tensor cores, so they count at the lower rate. Under ZeRO-3 every
    pass also gathers the base, at worst while nothing is computed. Offloaded encoders come and leave with every micro
    batch. The widening of quantised weights, waiting for data, evaluations and checkpoints are not in it.
    """
    step = estimate.step
    tensor = step.flops - step.slow_flops + estimate.micro_batch * estimate.encoding_flops
    arithmetic = tensor / (gpu.tensor_tflops * _TERA) + step.slow_flops / (gpu.float_tflops * _TERA)
    reading = estimate.weights_read / (gpu.bandwidth_gb * _GIGA)
    link = _HOST_LINK_GB if estimate.placement.offloads("param") else gpu.link_gb
    gathered = estimate.placement.zero_stage == 3 and (
        estimate.placement.num_processes > 1 or estimate.placement.offloads("param")
    )
    gathering = estimate.weights_read / (link / 2 * _GIGA) if gathered else 0.0
    moving = 2 * estimate.moved / (_HOST_LINK_GB / 2 * _GIGA)
    fast = estimate.accumulation * (max(arithmetic / _FAST, reading, gathering) + moving)
    slow = estimate.accumulation * (max(arithmetic / _SLOW, reading) + gathering / _FAST + moving / _SLOW)
    samples = estimate.micro_batch * estimate.accumulation * estimate.placement.num_processes
    return TimeRange(fast, slow, samples / fast, samples / slow)
