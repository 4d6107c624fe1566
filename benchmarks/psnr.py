"""Measures PSNR outside the edit against the published script's way of computing it.

    python -m benchmarks.psnr [--pictures 200] [--rounds 3] [--fast-only]

Pairs of 1024x683, decoded and in memory, each with a rectangle left out. One after the other in float32 torch, once as
the published script does it (levels as float64 divided by 255, a mask over three channels that picks pixels) and once
as plainly as float32 torch can; then as this project does it, in whole numbers and several threads. All three must
agree within 1e-4 dB. Prints seconds and ratios of each round; exit code 1 if the ratio to the plainer one is below 5.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.results import Result, add_json_option, report, spread_of
from physedit.data_loaders.sample import Box
from physedit.eval_hooks.metrics.consistency import outside_mask, psnr_outside

WIDTH, HEIGHT = 1024, 683
AREA = (Box(200.5, 100.0, 300.0, 250.0),)
LEAST = 5.0
Pair = tuple[Tensor, Tensor]


def main() -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fast-only", action="store_true", help="leave the published script's way out: it is slow")
    add_json_option(parser)
    arguments = parser.parse_args()
    pairs = [pair_of(seed) for seed in range(arguments.pictures)]
    threads = os.cpu_count() or 1
    print(f"{len(pairs)} pairs of {WIDTH}x{HEIGHT}, {threads} cores, torch on {torch.get_num_threads()} threads")
    others = {"plain float32 torch": plain_psnr}
    if not arguments.fast_only:
        others["as the published script"] = published_psnr
    ours_s: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(arguments.rounds):
        seconds, ours = timed(lambda: in_threads(pairs, threads))
        ours_s.append(seconds)
        print(f"this project, {threads} threads: {seconds:.2f} s")
        for name, psnr in others.items():
            seconds, values = timed(partial(one_by_one, psnr, pairs))
            apart = max(abs(value - own) for value, own in zip(values, ours, strict=True))
            ratios[name].append(seconds / ours_s[-1])
            print(f"{name}, one by one: {seconds:.2f} s, {ratios[name][-1]:.1f} times as long; {apart:.1e} dB apart")
            assert apart < 1e-4
    results = results_of(ours_s, ratios, f"{len(pairs)} pairs of {WIDTH}x{HEIGHT}, {threads} threads")
    report(results, arguments.json)
    return 1 if any(result.is_met is False for result in results) else 0


def results_of(ours_s: list[float], ratios: dict[str, list[float]], what: str) -> list[Result]:
    """Returns the medians; only the ratio to plain torch has a target."""
    results = [Result(f"PSNR of {what}", statistics.median(ours_s), "s", "", spread_of(ours_s, "rounds"))]
    for name, found in ratios.items():
        target = f">= {LEAST:g}" if name.startswith("plain") else ""
        what = f"{name}, one by one, over this project's"
        results.append(Result(what, statistics.median(found), "times", target, spread_of(found, "rounds")))
    return results


def pair_of(seed: int) -> Pair:
    """A picture and a copy of it with a little noise, uint8 ``[3, H, W]``."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator)
    noise = torch.randint(-9, 10, source.shape, dtype=torch.int16, generator=generator)
    return source, (source.to(torch.int16) + noise).clamp(0, 255).to(torch.uint8)


def in_threads(pairs: Sequence[Pair], threads: int) -> list[float]:
    """This project's PSNR of every pair."""
    with ThreadPoolExecutor(threads) as pool:
        values = list(pool.map(lambda pair: psnr_outside(pair[0], pair[1], AREA), pairs))
    return [value for value in values if value is not None]


def one_by_one(psnr: Callable[[Tensor, Tensor], float], pairs: Sequence[Pair]) -> list[float]:
    """Another PSNR of every pair."""
    return [psnr(source, edited) for source, edited in pairs]


def plain_psnr(source: Tensor, edited: Tensor) -> float:
    """PSNR in float32, masked by multiplication."""
    outside = outside_mask(HEIGHT, WIDTH, AREA)
    assert outside is not None
    weight = outside.to(torch.float32)
    squares = (edited.to(torch.float32) / 255 - source.to(torch.float32) / 255) ** 2 * weight
    return -10 * math.log10(float(squares.sum() / (3 * weight.sum())))


def published_psnr(source: Tensor, edited: Tensor) -> float:
    """PSNR by the steps that the published script takes with decoded pictures."""
    outside = outside_mask(HEIGHT, WIDTH, AREA)
    assert outside is not None
    first, second = (as_published(picture) for picture in (source, edited))
    everywhere = outside[None, None].expand_as(first)
    mean_square = torch.mean((second[everywhere] - first[everywhere]) ** 2)
    return float(20 * torch.log10(1 / torch.sqrt(mean_square)))


def as_published(picture: Tensor) -> Tensor:
    """Float32 ``[1, 3, H, W]`` in 0..1 from decoded ``[H, W, 3]``, by way of float64."""
    decoded = np.ascontiguousarray(picture.permute(1, 2, 0).numpy())
    return torch.tensor((decoded / 255.0).astype(np.float32)).permute(2, 0, 1)[None]


def timed(work: Callable[[], list[float]]) -> tuple[float, list[float]]:
    """Seconds that the work takes, and what it gives."""
    started = time.perf_counter()
    values = work()
    return time.perf_counter() - started, values


if __name__ == "__main__":
    sys.exit(main())
