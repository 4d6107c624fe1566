"""All checks of ``physedit doctor``, cheap things first."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig

from physedit.data_loaders.sample import EditDataset
from physedit.launch.plan import find_profile
from physedit.train.doctor import machine, parts, places, services
from physedit.train.doctor.finding import Finding, State, ok, warning
from physedit.train.doctor.ranks import check_ranks


def examine(
    config: DictConfig, given: Sequence[str], *, distributed: bool, config_dir: Path | None = None
) -> Iterator[Finding]:
    """Yields what is found about a run of ``config``, check by check; leaves no file behind.

    Args:
        config: composed and validated.
        given: the overrides that it was composed of.
        distributed: start the launch's processes and measure between them, too.
        config_dir: a folder of the user's yaml groups.
    """
    yield from _of_machine(config, given, config_dir)
    yield places.check_run_place(config)
    yield places.check_clock(config)
    yield places.check_encode_place(config)
    yield parts.check_components(config)
    yield services.check_tracker(config)
    yield services.check_certificates(config)
    yield from _of_editor(config)
    yield from _of_evaluations(config)
    if distributed:
        yield from check_ranks(config, given, config_dir)


def _of_machine(config: DictConfig, given: Sequence[str], config_dir: Path | None) -> Iterator[Finding]:
    yield machine.check_python()
    yield machine.check_packages()
    yield machine.check_torch(config)
    gpus = machine.check_gpus(config)
    yield gpus
    if gpus.state is not State.ERROR:  # a plan counts GPUs, too
        yield machine.check_launch(config, given, config_dir)
    yield machine.check_nccl(config)
    yield machine.check_attention()
    yield machine.check_deepspeed(config)
    yield machine.check_shared_memory(config)


def _of_editor(config: DictConfig) -> Iterator[Finding]:
    """Yields what is found about weights, data and one encoded batch."""
    found, outline = parts.check_weights(config)
    yield found
    data, dataset = parts.check_data(config, outline)
    yield data
    if outline is None:
        yield places.check_disk(config, None)
        return
    if not parts.are_local(config):
        yield services.check_hub(config)
        yield warning("batch", "not encoded: the weights are not on this machine", "Run doctor where they are.")
        yield from _positions(config, None)
        yield places.check_disk(config, None)
        return
    loaded = parts.load(config)
    if isinstance(loaded, Finding):
        yield loaded
        yield places.check_disk(config, None)
        return
    yield ok("editor", f"loaded, with an adapter of {loaded.num_parameters / 1e6:.2f} M parameters")
    yield places.check_disk(config, loaded.num_parameters)
    if data.state is not State.ERROR:
        yield from _of_batch(config, loaded, dataset)


def _of_batch(config: DictConfig, loaded: parts.Loaded, dataset: EditDataset | None) -> Iterator[Finding]:
    encoded = parts.encode_batch(config, loaded.backbone, dataset, _device(config))
    yield encoded.finding
    yield from _positions(config, encoded.lost_positions)
    if config.encode.mode == "cached" and dataset is not None and encoded.bytes_a_row:
        yield places.check_encode_disk(config, encoded.bytes_a_row, len(dataset))


def _of_evaluations(config: DictConfig) -> Iterator[Finding]:
    judges = {key: services.check_judge(key, node) for key, node in services.judge_nodes(config).items()}
    yield from judges.values()
    for name in sorted(map(str, config.eval)):
        key = f"eval.{name}.judge"
        judge = judges.get(key if key in judges else "judge")
        yield parts.check_hook(config, name, has_judge=judge is None or judge.state is not State.ERROR)


def _positions(config: DictConfig, lost: bool | None) -> Iterator[Finding]:
    found = parts.check_positions(config, lost)
    if found is not None:
        yield found


def _device(config: DictConfig) -> torch.device:
    """Returns where a batch is encoded: not on a card that the base need not fit on."""
    launch = config.launch
    is_cut = launch.kind == "local" and find_profile(str(launch.profile)).zero_stage == 3
    on_cpu = is_cut or config.device == "cpu" or launch.device == "cpu" or not torch.cuda.is_available()
    return torch.device("cpu" if on_cpu else "cuda")
