"""An adapter's settings, from the config of a run, and what tells one adapter from another."""

from collections.abc import Mapping

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from physedit.eval_hooks.files import digest_of
from physedit.eval_hooks.hook import weights_digest
from physedit.models.lora import LoraSettings
from physedit.models.lora_products import compute_dtype_of
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


def adapter_id(denoiser: nn.Module, weights: Mapping[str, Tensor]) -> str:
    """Returns a hash of an adapter's weights, and of the dtype in which ``denoiser`` multiplies where not float32."""
    dtype, digest = compute_dtype_of(denoiser), weights_digest(weights)
    return digest if dtype == torch.float32 else digest_of({"weights": digest, "compute_dtype": str(dtype)})
