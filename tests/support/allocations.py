"""What torch's own allocator hands out on the CPU, read from its profiler."""

from collections.abc import Callable

import torch


def peak_bytes(action: Callable[[], object]) -> int:
    """Returns the most bytes that tensors made by ``action`` took at once, workspaces of operators included.

    Every allocation and release of torch's CPU allocator is an event of the profiler, with its time.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        action()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events, "the profiler saw no allocation"
    live = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
