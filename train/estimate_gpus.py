"""GPUs as their makers publish them, and how long a step takes on one: a range, not a measurement."""

import difflib
import math
import re
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
        device: the name that its driver gives it, as a pattern.
        memory: bytes that a process can have, whole GiB: somewhat less than the card is sold with.
        tensor_tflops: dense, bfloat16 with float32 sums.
        tf32_tflops: dense, float32 on the tensor cores, which torch does only if it is told to.
        float_tflops: float32 outside the tensor cores.
        bandwidth_gb: of its memory, GB/s.
        link_gb: to other GPUs of the machine, GB/s in both directions together.
    """

    device: str
    memory: int
    tensor_tflops: float
    tf32_tflops: float
    float_tflops: float
    bandwidth_gb: float
    link_gb: float


GPUS: Mapping[str, Gpu] = {
    "A100-40GB": Gpu(r"A100.*40GB", 39 * GIB, 312, 156, 19.5, 1555, 600),
    "A100-80GB": Gpu(r"A100.*80GB", 79 * GIB, 312, 156, 19.5, 2039, 600),
    "A6000": Gpu(r"RTX A6000", 47 * GIB, 154.8, 77.4, 38.7, 768, 64),
    "H100": Gpu(r"H100 80GB HBM3", 79 * GIB, 989.4, 494.7, 66.9, 3350, 900),
    "H100-PCIe": Gpu(r"H100 PCIe", 79 * GIB, 756.5, 378, 51, 2000, 128),
    "H200": Gpu(r"H200(?! NVL)", 139 * GIB, 989.4, 494.7, 66.9, 4800, 900),
    "L40S": Gpu(r"L40S", 44 * GIB, 362.05, 183, 91.6, 864, 64),
    "RTX4090": Gpu(r"RTX 4090(?! (D|Laptop))", 23 * GIB, 165.2, 82.6, 82.6, 1008, 64),
}
"""Source: NVIDIA's data sheets and white papers, dense rates: half of those given with sparsity. Compared in November
2026, not with NVIDIA's own files, but with pages that repeat them:

- A100 (SXM; the PCIe card of 80 GB has 1935 GB/s): glennklockwood.com/garden/processors/A100, after
  nvidia-a100-datasheet-us-nvidia-1758950-r4; memory 40441 MiB, deviceQuery in the wiki of PC2 Paderborn.
- H100 (SXM and PCIe): archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html, and for the decimals
  glennklockwood.com/garden/processors/h100; memory 79.11 GiB, torch's message in vllm-project/vllm issue 27508.
- H200 (SXM): itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html, aiwiki.ai/wiki/nvidia_h200 (the arithmetic
  is the H100's); its TF32 and the GiB that a process can have were not found.
- L40S: mullet.se, product 355414; memory 45372 MiB, base_results.json of a model of PrunaAI.
- RTX A6000: bandwidth and float32 sysrqmts.com, bfloat16 llmperf.net after Microway. Not found: TF32, which is half of
  bfloat16 as in the A40's sheet, and the GiB that a process can have.
- RTX 4090: waredb.com/processor/nvidia-geforce-rtx-4090; memory 23.64 GiB, torch's message in ali-vilab/VGen issue 104.

``link_gb`` of cards without NVSwitch is that of their PCIe slot: 4.0 x16, or 5.0 for the H100.
"""
_FAST, _SLOW = 0.6, 0.25
"""Shares of the published rates that training reaches at best and at worst. Ours, not measured here."""
_HOST_LINK_GB = 50.0
"""PCIe 4 x16, both directions; for what DeepSpeed keeps in the machine's memory."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Seconds of an optimizer step, and samples a second of the whole launch: at best and at worst.

    ``sample_s`` is one figure for the range, by which settings are compared: the geometric mean of best and worst, in
    seconds of the whole launch for a sample.
    """

    fast_s: float
    slow_s: float
    most_samples_s: float
    least_samples_s: float
    sample_s: float


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


def gpu_of_device(device_name: str) -> str | None:
    """Returns the table's name of the card that a driver calls ``device_name``; None if it is not in the table."""
    return next((name for name, gpu in GPUS.items() if re.search(gpu.device, device_name)), None)


def fits(estimate: Estimate, gpu: Gpu) -> bool:
    """Returns whether the peak and the reserve are no more than the GPU has."""
    return estimate.peak + RESERVE_BYTES <= gpu.memory


def time_range(estimate: Estimate, gpu: Gpu) -> TimeRange:
    """Returns how long a step takes: its arithmetic at a share of the published rates, or its reading if that is more.

    Float32 products of the adapter do not run on tensor cores, so they count at the lower rate, unless TF32 is on.
    Quantised weights are widened before every product. Under ZeRO-3 every pass also gathers the base; that, and the
    exchange of gradients, is hidden at best and at worst done while nothing is computed. Offloaded encoders come and
    leave with every micro batch. Waiting for data, evaluations and checkpoints are not in it.
    """
    step = estimate.step
    tensor = step.flops - step.slow_flops + estimate.micro_batch * estimate.encoding_flops
    float_tflops = gpu.tf32_tflops if estimate.placement.tf32 else gpu.float_tflops
    arithmetic = tensor / (gpu.tensor_tflops * _TERA) + step.slow_flops / (float_tflops * _TERA)
    reading = estimate.weights_read / (gpu.bandwidth_gb * _GIGA)
    widening = estimate.widened / (gpu.bandwidth_gb * _GIGA)
    link = _HOST_LINK_GB if estimate.placement.offloads("param") else gpu.link_gb
    gathered = estimate.placement.zero_stage == 3 and (
        estimate.placement.num_processes > 1 or estimate.placement.offloads("param")
    )
    gathering = estimate.weights_read / (link / 2 * _GIGA) if gathered else 0.0
    moving = 2 * estimate.moved / (_HOST_LINK_GB / 2 * _GIGA)
    exchange = estimate.exchanged / (gpu.link_gb / 2 * _GIGA)
    fast = max(estimate.accumulation * (max(arithmetic / _FAST, reading, gathering) + widening + moving), exchange)
    slow = estimate.accumulation * (
        max(arithmetic / _SLOW, reading) + gathering / _FAST + (widening + moving) / _SLOW
    ) + (exchange / _FAST)
    samples = estimate.micro_batch * estimate.accumulation * estimate.placement.num_processes
    return TimeRange(fast, slow, samples / fast, samples / slow, math.sqrt(fast * slow) / samples)
