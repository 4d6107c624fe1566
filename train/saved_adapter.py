"""A saved adapter: where it lies, what its file holds, which base it belongs to, and the editor that it makes."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from omegaconf import DictConfig
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from physedit.models.adapter_file import ADAPTER_FILE, AdapterFormat, check_fit, read_adapter, read_adapter_format
from physedit.models.backbone import Backbone
from physedit.models.lora import LoraSettings, add_adapter, load_state
from physedit.models.lora_targets import shortened
from physedit.train.checkpoint import step_folders, verify
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError, options

logger = logging.getLogger(__name__)

_UNUSED = ("run_name=editor", "num_steps=1", "global_batch=1", "micro_batch=1", "data=scenes")
"""Values of a run that a config must have and an editor does not need."""


_OTHERS = f"a folder with {ADAPTER_FILE}, or a .safetensors file"


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    """What an adapter's file holds.

    Attributes:
        file: where it lies.
        state: tensors by the names of ``lora.adapter_state``, float32 on the CPU.
        format: how to count with them.
        is_told: the file tells its format; otherwise alpha is taken to be the rank, as diffusers takes it.
    """

    file: Path
    state: Mapping[str, Tensor]
    format: AdapterFormat
    is_told: bool

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the adapted layers."""
        return tuple(dict.fromkeys(name.rpartition(".lora_")[0] for name in self.state))


def find_adapter(path: Path) -> Path:
    """Returns the adapter's file: ``path`` itself, in ``path``, or in ``path/adapter``.

    Raises:
        ConfigError: there is none.
    """
    if path.is_file() and path.suffix == ".safetensors":
        return path
    for folder in (path / "adapter", path):
        if (folder / ADAPTER_FILE).is_file():
            return folder / ADAPTER_FILE
    saved = step_folders(path / "checkpoints")
    raise ConfigError(
        f"{path} {'holds no adapter' if path.exists() else 'does not exist'}. Give "
        + (f"one of the run's checkpoints, such as {saved[-1]}." if saved else f"a checkpoint folder, {_OTHERS}.")
    )


def run_of(adapter: Path) -> Path | None:
    """Returns the run folder that an adapter's file lies in, or None outside one."""
    above = adapter.resolve().parents
    return above[3] if len(above) > 3 and (above[3] / "overrides.txt").is_file() else None


def overrides_of(run: Path | None) -> list[str]:
    """Returns the overrides a run was started with; none without a run."""
    return [] if run is None else (run / "overrides.txt").read_text(encoding="utf-8").splitlines()


def editor_config(adapter: Path | None, overrides: Sequence[str], config_dir: Path | None) -> DictConfig:
    """Composes the config of an editor: of the run that the adapter's file lies in, or of the overrides alone.

    Raises:
        ConfigError: the overrides do not compose, or nothing says which backbone.
    """
    run = None if adapter is None else run_of(adapter)
    if run is not None:
        return compose_config([*overrides_of(run), *overrides], config_dir=config_dir)
    is_recipe = any(each.startswith("experiment=") for each in overrides)
    if not is_recipe and not any(each.startswith("backbone=") for each in overrides):
        found = "No adapter was given" if adapter is None else f"{adapter} lies in no run folder"
        raise ConfigError(
            f"{found}, so nothing says which editor is meant. Choose one with backbone=NAME "
            f"({', '.join(options('backbone'))}) and, for weights of your own, backbone.weights=FOLDER."
        )
    config = compose_config([*(() if is_recipe else _UNUSED), *overrides], config_dir=config_dir)
    if adapter is not None and (config.backbone.get("dtype"), config.adapter.compute_dtype) == ("bfloat16", "float32"):
        logger.info(
            "No run tells in what %s multiplies: float32. With adapter.compute_dtype=bfloat16 it edits as a stock "
            "pipeline in bfloat16 does.", adapter
        )  # fmt: skip
    return config


def check_saved(file: Path) -> None:
    """Verifies, before a base is loaded, that an adapter's file is whole; in a checkpoint, that it is the one saved.

    Raises:
        ConfigError: it is damaged.
        CheckpointIncomplete: the checkpoint around it is not what was saved.
    """
    checkpoint = file.resolve().parent.parent
    if (checkpoint / "manifest.json").is_file():
        verify(checkpoint)
    try:
        with safe_open(file, "pt"):  # the header tells how long the file must be
            pass
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"The adapter {file} ({file.stat().st_size} bytes) cannot be read: {error}. It is damaged, perhaps by an "
            "interrupted copy; copy or train it again."
        ) from error


def read_saved(file: Path) -> SavedAdapter:
    """Reads an adapter's file.

    Raises:
        ConfigError: a file that is damaged, of something else, or with values that are not finite.
    """
    try:
        if file.name == ADAPTER_FILE:
            return _read(file.parent, file)
        with TemporaryDirectory() as folder:  # readers know a file of one name alone
            (Path(folder) / ADAPTER_FILE).symlink_to(file.resolve())
            try:
                return _read(Path(folder), file)
            except ValueError as error:
                raise ValueError(str(error).replace(str(Path(folder) / ADAPTER_FILE), str(file))) from error
    except ValueError as error:
        raise ConfigError(str(error) if str(file) in str(error) else f"{file}: {error}") from error


def attach(backbone: Backbone, saved: SavedAdapter, compute_dtype: torch.dtype) -> None:
    """Adds the adapter to the bare denoiser: rank, alpha, variant and layers are those of its file.

    Files do not tell ``compute_dtype``, in which it multiplies; a run's config does.

    Raises:
        ConfigError: it is an adapter of another base.
    """
    check_base(backbone.denoiser, saved)
    found = saved.format
    settings = LoraSettings(
        found.rank,
        found.alpha,
        use_dora=found.use_dora,
        use_rslora=found.use_rslora,
        compute_dtype=compute_dtype,
    )
    try:
        add_adapter(backbone.denoiser, settings, targets=tuple(map(re.escape, saved.layers)), seed=0)
        load_state(backbone.denoiser, saved.state)
    except ValueError as error:
        raise ConfigError(f"{saved.file}: {error}") from error
    logger.info("Adapter: rank %d, alpha %g, %d layers.", found.rank, found.alpha, len(saved.layers))


def check_base(denoiser: nn.Module, saved: SavedAdapter) -> None:
    """Verifies that the bare denoiser has the adapter's layers, in its sizes.

    Raises:
        ConfigError: it has not.
    """
    linears = {name: module for name, module in denoiser.named_modules() if isinstance(module, nn.Linear)}
    if absent := [layer for layer in saved.layers if layer not in linears]:
        raise ConfigError(
            f"{saved.file} is no adapter of this base: {type(denoiser).__name__} has no linear layer "
            f"{shortened(absent)}. Choose the editor that it was trained on with backbone=NAME."
        )
    for name, matrix in saved.state.items():
        layer, _, part = name.rpartition(".lora_")
        found = linears[layer]
        asked, has = (found.in_features, matrix.shape[-1]) if part[0] == "A" else (found.out_features, len(matrix))
        if asked != has:
            raise ConfigError(
                f"{saved.file} is no adapter of this base: {name} is {tuple(matrix.shape)}, but {layer} goes from "
                f"{found.in_features} to {found.out_features}. Choose the weights that it was trained on with "
                "backbone=NAME and backbone.weights=FOLDER."
            )


def _read(folder: Path, file: Path) -> SavedAdapter:
    state, told = read_adapter(folder), read_adapter_format(folder)
    if told is None:
        logger.warning("%s does not tell its alpha, which is taken to be its rank.", file)
    found = told or _format_by_shapes(state)
    check_fit(state, found)
    if unusable := [name for name, value in state.items() if not bool(torch.isfinite(value).all())]:
        raise ValueError(
            f"an adapter with values that are not finite was given, in {shortened(unusable)}. Its training diverged or "
            "the file is damaged; take an earlier checkpoint, or copy it again."
        )
    return SavedAdapter(file, state, found, is_told=told is not None)


def _format_by_shapes(state: Mapping[str, Tensor]) -> AdapterFormat:
    ranks = sorted({len(value) for name, value in state.items() if name.endswith(".lora_A.weight")})
    if len(ranks) != 1:
        raise ValueError(f"an adapter with ranks {ranks} was given. Only adapters of one rank can be used.")
    has_magnitudes = any(name.endswith(".lora_magnitude_vector") for name in state)
    return AdapterFormat(ranks[0], float(ranks[0]), use_dora=has_magnitudes)
