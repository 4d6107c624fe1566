"""What is checked before a process joins, a model loads or a file is written: cheap things first."""

import os
from pathlib import Path

import torch
from omegaconf import DictConfig

from physedit.data_loaders.sample import EditDataset, PromptLevel
from physedit.train.assemble import build_checked, build_hooks, check_backbone, scenes_are_missing
from physedit.train.config import ConfigError
from physedit.train.optim import build_optimizer
from physedit.train.run_folder import check_run_folder, run_folder_of


def check(config: DictConfig) -> None:
    """Verifies components, run folder, weights, data and benchmarks without a model; writes nothing to the run.

    Data and benchmarks of an embedded world that is yet to be written are checked after it is written.

    Raises:
        ValueError: one paragraph with key or path, what was found and the remedy.
    """
    for name in ("objective", "schedule", "tracker"):
        build_checked(name, config[name])
    build_optimizer(config.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    _check_writable(run_folder_of(config))
    check_run_folder(config)
    check_backbone(config)
    for hook, node in zip(build_hooks(config), (config.eval[name] for name in sorted(config.eval)), strict=True):
        if not _is_yet_to_be_written(config, node.get("benchmark")):
            hook.check()
    if not any(_is_yet_to_be_written(config, path) for path in _paths_of(config.data)):
        check_levels(config, build_checked("data", config.data))


def check_levels(config: DictConfig, dataset: EditDataset) -> None:
    """Verifies that the data has every prompt level the run asks for.

    Raises:
        ConfigError: naming the levels that are lacking and those the data has.
    """
    lacking = [level for level in PromptLevel if config.levels[level.value] > 0 and level not in dataset.levels]
    if lacking:
        has = ", ".join(sorted(dataset.levels))
        raise ConfigError(f"levels asks for {', '.join(lacking)} prompts, but the data has only: {has}.")


def check_references(max_sources: int, dataset: EditDataset) -> None:
    """Verifies that the editor takes as many pictures as the data gives.

    Raises:
        ConfigError: it takes fewer.
    """
    most = 1 + dataset.max_references
    if most > max_sources:
        raise ConfigError(
            f"data.references gives up to {most} pictures to edit from, but this backbone takes "
            f"{max_sources}. Drop some, or use backbone=qwen_image_edit_plus, which takes three."
        )


def _check_writable(folder: Path) -> None:
    """Refuses a run folder whose nearest existing parent cannot be written."""
    parent = folder.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"The run folder {folder} cannot be made: {parent} is no folder that can be written.")


def _paths_of(data: DictConfig) -> list[object]:
    """Returns the paths that a data option, or the members of a mixture, read."""
    return [data.get("path"), *(member.get("path") for member in (data.get("members") or {}).values())]


def _is_yet_to_be_written(config: DictConfig, path: object) -> bool:
    """True for a path inside an embedded world that the run will write first."""
    return scenes_are_missing(config) and Path(str(path)).is_relative_to(str(config.scenes.folder))
