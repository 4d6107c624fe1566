"""What a run takes of each GPU, of the machine and of the disk, before anything is loaded or downloaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from omegaconf import DictConfig

from physedit.models.estimating.architectures import Architecture, flux_architecture, num_bytes, qwen_architecture
from physedit.models.estimating.encoding import EncodingCost, text_tokens, trace_encoding
from physedit.models.estimating.step import AdapterCount, StepCost, Workload, count_adapter, trace_step
from physedit.models.lora import LoraSettings, preset_targets
from physedit.models.parts import checked_dtype
from physedit.models.quantization import check_sharding
from physedit.models.sizes import PictureSizes, kontext_sizes, qwen_size
from physedit.train.config import ConfigError
from physedit.train.estimate_placement import Placement, placement_of
from physedit.train.optim import build_optimizer
from physedit.train.rules import batches_per_step

FLOAT_BYTES = 4
KEPT_BYTES = {"flux": 2**28 + 2**26, "qwen": 2**28 + 2**28}
"""Encoded pictures and instructions that stay on the device. Source: the memos of models/."""
RESERVE_BYTES = 2**30
"""Ours, not measured: the CUDA context, libraries' workspaces and what the allocator cannot hand out."""
LINEAR_BITS = {"bnb_nf4": 4 + 8 / 64 + 32 / (64 * 256), "bnb_int8": 8.0, "torchao_int8": 8.0, "torchao_fp8": 8.0}
"""Of a quantised weight; NF4 has an 8-bit scale for 64 weights and a float32 one for 256 scales."""
_PROBE_SHAPE = (64, 80)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run takes.

    Attributes:
        placement: of its processes.
        num_base: parameters of the transformer.
        adapter: its size.
        accumulation: micro batches of a step.
        micro_batch: samples of each.
        num_tokens: of a sample in the transformer.
        rows: bytes of each GPU by what they are for, at the peak; they add up to it.
        phases: most bytes of each GPU while encoding, in the step, and in the update.
        host: bytes of the machine's memory for each process, where DeepSpeed offloads.
        checkpoint: bytes of one on the disk.
        num_checkpoints: that are kept at once.
        pair: bytes of an encoded pair on the disk; 0 with encode=live.
        step: what a micro batch takes.
        encoding_flops: of a sample, where it is encoded in the step.
        weights_read: bytes of the base that a micro batch reads from a GPU's memory.
        moved: bytes of offloaded encoders that come to the GPU for a micro batch, and leave it again.
    """

    placement: Placement
    num_base: int
    adapter: AdapterCount
    accumulation: int
    micro_batch: int
    num_tokens: int
    rows: Mapping[str, int]
    phases: Mapping[str, int]
    host: int
    checkpoint: int
    num_checkpoints: int
    pair: int
    step: StepCost
    encoding_flops: int
    weights_read: int
    moved: int

    @property
    def peak(self) -> int:
        """Most bytes of each GPU at once, without ``RESERVE_BYTES``."""
        return max(self.phases.values())


def estimate(config: DictConfig) -> Estimate:
    """Returns what the run of a composed config takes; nothing is opened but configs of local weights.

    Raises:
        ConfigError: a backbone whose architecture is not known here, or settings that no run can have.
    """
    return _Estimator(config).estimate()


class _Estimator:
    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.backbone = config.backbone
        self.placement = placement_of(config)
        self.accumulation = batches_per_step(config, self.placement.num_processes)
        pipeline = self.backbone.get("pipeline")
        self.architecture = _architecture(
            str(self.backbone["_target_"]), str(self.backbone.weights), None if pipeline is None else str(pipeline)
        )
        self.dtype = checked_dtype(str(self.backbone.dtype))
        self.quantization = self.backbone.get("quantization")
        try:
            check_sharding(self.quantization, self.placement.zero_stage)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if self.quantization not in (None, *LINEAR_BITS):
            raise ConfigError(
                f"backbone.quantization is '{self.quantization}'; use null or one of {', '.join(LINEAR_BITS)}."
            )

    def estimate(self) -> Estimate:
        adapter, step, encoding = self.adapter, self.step, self.encoding
        phases, rows = self._phases()
        moments = round(self.moments * adapter.num_parameters)
        num_copies = 1 if self.config.ema_decay is None else 2
        is_cached = self.config.encode.mode == "cached"
        has_text = is_cached and self.config.encode.text != "live"
        flops = 0 if is_cached and has_text else encoding.flops
        passes = 3 if self.backbone.gradient_checkpointing else 2
        return Estimate(
            placement=self.placement,
            num_base=sum(each.numel() for each in self.architecture.denoiser.parameters()),
            adapter=adapter,
            accumulation=self.accumulation,
            micro_batch=int(self.config.micro_batch),
            num_tokens=step.num_tokens,
            rows=rows,
            phases=phases,
            host=self._host(),
            checkpoint=num_copies * FLOAT_BYTES * adapter.num_parameters + moments,
            num_checkpoints=int(self.config.checkpoint.keep) + int(self.config.checkpoint.keep_best),
            pair=encoding.latents + (encoding.text if has_text else 0) if is_cached else 0,
            step=step,
            encoding_flops=flops,
            weights_read=passes * self.base,
            moved=self._encoders()[1] if self.backbone.encoders == "offload" and flops else 0,
        )

    @cached_property
    def lora(self) -> LoraSettings:
        wanted = self.config.adapter
        return LoraSettings(
            rank=int(wanted.rank),
            alpha=float(wanted.rank if wanted.alpha is None else wanted.alpha),
            dropout=float(wanted.dropout),
            use_dora=bool(wanted.use_dora),
            use_rslora=bool(wanted.use_rslora),
        )

    @cached_property
    def targets(self) -> tuple[str, ...]:
        wanted = self.config.adapter
        try:
            if wanted.preset is None:
                return tuple(wanted.targets)
            return preset_targets(self.architecture.presets, str(wanted.preset))
        except ValueError as error:
            raise ConfigError(f"adapter: {error}") from error

    @cached_property
    def adapter(self) -> AdapterCount:
        try:
            return count_adapter(self.architecture.denoiser, self.targets, self.lora)
        except ValueError as error:
            raise ConfigError(f"adapter: {error}") from error

    @cached_property
    def sizes(self) -> PictureSizes:
        """Of a square picture."""
        area, side = int(self.backbone.area_px), 1024
        if self.architecture.family == "flux":
            return kontext_sizes(side, side, area_px=area, multiple_px=2 * self.architecture.vae_factor)
        size = qwen_size(side, side, area_px=area)
        return PictureSizes(size, size)

    @cached_property
    def num_text_tokens(self) -> int:
        seen = self.backbone.get("vision_area_px")
        longest = int(self.backbone.get("max_text_tokens") or 512)
        return text_tokens(
            self.architecture, self.sizes, max_text_tokens=longest, num_sources=1,
            vision_area_px=None if seen is None else int(seen),
        )  # fmt: skip

    @cached_property
    def encoding(self) -> EncodingCost:
        return trace_encoding(
            self.architecture, self.sizes, num_sources=1, num_text_tokens=self.num_text_tokens, dtype=self.dtype
        )

    @cached_property
    def step(self) -> StepCost:
        is_alone = self.placement.num_processes == 1 and self.placement.zero_stage == 0
        workload = Workload(
            micro_batch=int(self.config.micro_batch),
            sizes=self.sizes,
            num_sources=1,
            text_tokens=self.num_text_tokens,
            has_mask=self.architecture.family == "qwen" and int(self.config.micro_batch) > 1,
            dtype=self.dtype,
            gradient_checkpointing=bool(self.backbone.gradient_checkpointing),
            gradients_wait=not is_alone or self.accumulation > 1,
        )
        return _trace(self.architecture, self.targets, self.lora, workload)

    @cached_property
    def moments(self) -> float:
        """Bytes of the optimizer's state for each number of the adapter."""
        parameter = torch.nn.Parameter(torch.zeros(_PROBE_SHAPE))
        optimizer = build_optimizer(self.config.optimizer, [parameter])
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        state = [each for each in optimizer.state[parameter].values() if isinstance(each, torch.Tensor)]
        return sum(each.nbytes for each in state if each.dim()) / parameter.numel()

    @cached_property
    def base(self) -> int:
        """Bytes of the whole base."""
        bits = None if self.quantization is None else LINEAR_BITS[str(self.quantization)]
        return num_bytes(self.architecture.denoiser, self.dtype, bits)

    def _resident(self) -> dict[str, int]:
        """Returns the bytes of each GPU that lie there all the time, but for encoders, with gradients apart."""
        place, whole = self.placement, FLOAT_BYTES * self.adapter.num_parameters
        share, stage = (place.num_processes if place.zero_stage else 1), place.zero_stage
        base, adapter = self.base, whole
        # ZeRO updates a copy of its part of the adapter.
        copy = -(-whole // share) if stage else 0
        moments = round(self.moments * self.adapter.num_parameters / share)
        buckets = whole if stage == 0 and place.num_processes > 1 else 0
        if stage:
            buckets = FLOAT_BYTES * min(int(place.zero.get("reduce_bucket_size", 5e8)), self.adapter.num_parameters)
        if stage == 3:
            base, adapter = -(-base // share), -(-whole // share)
            live = int(place.zero.get("stage3_max_live_parameters", 1e9)) * self.dtype.itemsize
            buckets += min(self.base - base, live) if share > 1 or place.offloads("param") else 0
            base, adapter = (0, 0) if place.offloads("param") else (base, adapter)
        if place.offloads("optimizer"):
            copy = moments = 0
        average = 0 if self.config.ema_decay is None else whole
        gradients = -(-whole // share) if stage >= 2 else whole
        return {
            "base": base,
            "adapter": adapter + copy,
            "gradients": 0 if place.offloads("optimizer") else gradients,
            "optimizer": moments,
            "average": average,
            "buckets": buckets,
        }

    def _encoders(self) -> tuple[int, int, int]:
        """Returns bytes of encoders beside a training step, of all while encoding, and of what is kept encoded."""
        vae = num_bytes(self.architecture.vae, self.dtype)
        text = sum(num_bytes(part, self.dtype) for part in self.architecture.text_encoders.values())
        mode, cached = str(self.backbone.encoders), self.config.encode.mode == "cached"
        lives_text = not cached or self.config.encode.text == "live"
        if mode == "absent":
            text = 0
        if not lives_text:
            return 0, vae + text, 0
        beside = 0 if mode == "offload" else text + (0 if cached else vae)
        return beside, vae + text, KEPT_BYTES[self.architecture.family] if self.placement.on_gpu else 0

    def _phases(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the peak of each phase, and the rows of the greatest."""
        resident = self._resident()
        encoders, encoding, kept = self._encoders()
        lasting = sum(resident.values())
        wait = resident["gradients"]
        updated = FLOAT_BYTES * self.adapter.num_parameters // max(1, self._share())
        # torch's default on CUDA updates all numbers at once and takes room for one more copy; DeepSpeed's parts too.
        temporary = updated if self.placement.on_gpu else FLOAT_BYTES * self.adapter.largest
        is_whole = not self._gradients_wait()
        working = self.step.peak - (wait if is_whole else 0)
        found = {
            "encoding": {"encoders": encoding, "kept encodings": kept, "workspace": self.encoding.workspace},
            "step": {"encoders": encoders, "kept encodings": kept, "activations": working},
            "update": {"encoders": encoders, "kept encodings": kept, "workspace": temporary},
        }
        phases = {name: lasting + sum(rows.values()) for name, rows in found.items()}
        greatest = max(phases, key=phases.__getitem__)
        return phases, resident | found[greatest]

    def _share(self) -> int:
        return self.placement.num_processes if self.placement.zero_stage else 1

    def _gradients_wait(self) -> bool:
        return self.placement.num_processes > 1 or self.placement.zero_stage > 0 or self.accumulation > 1

    def _host(self) -> int:
        place, share, whole = self.placement, self._share(), FLOAT_BYTES * self.adapter.num_parameters
        optimizer = (2 * whole + round(self.moments * self.adapter.num_parameters)) // share
        parameters = (self.base + whole) // share
        return (optimizer if place.offloads("optimizer") else 0) + (parameters if place.offloads("param") else 0)


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


_trace = lru_cache(maxsize=64)(trace_step)
