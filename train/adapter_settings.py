"""An adapter's settings, from the config of a run."""

from omegaconf import DictConfig

from physedit.models.lora import LoraSettings
from physedit.models.parts import DTYPES


def lora_settings(config: DictConfig) -> LoraSettings:
    """Returns the settings that ``adapter`` of a checked config asks for."""
    wanted = config.adapter
    return LoraSettings(
        rank=int(wanted.rank),
        alpha=float(wanted.rank if wanted.alpha is None else wanted.alpha),
        dropout=float(wanted.dropout),
        use_dora=bool(wanted.use_dora),
        use_rslora=bool(wanted.use_rslora),
        compute_dtype=DTYPES[str(wanted.compute_dtype)],
    )
