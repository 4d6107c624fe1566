"""Compiled and partly recomputed blocks in two processes train the adapter that plain blocks train in one."""

import json
from pathlib import Path

import pytest
from tests.support.runs import adapter_bytes, metrics_of, physedit, smoke_overrides

from physedit.data_loaders.scenes.write import ensure_world

BLOCKS = ("backbone.compile_blocks=aot_eager", "backbone.gradient_checkpointing=2", "backbone.attention=native")


@pytest.mark.slow
def test_two_ranks_with_compiled_and_recomputed_blocks_train_the_same_adapter(tmp_path: Path) -> None:
    world = tmp_path / "scenes"
    ensure_world(world, num_train=48, num_benchmark=12, seed=7)
    for name, more in {"plain": (), "compiled": ("launch=cpu_ddp2", *BLOCKS)}.items():
        done = physedit("train", *smoke_overrides(world, tmp_path, name, ("num_steps=2", "eval=none", *more)))
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "compiled" / "engine.json").read_text())["wrapper"] == "DistributedDataParallel"
    saved = (tmp_path / "compiled" / "config.yaml").read_text()
    assert all(f"  {each.removeprefix('backbone.').replace('=', ': ')}\n" in saved for each in BLOCKS)
    losses = [[line["train/loss"] for line in metrics_of(tmp_path / name)] for name in ("plain", "compiled")]
    assert losses[0] == losses[1] != []
    assert adapter_bytes(tmp_path / "plain", 2) == adapter_bytes(tmp_path / "compiled", 2)
