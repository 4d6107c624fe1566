"""A run in which faults are planted for ``physedit doctor`` to find, and the faults."""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.support.judge_server import Reply, failing, judge_server
from tests.support.runs import smoke_overrides

from physedit.train.compose import compose_config
from physedit.train.doctor import examine as examining
from physedit.train.doctor import machine, places
from physedit.train.doctor.finding import Finding, State

HUB_ID = "someone/an-editor"
TOY = Path(__file__).resolve().parents[2] / "models" / "toy"


@dataclass
class Bench:
    """What a fault is planted in: a run's overrides, and the means to break what it uses."""

    world: Path
    folder: Path
    patch: pytest.MonkeyPatch
    until_end: ExitStack
    overrides: list[str] = field(default_factory=list)

    def add(self, *overrides: str) -> None:
        self.overrides += overrides

    def examined(self) -> list[Finding]:
        given = smoke_overrides(self.world, self.folder / "runs", "run", self.overrides)
        return list(examining.examine(compose_config(given), given, distributed=False))

    def judge(self, url: str, *more: str) -> None:
        self.add("eval=picabench", f"picabench.benchmark={self.world / 'benchmark'}", "judge=openai_compatible")
        self.add("judge.model=seer", f"judge.base_url={url}", *more)


def unlike_python(bench: Bench) -> None:
    bench.patch.setattr(machine.platform, "python_version", lambda: "3.9.1")


def old_package(name: str, version: str | None) -> Callable[[Bench], None]:
    def plant(bench: Bench) -> None:
        known = machine.installed
        bench.patch.setattr(machine, "installed", lambda each: version if each == name else known(each))

    return plant


def cpu_torch_on_a_gpu_machine(bench: Bench) -> None:
    driver = bench.folder / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1  Thu\n")
    bench.patch.setattr(machine, "_DRIVER", driver)
    bench.patch.setattr(machine.torch.version, "cuda", None)


def no_gpu(bench: Bench) -> None:
    bench.patch.setattr(machine.torch.cuda, "is_available", lambda: False)
    bench.add("device=cuda")


def too_few_gpus(bench: Bench) -> None:
    bench.patch.setattr("torch.cuda.device_count", lambda: 1)
    bench.add("launch=ddp", "launch.num_processes=2")


def batch_that_cannot_be_shared(bench: Bench) -> None:
    bench.add("launch=cpu_ddp2", "global_batch=6")


def no_sbatch(bench: Bench) -> None:
    bench.patch.setenv("PATH", str(bench.folder))
    bench.add("launch=slurm", "launch.slurm.nodes=1", "launch.slurm.gpus_per_node=2")


def no_deepspeed(bench: Bench) -> None:
    bench.patch.setitem(sys.modules, "deepspeed", None)
    bench.add("launch=cpu_zero2")


def broken_deepspeed(bench: Bench) -> None:
    bench.patch.setattr(machine, "import_fault", lambda *_arguments: "MissingCUDAException: CUDA_HOME does not exist")
    bench.add("launch=cpu_zero2")


def no_ninja(bench: Bench) -> None:
    bench.patch.setattr(machine, "import_fault", lambda *_arguments: "")
    bench.patch.setattr(machine.shutil, "which", lambda _name: None)
    bench.patch.setattr(machine.sys, "executable", str(bench.folder / "python"))
    bench.add("launch=cpu_zero2")


def full_disk(bench: Bench) -> None:
    _hold_a_mebibyte(bench, lambda path: path != machine.SHARED_MEMORY)


def small_shared_memory(bench: Bench) -> None:
    bench.patch.setattr(machine, "SHARED_MEMORY", bench.folder / "shm")
    (bench.folder / "shm").mkdir()
    _hold_a_mebibyte(bench, lambda path: path == machine.SHARED_MEMORY)
    bench.add("num_workers=4")


def _hold_a_mebibyte(bench: Bench, is_small: Callable[[Path], bool]) -> None:
    known = os.statvfs
    small = SimpleNamespace(f_bavail=2**20, f_bfree=2**20, f_blocks=2**20, f_frsize=1)
    bench.patch.setattr(os, "statvfs", lambda path: small if is_small(Path(str(path))) else known(path))


def unwritable_root(bench: Bench) -> None:
    bench.add("output_root=/proc/runs")


def root_is_a_file(bench: Bench) -> None:
    (bench.folder / "runs").write_text("taken")


def root_behind_a_dead_link(bench: Bench) -> None:
    (bench.folder / "link").symlink_to(bench.folder / "unmounted")
    bench.add("output_root=link/runs")


def folder_of_another_run(bench: Bench) -> None:
    (bench.folder / "runs" / "run").mkdir(parents=True)
    (bench.folder / "runs" / "run" / "notes.txt").write_text("mine")


def clock_off(skew_s: float) -> Callable[[Bench], None]:
    def plant(bench: Bench) -> None:
        bench.patch.setattr(places, "file_time_s", lambda path: path.stat().st_mtime + skew_s)

    return plant


def unwritable_encode_folder(bench: Bench) -> None:
    bench.add("encode=cached", "encode.folder=/proc/encoded")


def no_encoded_cache(bench: Bench) -> None:
    bench.add("encode=cached", "encode.write_missing=false", f"encode.folder={bench.folder / 'none'}")


def no_data(bench: Bench) -> None:
    bench.add("data.path=no/pairs")


def unreadable_data(bench: Bench) -> None:
    copy = bench.folder / "world"
    shutil.copytree(bench.world, copy)
    for file in (copy / "train").rglob("*.parquet"):
        file.write_bytes(b"PAR1 no parquet")
    bench.add(f"data.path={copy / 'train'}")


def empty_data(bench: Bench) -> None:
    copy = bench.folder / "world"
    shutil.copytree(bench.world, copy)
    for file in (copy / "train").rglob("*.parquet"):
        parquet.write_table(parquet.read_table(file).slice(0, 0), file)
    bench.add(f"data.path={copy / 'train'}")


def broken_pictures(bench: Bench) -> None:
    copy = bench.folder / "world"
    shutil.copytree(bench.world, copy)
    for file in (copy / "train").rglob("*.parquet"):
        table = parquet.read_table(file)
        place = next(number for number, each in enumerate(table.schema) if pa.types.is_struct(each.type))
        broken = pa.array([{"bytes": b"no picture", "path": None}] * len(table), table.schema.field(place).type)
        parquet.write_table(table.set_column(place, table.schema.field(place), broken), file)
    bench.add(f"data.path={copy / 'train'}")


def no_weights(bench: Bench) -> None:
    bench.add("backbone.weights=./no/weights")


def damaged_weights(bench: Bench) -> None:
    copy = bench.folder / "weights"
    shutil.copytree(TOY / "flux_kontext", copy)
    next((copy / "transformer").glob("*.safetensors")).write_bytes(b"cut")
    bench.add(f"backbone.weights={copy}")


def truncated_text_encoder(bench: Bench) -> None:
    """Only loading shows it."""
    copy = bench.folder / "weights"
    shutil.copytree(TOY / "flux_kontext", copy)
    next((copy / "text_encoder").glob("*.safetensors")).write_bytes(b"cut")
    bench.add(f"backbone.weights={copy}")


def weights_of_another_class(bench: Bench) -> None:
    bench.add(f"backbone.weights={TOY / 'qwen_image_edit'}")


def hub_offline(bench: Bench) -> None:
    bench.patch.setattr("huggingface_hub.HfApi.auth_check", _raising(OSError("offline mode is enabled")))
    bench.add(f"backbone.weights={HUB_ID}")


def half_a_download(bench: Bench) -> None:
    copy = bench.folder / "snapshot"
    shutil.copytree(TOY / "flux_kontext", copy)
    shutil.rmtree(copy / "transformer")
    bench.patch.setattr("physedit.train.doctor.parts.cached_snapshot", lambda _weights: copy)
    hub_offline(bench)


def gated_model(bench: Bench) -> None:
    from huggingface_hub.errors import GatedRepoError

    bench.patch.setattr("huggingface_hub.HfApi.auth_check", _raising(GatedRepoError.__new__(GatedRepoError)))
    bench.add(f"backbone.weights={HUB_ID}")


def download_without_room(bench: Bench) -> None:
    files = [SimpleNamespace(rfilename="transformer/a.safetensors", size=2**60)]
    bench.patch.setattr("huggingface_hub.HfApi.auth_check", lambda *_arguments: None)
    bench.patch.setattr("huggingface_hub.HfApi.model_info", lambda *_a, **_k: SimpleNamespace(siblings=files))
    bench.add(f"backbone.weights={HUB_ID}")


def _raising(error: Exception) -> Callable[..., None]:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    return fail


def wrong_targets(bench: Bench) -> None:
    bench.add("adapter.preset=null", "adapter.targets=[no_such_layer]")


def lost_positions(bench: Bench) -> None:
    bench.patch.setattr("physedit.models.qwen_pipeline.own_positions", lambda _encoder: None)
    bench.add("backbone=toy_qwen_image_edit")


def no_memory(bench: Bench) -> None:
    import torch

    full = _raising(torch.OutOfMemoryError("CUDA out of memory"))
    bench.patch.setattr("physedit.models.flux_kontext.FluxKontext.encode_pictures", full)


def wrong_optimizer(bench: Bench) -> None:
    bench.add("optimizer.lr=-1")


def wandb_without_key(bench: Bench) -> None:
    bench.add("tracker=wandb", "tracker.mode=online")


def no_certificates(bench: Bench) -> None:
    nowhere = SimpleNamespace(cafile=None, capath=str(bench.folder / "certs"))
    bench.patch.setattr("ssl.get_default_verify_paths", lambda: nowhere)
    bench.patch.setenv("WANDB_API_KEY", "k" * 40)
    bench.add("tracker=wandb", "tracker.mode=online")


def absent_judge(bench: Bench) -> None:
    with judge_server() as server:
        url = server.base_url
    bench.judge(url)


def answering_judge(reply: Reply) -> Callable[[Bench], None]:
    def plant(bench: Bench) -> None:
        bench.judge(bench.until_end.enter_context(judge_server(always=reply)).base_url)

    return plant


def judge_without_key(bench: Bench) -> None:
    bench.judge("https://nowhere.invalid/v1", "judge.api_key_env=NO_SUCH_KEY")


def no_openai(bench: Bench) -> None:
    bench.patch.setitem(sys.modules, "openai", None)
    bench.judge("http://localhost:1/v1")


def no_benchmark(bench: Bench) -> None:
    bench.add("eval=scenes", "eval.scenes.benchmark=no/benchmark")


FAULTS: dict[str, tuple[Callable[[Bench], None], str, State, str]] = {
    "unsupported python": (unlike_python, "python", State.ERROR, "3.9.1, but >=3.11"),
    "old diffusers": (old_package("diffusers", "0.30.0"), "packages", State.ERROR, "0.30.0 is installed"),
    "absent peft": (old_package("peft", None), "packages", State.ERROR, "absent is installed"),
    "unsupported torch": (old_package("torch", "2.4.0+cpu"), "torch", State.ERROR, "2.4.0"),
    "CPU torch on a GPU machine": (cpu_torch_on_a_gpu_machine, "torch", State.WARNING, "NVIDIA driver"),
    "CUDA asked without a GPU": (no_gpu, "gpus", State.ERROR, "torch sees no GPU"),
    "fewer GPUs than processes": (too_few_gpus, "gpus", State.ERROR, "start 2 processes"),
    "batch that ranks cannot share": (batch_that_cannot_be_shared, "launch", State.ERROR, "global_batch=6"),
    "no sbatch": (no_sbatch, "launch", State.WARNING, "no sbatch here"),
    "no deepspeed under zero2": (no_deepspeed, "deepspeed", State.ERROR, "not installed"),
    "deepspeed that fails to import": (broken_deepspeed, "deepspeed", State.ERROR, "CUDA_HOME"),
    "no ninja and no compiler": (no_ninja, "deepspeed", State.WARNING, "no ninja and no C++ compiler"),
    "small shared memory": (small_shared_memory, "shared memory", State.ERROR, "1 MiB free"),
    "too little disk": (full_disk, "disk", State.ERROR, "1 MiB free"),
    "unwritable output root": (unwritable_root, "run folder", State.ERROR, "/proc"),
    "output root is a file": (root_is_a_file, "run folder", State.ERROR, "runs"),
    "output root behind a dead link": (root_behind_a_dead_link, "run folder", State.ERROR, "where nothing is"),
    "run folder holds other files": (folder_of_another_run, "run folder", State.ERROR, "no config.yaml"),
    "clock skew": (clock_off(-3600.0), "clock", State.ERROR, "-3600"),
    "slight clock skew": (clock_off(5.0), "clock", State.WARNING, "+5.0 s"),
    "unwritable encode folder": (unwritable_encode_folder, "encoded cache", State.ERROR, "/proc"),
    "encoded cache that is to be there": (no_encoded_cache, "encoded cache", State.ERROR, "write_missing=false"),
    "missing data path": (no_data, "data", State.ERROR, "no/pairs"),
    "unreadable data": (unreadable_data, "data", State.ERROR, "parquet"),
    "empty set": (empty_data, "data", State.ERROR, "no row"),
    "rows that cannot be decoded": (broken_pictures, "batch", State.ERROR, "none of the first 6 rows"),
    "no weights": (no_weights, "weights", State.ERROR, "no/weights"),
    "damaged weights": (damaged_weights, "weights", State.ERROR, "is damaged"),
    "damaged text encoder": (truncated_text_encoder, "editor", State.ERROR, "cannot be loaded"),
    "weights of another class": (weights_of_another_class, "weights", State.ERROR, "QwenImageEditPipeline"),
    "hub id offline": (hub_offline, "hub", State.WARNING, "cannot be asked"),
    "hub id whose download stopped": (half_a_download, "hub", State.WARNING, "not whole in the cache"),
    "gated model": (gated_model, "hub", State.ERROR, "is gated"),
    "no room for the download": (download_without_room, "hub", State.ERROR, "to download"),
    "adapter without a layer": (wrong_targets, "editor", State.ERROR, "no_such_layer"),
    "positions lost": (lost_positions, "positions", State.ERROR, "not told which tokens are pictures"),
    "no memory to encode": (no_memory, "batch", State.ERROR, "out of memory"),
    "wrong learning rate": (wrong_optimizer, "components", State.ERROR, "learning rate"),
    "wandb online without login": (wandb_without_key, "tracker", State.ERROR, "no key"),
    "no certificates": (no_certificates, "certificates", State.ERROR, "no certificates"),
    "absent judge server": (absent_judge, "judge", State.ERROR, "no connection"),
    "judge says 400": (answering_judge(failing(400, "no pictures")), "judge", State.ERROR, "no pictures"),
    "judge says 404": (answering_judge(failing(404, "no model seer")), "judge", State.ERROR, "no model seer"),
    "judge talks": (answering_judge(Reply(text="A nice day.")), "judge", State.WARNING, "not yes or no"),
    "judge key missing": (judge_without_key, "judge", State.ERROR, "NO_SUCH_KEY"),
    "openai missing": (no_openai, "judge", State.ERROR, "needs the package openai"),
    "benchmark missing": (no_benchmark, "eval.scenes", State.ERROR, "no/benchmark"),
}
