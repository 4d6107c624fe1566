"""The order of a run from its config: size index, buckets and plan."""

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from physedit.data_loaders.accepted import AcceptedRows
from physedit.data_loaders.buckets import find_buckets
from physedit.data_loaders.mixture import Mixture, members_of
from physedit.data_loaders.references import reference_sizes, with_references
from physedit.data_loaders.sample import DroppedRow, EditDataset, PromptLevel
from physedit.data_loaders.size_index import SizeIndex
from physedit.data_loaders.slots import LevelMix, RunPlan
from physedit.eval_hooks.files import DamagedFileError, read_json, write_json
from physedit.models.backbone import Backbone
from physedit.train.assemble import outline_of
from physedit.train.config import ConfigError
from physedit.train.processes import Processes

logger = logging.getLogger(__name__)

PLAN_FILE = "order.json"
_DATA = "data"
"""Key of the fingerprints in it."""
_REMEDY = (
    "Put it back from a copy. If you are sure that the data is as the run began with it, move the file away: the run "
    "then goes on without that check."
)


def build_plan(config: DictConfig, processes: Processes, backbone: Backbone, dataset: EditDataset) -> RunPlan:
    """Returns the plan of the run; all ranks call it, and the first reads the sizes of all pictures if none are kept.

    Raises:
        ConfigError: the data cannot be ordered as the config asks.
    """
    folder, num_workers = size_indexes_of(config), int(config.num_workers)
    with processes.rank_0_first():
        index = SizeIndex.of(dataset, folder, num_workers=num_workers)
        references = reference_sizes(dataset, folder, num_workers=num_workers)
    weights = {level: float(config.levels[level.value]) for level in PromptLevel}
    try:
        plan = RunPlan(
            index,
            with_references(find_buckets(index.rows["source"], backbone.sizes_of), references, backbone.sizes_of),
            members_of(dataset),
            seed=int(config.seed),
            levels=LevelMix(weights, config.levels.mode),
            micro_batch=int(config.micro_batch),
            balance=config.order.balance,
        )
    except ValueError as error:
        raise ConfigError(f"data: {error}") from error
    _describe(plan)
    return plan


def accepted_rows(config: DictConfig, dataset: EditDataset, plan: RunPlan) -> AcceptedRows:
    """Returns the data set as the run reads it: a row that the editor cannot take is one that cannot be read.

    The backbone's files are on this machine by now.
    """
    references = reference_sizes(dataset, size_indexes_of(config), num_workers=int(config.num_workers))
    return AcceptedRows(dataset, plan.index, references, outline_of(config).text_rule)


def size_indexes_of(config: DictConfig) -> Path:
    """Returns the folder of size indexes that all runs below ``output_root`` share."""
    return Path(str(config.output_root)) / "size_index"


def unusable_rows(plan: RunPlan, dataset: EditDataset) -> list[tuple[int, DroppedRow]]:
    """Returns the rows that are dropped at the start, as found at step 0."""
    return [(0, DroppedRow(row, dataset.name(row), reason, reason)) for row, reason in plan.unusable]


def check_same_plan(plan: RunPlan, folder: Path, step: int) -> None:
    """Makes sure that a resumed run goes on with the samples it began with.

    Args:
        plan: of this run.
        folder: the run folder.
        step: where the run goes on; 0 is a new run.

    Raises:
        ConfigError: its rows, their sizes or its micro batches are not those it began with.
        DamagedFileError: order.json is not what a run writes.
    """
    path = folder / PLAN_FILE
    if step == 0 or not path.exists():
        return
    before, now = _read(path), _identity(plan)
    if before["order"] != now["order"]:
        changed = [f"{key} was {before.get(key)}, is {now[key]}" for key in now if before.get(key) != now[key]]
        raise ConfigError(
            f"The run in {folder} would go on with other samples than it began with ({'; '.join(changed)}): the data "
            f"has changed or, with pictures of several sizes, micro_batch. Put back what was changed, or choose "
            f"another run_name."
        )


def data_files(dataset: EditDataset) -> Mapping[str, str]:
    """Returns fingerprints of the data's files and settings by config key: one, or one for each member of a mixture."""
    if isinstance(dataset, Mixture):
        return {f"data.members.{name}": fingerprint for name, fingerprint in dataset.fingerprints.items()}
    return {"data": dataset.fingerprint}


def check_same_data(
    files: Mapping[str, str], config: DictConfig, folder: Path, step: int, processes: Processes
) -> None:
    """Makes sure that a resumed run goes on with the files it began with; all ranks call it.

    What the first rank sees counts: copies on other machines have times of their own.

    Args:
        files: of this run; see ``data_files``.
        config: of this run, which says where they are.
        folder: the run folder.
        step: where the run goes on; 0 is a new run.
        processes: of the launch.

    Raises:
        ConfigError: on every rank; names, sizes or times of the files have changed.
    """
    changed = processes.gather(_changed_data(files, folder, step) if processes.rank == 0 else [])[0]
    if not changed:
        return
    places = " and ".join(f"{key}.path={OmegaConf.select(config, f'{key}.path')}" for key in changed)
    raise ConfigError(
        f"The run in {folder} would go on with other data than it began with: the files of {places} have other names, "
        f"sizes or times than then, so their pictures or texts may be others. Put the files back as they were, or "
        f"choose another run_name. If only their times differ, such as after a copy that did not keep them, take "
        f"'{_DATA}' out of {folder / PLAN_FILE}: the run then goes on with the files as they are."
    )


def write_plan(plan: RunPlan, files: Mapping[str, str], folder: Path) -> None:
    """Writes ``order.json``, which ``check_same_plan`` and ``check_same_data`` read. Rank 0 calls it."""
    write_json(folder / PLAN_FILE, {**_identity(plan), _DATA: dict(files)})


def _changed_data(files: Mapping[str, str], folder: Path, step: int) -> list[str]:
    """Returns the keys of the data whose files are not those that the run began with."""
    path = folder / PLAN_FILE
    if step == 0:
        return []
    if not path.exists():
        logger.warning(
            "%s is not there, so it cannot be told whether the data is what the run began with: make sure that it has "
            "not changed. From here on a change is noticed.",
            path,
        )
        return []
    before = _read(path).get(_DATA)
    if not isinstance(before, dict):
        logger.warning(
            "%s does not say which files the run began with, so it goes on with the data as it is now: make sure that "
            "it has not changed. From here on a change is noticed.",
            path,
        )
        return []
    return [key for key, fingerprint in files.items() if before.get(key) != fingerprint]


def _read(path: Path) -> dict[str, object]:
    content = read_json(path, remedy=_REMEDY)
    if not isinstance(content.get("order"), str):
        raise DamagedFileError(f"{path} is damaged: it does not tell the order of the samples. {_REMEDY}")
    return content


def _identity(plan: RunPlan) -> dict[str, object]:
    return {
        "order": plan.digest,
        "rows_in_use": plan.num_usable,
        "sizes": plan.num_buckets,
        "read_at_once": plan.unit,
        "samples_an_epoch": plan.num_samples,
        "empty_slots_an_epoch": plan.num_empty,
    }


def _describe(plan: RunPlan) -> None:
    counts = Counter(reason for _, reason in plan.unusable)
    for reason, count in counts.most_common():
        logger.warning("%d of %d rows are dropped: %s.", count, plan.num_rows, reason)
    if plan.num_fitted:
        logger.info("%d targets are not of their source's size and will be fitted to it.", plan.num_fitted)
    if plan.num_buckets > 1:
        logger.info(
            "Pictures of %d sizes: an epoch has %d samples and %d empty slots.",
            plan.num_buckets,
            plan.num_samples,
            plan.num_empty,
        )
