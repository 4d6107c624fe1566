"""What is checked before a process joins, a model loads or a file is written: cheap things first."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from physedit.data_loaders.sample import EditDataset, PromptLevel
from physedit.eval_hooks.files import nearest_existing
from physedit.eval_hooks.hook import EvalHook
from physedit.train.assemble import build_checked, check_backbone, outline_of, scenes_are_missing
from physedit.train.config import ConfigError
from physedit.train.optim import check_element_wise, check_optimizer
from physedit.train.run_folder import check_run_folder, run_folder_of
from physedit.train.upload import check_target
from physedit.train.zero import asked_for


def check(config: DictConfig) -> None:
    """Verifies components, run folder, weights, data and benchmarks without a model; writes nothing to the run.

    What is wrong is reported together. Data and benchmarks of an embedded world that is yet to be written are checked
    after it is written.

    Raises:
        ValueError: one paragraph with key or path, what was found and the remedy, of each problem.
    """
    problems = [problem for step in _steps(config) if (problem := _problem(step)) is not None]
    if not problems:
        _check_data(config)
        return
    # Opening a large set may take long, which is no way to learn of a misspelled key.
    problems += _absent_data(config)
    if len(problems) == 1:
        raise problems[0]
    texts = (f"({number}) {problem}" for number, problem in enumerate(problems, start=1))
    raise ConfigError(f"{len(problems)} things are wrong. {' '.join(texts)}") from problems[0]


def _steps(config: DictConfig) -> Iterator[Callable[[], object]]:
    """Yields what is to be verified before the data, cheap things first."""
    for name in ("objective", "schedule", "tracker"):
        yield partial(build_checked, name, config[name])
    yield partial(_check_optimizer, config)
    yield partial(_check_run_folder, config)
    yield partial(_check_backbone, config)
    for name in sorted(map(str, config.eval)):
        yield partial(_check_hook, config, name)


def _check_optimizer(config: DictConfig) -> None:
    check_optimizer(config.optimizer)
    if asked_for():  # a parent that is yet to start the launch asks its profile instead
        check_element_wise(config.optimizer)


def _problem(step: Callable[[], object]) -> ValueError | None:
    """Returns the refusal of ``step``; an error that is no refusal of ours passes."""
    try:
        step()
    except ValueError as error:
        if not type(error).__module__.startswith("physedit."):
            raise
        return error
    return None


def _check_run_folder(config: DictConfig) -> None:
    check_target(config.checkpoint.upload_to)
    check_places(config)
    check_run_folder(config)


def _check_backbone(config: DictConfig) -> None:
    """Verifies weights and settings of the backbone; the outline refuses what the loaded editor would."""
    check_backbone(config)
    outline_of(config)


def _check_hook(config: DictConfig, name: str) -> None:
    node = config.eval[name]
    rows = node.get("data")
    if rows is not None and any(is_yet_to_be_written(config, path) for path in paths_of(rows)):
        return
    hook: EvalHook = build_checked(f"eval.{name}", node)
    if not is_yet_to_be_written(config, node.get("benchmark")):
        hook.check()


def _check_data(config: DictConfig) -> None:
    if not any(is_yet_to_be_written(config, path) for path in paths_of(config.data)):
        check_levels(config, build_checked("data", config.data))


def _absent_data(config: DictConfig) -> list[ValueError]:
    """Returns a refusal for each place of data that is not there, without opening any."""
    places = [str(path) for path in paths_of(config.data) if path is not None]
    absent = [
        place
        for place in places
        if not place.startswith("hf://") and not is_yet_to_be_written(config, place) and not Path(place).exists()
    ]
    return [ConfigError(f"data: there is no such path as {place}. Set data.path.") for place in absent]


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


def check_places(config: DictConfig) -> None:
    """Verifies that the run folder and the encoded cache can be made where they are asked for; leaves nothing there.

    Raises:
        ConfigError: naming the key, the place and why not.
    """
    _check_can_be_made("output_root", Path(str(config.output_root)), run_folder_of(config))
    folder = Path(str(config.encode.folder))
    if config.encode.mode == "cached" and not folder.is_dir():  # a whole cache is only read
        _check_can_be_made("encode.folder", folder, folder)


def _check_can_be_made(key: str, asked: Path, folder: Path) -> None:
    """Refuses a folder that is a file, lies behind a broken link, or has no parent to make it in."""
    for path in (asked.absolute(), *asked.absolute().parents):
        if path.is_symlink() and not path.exists():
            raise ConfigError(
                f"{key}={asked}: {path} is a link to {path.readlink()}, where nothing is. Mount that disk, mend the "
                f"link, or set another {key}."
            )
    parent = nearest_existing(folder)
    try:
        # Rights alone do not tell: nobody can make a folder in /proc.
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"{key}={asked}: the folder {folder} cannot be made, as {parent} is no folder that can be written "
            f"({error.strerror}). Set another {key}."
        ) from error


def paths_of(data: DictConfig) -> list[object]:
    """Returns the paths that a data option, or the members of a mixture, read."""
    return [data.get("path"), *(member.get("path") for member in (data.get("members") or {}).values())]


def is_yet_to_be_written(config: DictConfig, path: object) -> bool:
    """True for a path inside an embedded world that the run will write first."""
    return scenes_are_missing(config) and Path(str(path)).is_relative_to(str(config.scenes.folder))
