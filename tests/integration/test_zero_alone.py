"""DeepSpeed in a launch of one process: it counts as the run does, and takes a checkpoint of adapters alone."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.support import spies
from tests.support.encoded import some_pairs, write_pairs, write_picture
from tests.support.runs import metrics_of, smoke_overrides

from physedit.eval_hooks.files import file_digest, write_json

NUM_STEPS, ACCUMULATION, MICRO_BATCH = 4, 4, 2
ADAPTER = "adapter/pytorch_lora_weights.safetensors"


@dataclass(frozen=True)
class Launch:
    """A run of one process under ZeRO-2 over pictures of two sizes."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: Path
    spied: Path

    def start(self, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *more], env=self.environment, cwd=self.folder.parent, timeout=300, check=False,
            capture_output=True, text=True,
        )  # fmt: skip

    @property
    def engine(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "engine.json").read_text())
        return found


@pytest.fixture(scope="module")
def launch(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Trains ``NUM_STEPS`` steps."""
    root = tmp_path_factory.mktemp("alone")
    (root / "data").mkdir()
    for number in range(0, 12, 3):
        for seed, side in enumerate("ab"):
            write_picture(root / "data" / f"{number}{side}.bmp", 3 * number + seed, 48, 80)
    write_pairs(root / "data", some_pairs(12))
    more = (
        "data=pairs", f"data.path={root / 'data'}", "data.source=before", "data.target=after", "data.instruction=text",
        f"global_batch={ACCUMULATION * MICRO_BATCH}", f"micro_batch={MICRO_BATCH}", "log_every=1", "checkpoint.every=1",
        "checkpoint.keep=20", "launch=cpu_zero2", "launch.num_processes=1", *spies.OVERRIDES,
    )  # fmt: skip
    command = (str(Path(sys.executable).parent / "physedit"), "train", *smoke_overrides(world, root, "run", more))
    environment = os.environ | spies.environment_of(root / "spied") | {
        "OMP_NUM_THREADS": "1", "COLUMNS": "400", "TORCH_EXTENSIONS_DIR": str(root / "extensions"),
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1",  # what a launcher exports must not win
    }  # fmt: skip
    started = Launch(command, environment, root / "run", root / "spied")
    done = started.start(f"num_steps={NUM_STEPS}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return started


@pytest.mark.slow
def test_c08_sixteen_batches_of_four_are_exactly_four_updates(launch: Launch) -> None:
    engine = launch.engine
    assert (engine["distributed_type"], engine["wrapper"], engine["zero_stage"]) == ("DEEPSPEED", "DeepSpeedEngine", 2)
    assert engine["accumulation"] == ACCUMULATION
    met = spies.lines_of(launch.spied, 0, "adapter")[: NUM_STEPS * ACCUMULATION]
    assert len(met) == 16
    by_step = [set(met[at : at + ACCUMULATION]) for at in range(0, 16, ACCUMULATION)]
    assert [len(digests) for digests in by_step] == [1] * NUM_STEPS  # within a step nothing changes
    assert len(set(met)) == NUM_STEPS
    saved = sorted((launch.folder / "checkpoints").glob("step_*"))
    assert [path.name for path in saved[:NUM_STEPS]] == [f"step_{step:08d}" for step in range(1, NUM_STEPS + 1)]
    assert len({file_digest(path / ADAPTER) for path in saved}) == len(saved)  # the fourth update was made too
    assert [line["step"] for line in metrics_of(launch.folder)][:NUM_STEPS] == [1, 2, 3, 4]


@pytest.mark.slow
def test_c13_a_sampler_of_buckets_trains_with_the_configured_micro_batch(launch: Launch) -> None:
    assert json.loads((launch.folder / "order.json").read_text())["sizes"] == 2
    engine = launch.engine
    assert (engine["wrapper"], engine["micro_batch"]) == ("DeepSpeedEngine", MICRO_BATCH)
    assert engine["global_batch"] == engine["micro_batch"] * engine["accumulation"] * engine["num_processes"] == 8
    batches = spies.lines_of(launch.spied, 0, "ids")
    assert {len(ids) for ids in batches} == {MICRO_BATCH}


@pytest.mark.slow
def test_d07_adapters_alone_resume_and_one_that_is_missing_is_named(launch: Launch, tmp_path: Path) -> None:
    newest = launch.folder / "checkpoints" / f"step_{NUM_STEPS:08d}"
    assert all("lora_" in name for name in load_file(newest / ADAPTER))
    kept = tmp_path / "kept"
    shutil.copytree(newest, kept)
    tensors = load_file(newest / ADAPTER)
    lost = sorted(name for name in tensors if "lora_B" in name)[3]
    _rewrite(newest, {name: value for name, value in tensors.items() if name != lost})
    refused = launch.start(f"num_steps={NUM_STEPS + 1}")
    assert refused.returncode != 0
    assert lost.removeprefix("transformer.") in " ".join((refused.stdout + refused.stderr).split())
    shutil.rmtree(newest)
    shutil.copytree(kept, newest)
    resumed = launch.start(f"num_steps={NUM_STEPS + 1}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert launch.engine["wrapper"] == "DeepSpeedEngine"
    assert [line["step"] for line in metrics_of(launch.folder)] == [1, 2, 3, 4, 5]


def _rewrite(checkpoint: Path, adapter: dict[str, Any]) -> None:
    """Puts another adapter into a checkpoint, with its hash, so that what is missing is looked for and not the hash."""
    path = checkpoint / ADAPTER
    save_file(adapter, path, metadata={})
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"][ADAPTER] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    write_json(checkpoint / "manifest.json", manifest)
