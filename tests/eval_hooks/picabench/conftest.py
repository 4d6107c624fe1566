from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.stand_ins import RedJudge, write_benchmark

from physedit.eval_hooks.hook import Cadence
from physedit.eval_hooks.picabench.hook import PicaBenchHook


@pytest.fixture
def make_hook(tmp_path: Path) -> Callable[..., PicaBenchHook]:
    """Makes hooks over one benchmark of 7 items with targets."""
    benchmark = write_benchmark(tmp_path / "bench", 7, targets=True)

    def make(judge: RedJudge | None = None, **settings: object) -> PicaBenchHook:
        defaults: dict[str, object] = {
            "name": "picabench",
            "benchmark": str(benchmark),
            "num_steps": 1,
            "batch_size": 2,
        }
        return PicaBenchHook(
            judge=judge or RedJudge(),
            cadence=Cadence(),
            **(defaults | settings),  # type: ignore[arg-type]
        )

    return make
