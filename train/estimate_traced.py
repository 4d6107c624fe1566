"""What estimating learns of a run's editor, adapter and optimizer, each thing once: nothing is loaded or computed."""

import inspect
from functools import cached_property, lru_cache

import torch
from omegaconf import DictConfig

from physedit.models.attention import ATTENTION
from physedit.models.blocks import checked_checkpointing
from physedit.models.estimating.architectures import Architecture, flux_architecture, num_bytes, qwen_architecture
from physedit.models.estimating.encoding import EncodingCost, text_tokens, trace_encoding
from physedit.models.estimating.step import AdapterCount, StepCost, Workload, count_adapter, trace_step
from physedit.models.flux_outline import checked_area
from physedit.models.lora import LoraSettings, check_settings, preset_targets
from physedit.models.parts import checked_dtype
from physedit.models.quantization import check_sharding
from physedit.models.qwen_pipeline import checked_areas, checked_pipeline
from physedit.models.sizes import PictureSizes, kontext_sizes, qwen_size
from physedit.train.adapter_settings import lora_settings
from physedit.train.build import resolve_target
from physedit.train.config import ConfigError, suggestion
from physedit.train.estimate_placement import Placement, placement_of
from physedit.train.optim import build_optimizer
from physedit.train.rules import batches_per_step

LINEAR_BITS = {"bnb_nf4": 4 + 8 / 64 + 32 / (64 * 256), "bnb_int8": 8.0, "torchao_int8": 8.0, "torchao_fp8": 8.0}
"""Of a quantised weight; NF4 has an 8-bit scale for 64 weights and a float32 one for 256 scales."""
_PROBE_SHAPE = (64, 80)
_SIDE = 1024


class Traced:
    """Of one config."""

    def __init__(self, config: DictConfig) -> None:
        """Builds the architecture on the meta device.

        Raises:
            ConfigError: a backbone whose architecture is not known here, or settings that no run can have.
        """
        self.config = config
        self.backbone = config.backbone
        self.placement: Placement = placement_of(config)
        self.accumulation = batches_per_step(config, self.placement.num_processes)
        pipeline = self.backbone.get("pipeline")
        self.architecture = _architecture(
            str(self.backbone["_target_"]), str(self.backbone.weights), None if pipeline is None else str(pipeline)
        )
        self.quantization = self.backbone.get("quantization")
        try:
            self.dtype = checked_dtype(str(self.backbone.dtype))
            self.recomputed_every = checked_checkpointing(self.backbone.gradient_checkpointing)
            check_sharding(self.quantization, self.placement.zero_stage)
            self._check_area()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if self.quantization not in (None, *LINEAR_BITS):
            raise ConfigError(
                f"backbone.quantization is '{self.quantization}'; use null or one of {', '.join(LINEAR_BITS)}."
            )
        attention = self.backbone.get("attention")
        if attention not in (None, *ATTENTION):
            raise ConfigError(
                f"backbone.attention is '{attention}'.{suggestion(str(attention), ATTENTION)} Use null or one of "
                f"{', '.join(ATTENTION)}."
            )

    def _check_area(self) -> None:
        area = int(self.backbone.area_px)
        if self.architecture.family == "flux":
            checked_area(area, 2 * self.architecture.vae_factor)
        else:
            checked_areas(checked_pipeline(str(self.backbone.pipeline)), area, self.backbone.get("vision_area_px"))

    @property
    def gradients_wait(self) -> bool:
        """Gradients of the adapter lie there before a micro batch begins."""
        is_alone = self.placement.num_processes == 1 and self.placement.zero_stage == 0
        return not is_alone or self.accumulation > 1

    @property
    def passes(self) -> float:
        """How often a micro batch goes through the base: forward, backward, and what is recomputed."""
        return 2 + (1 / self.recomputed_every if self.recomputed_every else 0)

    @cached_property
    def lora(self) -> LoraSettings:
        """Settings of the adapter."""
        settings = lora_settings(self.config)
        try:
            check_settings(settings)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return settings

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Of the adapter, as patterns."""
        wanted = self.config.adapter
        try:
            if wanted.preset is None:
                return tuple(wanted.targets)
            return preset_targets(self.architecture.presets, str(wanted.preset))
        except ValueError as error:
            raise ConfigError(f"adapter: {error}") from error

    @cached_property
    def adapter(self) -> AdapterCount:
        """Its size."""
        try:
            return _count_adapter(self.architecture, self.targets, self.lora)
        except ValueError as error:
            raise ConfigError(f"adapter: {error}") from error

    @cached_property
    def sizes(self) -> PictureSizes:
        """Of a square picture."""
        area = int(self.backbone.area_px)
        if self.architecture.family == "flux":
            return kontext_sizes(_SIDE, _SIDE, area_px=area, multiple_px=2 * self.architecture.vae_factor)
        size = qwen_size(_SIDE, _SIDE, area_px=area)
        return PictureSizes(size, size)

    @cached_property
    def num_text_tokens(self) -> int:
        """Of an instruction, with the pictures that the text encoder sees."""
        seen = self.backbone.get("vision_area_px")
        longest = int(self.backbone.get("max_text_tokens") or 512)
        return text_tokens(
            self.architecture, self.sizes, max_text_tokens=longest, num_sources=1,
            vision_area_px=None if seen is None else int(seen),
        )  # fmt: skip

    @cached_property
    def encoding(self) -> EncodingCost:
        """What encoding a pair takes."""
        return _trace_encoding(self.architecture, self.sizes, self.num_text_tokens, self.dtype)

    @cached_property
    def step(self) -> StepCost:
        """What a micro batch takes."""
        workload = Workload(
            micro_batch=int(self.config.micro_batch),
            sizes=self.sizes,
            num_sources=1,
            text_tokens=self.num_text_tokens,
            has_mask=self.architecture.family == "qwen" and int(self.config.micro_batch) > 1,
            dtype=self.dtype,
            gradient_checkpointing=self.backbone.gradient_checkpointing,
            gradients_wait=self.gradients_wait,
        )
        return _trace_step(self.architecture, self.targets, self.lora, workload)

    @cached_property
    def moments(self) -> float:
        """Bytes of the optimizer's state for each number of the adapter."""
        parameter = torch.nn.Parameter(torch.zeros(_PROBE_SHAPE))
        optimizer = build_optimizer(self.config.optimizer, [parameter])
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        state = [each for each in optimizer.state[parameter].values() if isinstance(each, torch.Tensor)]
        return sum(each.nbytes for each in state if each.dim()) / parameter.numel()

    @property
    def is_fused(self) -> bool:
        """The optimizer is the fused form of its class, as ``build_optimizer`` chooses it on a GPU."""
        node = self.config.optimizer
        if any(form in node for form in ("fused", "foreach", "capturable", "differentiable")):
            return bool(node.get("fused", False))
        kind = resolve_target(str(node["_target_"]))
        has_fused = kind.__module__.startswith("torch.optim.") and "fused" in inspect.signature(kind).parameters
        return has_fused and self.placement.on_gpu

    @cached_property
    def base(self) -> int:
        """Bytes of the whole base as it is stored."""
        bits = None if self.quantization is None else LINEAR_BITS[str(self.quantization)]
        return _base_bytes(self.architecture, self.dtype, bits)

    @cached_property
    def widened(self) -> int:
        """Bytes that a pass through a quantised base writes and reads again, to widen its weights; else 0."""
        if self.quantization is None:
            return 0
        stored = 1 - LINEAR_BITS[str(self.quantization)] / 8 / self.dtype.itemsize
        in_linear = (_base_bytes(self.architecture, self.dtype, None) - self.base) / stored
        return round(2 * in_linear)


@lru_cache(maxsize=4)
def _architecture(target: str, weights: str, pipeline: str | None) -> Architecture:
    kind = target.rpartition(".")[2]
    try:
        if kind == "FluxKontext":
            return flux_architecture(weights)
        if kind == "QwenImageEdit" and pipeline is not None:
            return qwen_architecture(weights, pipeline)
    except ValueError as error:
        raise ConfigError(f"backbone: {error}") from error
    raise ConfigError(
        f"backbone._target_={target} cannot be estimated: the architectures of FluxKontext and QwenImageEdit are "
        "known. Choose one of their options with backbone=NAME."
    )


@lru_cache(maxsize=16)
def _trace_encoding(
    architecture: Architecture, sizes: PictureSizes, num_text_tokens: int, dtype: torch.dtype
) -> EncodingCost:
    return trace_encoding(architecture, sizes, num_sources=1, num_text_tokens=num_text_tokens, dtype=dtype)


@lru_cache(maxsize=16)
def _count_adapter(architecture: Architecture, targets: tuple[str, ...], settings: LoraSettings) -> AdapterCount:
    return count_adapter(architecture.denoiser, targets, settings)


@lru_cache(maxsize=16)
def _base_bytes(architecture: Architecture, dtype: torch.dtype, linear_bits: float | None) -> int:
    return num_bytes(architecture.denoiser, dtype, linear_bits)


_trace_step = lru_cache(maxsize=64)(trace_step)
