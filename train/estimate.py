"""What a run takes of each GPU, of the machine and of the disk, before anything is loaded or downloaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from physedit.models.estimating.architectures import num_bytes
from physedit.models.estimating.step import AdapterCount, StepCost
from physedit.train.estimate_placement import Placement
from physedit.train.estimate_traced import Traced

FLOAT_BYTES = 4
KEPT_BYTES = {"flux": 2**28 + 2**26, "qwen": 2**28 + 2**28}
"""Encoded pictures and instructions that stay on the device. Source: the memos of models/."""
RESERVE_BYTES = 2**30
"""Ours, not measured: the CUDA context, libraries' workspaces and what the allocator cannot hand out."""


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
        widened: bytes that a micro batch writes to it and reads again, to widen quantised weights.
        exchanged: bytes of gradients and of the adapter that a GPU sends in a step, and receives.
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
    widened: int
    exchanged: int
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
    return _Estimator(Traced(config)).estimate()


def useful_flops(config: DictConfig) -> int:
    """Returns the operations of a sample that a step cannot do without: transformer and adapter, forward and backward.

    Nothing that is computed twice counts, be it a block or the product that fused attention repeats; nor does encoding.
    It is what the utilisation of a GPU is told by (arXiv 2204.02311, appendix B).

    Raises:
        ConfigError: see ``estimate``.
    """
    plain = config.copy()
    plain.backbone.gradient_checkpointing = False
    traced = Traced(plain)
    denoiser: Any = traced.architecture.denoiser.config
    width = int(denoiser.num_attention_heads) * int(denoiser.attention_head_dim)
    num_blocks = int(denoiser.num_layers) + int(getattr(denoiser, "num_single_layers", 0))
    repeated = num_blocks * 2 * width * traced.step.num_tokens**2
    return traced.step.flops // int(plain.micro_batch) - repeated


class _Estimator:
    def __init__(self, traced: Traced) -> None:
        self.traced = traced

    def estimate(self) -> Estimate:
        traced, config = self.traced, self.traced.config
        adapter, step, encoding = traced.adapter, traced.step, traced.encoding
        phases, rows = self._phases()
        moments = round(traced.moments * adapter.num_parameters)
        num_copies = 1 if config.ema_decay is None else 2
        is_cached = config.encode.mode == "cached"
        has_text = is_cached and config.encode.text != "live"
        flops = 0 if is_cached and has_text else encoding.flops
        return Estimate(
            placement=traced.placement,
            num_base=sum(each.numel() for each in traced.architecture.denoiser.parameters()),
            adapter=adapter,
            accumulation=traced.accumulation,
            micro_batch=int(config.micro_batch),
            num_tokens=step.num_tokens,
            rows=rows,
            phases=phases,
            host=self._host(),
            checkpoint=num_copies * FLOAT_BYTES * adapter.num_parameters + moments,
            num_checkpoints=int(config.checkpoint.keep) + int(config.checkpoint.keep_best),
            pair=encoding.latents + (encoding.text if has_text else 0) if is_cached else 0,
            step=step,
            encoding_flops=flops,
            weights_read=round(traced.passes * traced.base),
            widened=round(traced.passes * traced.widened),
            exchanged=self._exchanged(),
            moved=self._encoders()[1] if traced.backbone.encoders == "offload" and flops else 0,
        )

    def _resident(self) -> dict[str, int]:
        """Returns the bytes of each GPU that lie there all the time, but for encoders, with gradients apart."""
        place, whole = self.traced.placement, FLOAT_BYTES * self.traced.adapter.num_parameters
        share, stage = (place.num_processes if place.zero_stage else 1), place.zero_stage
        base, adapter = self.traced.base, whole
        # ZeRO updates a copy of its part of the adapter.
        copy = -(-whole // share) if stage else 0
        moments = round(self.traced.moments * self.traced.adapter.num_parameters / share)
        buckets = whole if stage == 0 and place.num_processes > 1 else 0
        if stage:
            buckets = FLOAT_BYTES * min(
                int(place.zero.get("reduce_bucket_size", 5e8)), self.traced.adapter.num_parameters
            )
        if stage == 3:
            base, adapter = -(-base // share), -(-whole // share)
            live = int(place.zero.get("stage3_max_live_parameters", 1e9)) * self.traced.dtype.itemsize
            buckets += min(self.traced.base - base, live) if share > 1 or place.offloads("param") else 0
            base, adapter = (0, 0) if place.offloads("param") else (base, adapter)
        if place.offloads("optimizer"):
            copy = moments = 0
        average = 0 if self.traced.config.ema_decay is None else whole
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
        vae = num_bytes(self.traced.architecture.vae, self.traced.dtype)
        text = sum(num_bytes(part, self.traced.dtype) for part in self.traced.architecture.text_encoders.values())
        mode, cached = str(self.traced.backbone.encoders), self.traced.config.encode.mode == "cached"
        lives_text = not cached or self.traced.config.encode.text == "live"
        if mode == "absent":
            text = 0
        if not lives_text:
            return 0, vae + text, 0
        beside = 0 if mode == "offload" else text + (0 if cached else vae)
        return beside, vae + text, KEPT_BYTES[self.traced.architecture.family] if self.traced.placement.on_gpu else 0

    def _phases(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the peak of each phase, and the rows of the greatest."""
        resident = self._resident()
        encoders, encoding, kept = self._encoders()
        lasting = sum(resident.values())
        wait = resident["gradients"]
        updated = FLOAT_BYTES * self.traced.adapter.num_parameters // max(1, self._share())
        # The fused form takes no room; torch's other form on CUDA takes it for one more copy; DeepSpeed's parts may.
        temporary = updated if self.traced.placement.on_gpu else FLOAT_BYTES * self.traced.adapter.largest
        if self.traced.is_fused and self.traced.placement.zero_stage == 0:
            temporary = 0
        is_whole = not self.traced.gradients_wait
        working = self.traced.step.peak - (wait if is_whole else 0)
        found = {
            "encoding": {"encoders": encoding, "kept encodings": kept, "workspace": self.traced.encoding.workspace},
            "step": {"encoders": encoders, "kept encodings": kept, "activations": working},
            "update": {"encoders": encoders, "kept encodings": kept, "workspace": temporary},
        }
        phases = {name: lasting + sum(rows.values()) for name, rows in found.items()}
        greatest = max(phases, key=phases.__getitem__)
        return phases, resident | found[greatest]

    def _share(self) -> int:
        return self.traced.placement.num_processes if self.traced.placement.zero_stage else 1

    def _exchanged(self) -> int:
        """Returns what a ring of the processes sends: a sum of all gradients is two turns around it, a half is one.

        ZeRO-1 and DDP sum up at the end of a step, ZeRO-2 and 3 after every micro batch. ZeRO-1 and 2 then collect the
        adapter; ZeRO-3 does so with the base.

        Source: deepspeed/runtime/zero/stage_1_and_2.py, stage3.py.
        """
        traced, place = self.traced, self.traced.placement
        turn = FLOAT_BYTES * traced.adapter.num_parameters * (place.num_processes - 1) / place.num_processes
        turns = {0: 2, 1: 2, 2: traced.accumulation + 1, 3: traced.accumulation}[place.zero_stage]
        return round(turn * turns)

    def _host(self) -> int:
        place, share, whole = self.traced.placement, self._share(), FLOAT_BYTES * self.traced.adapter.num_parameters
        optimizer = (2 * whole + round(self.traced.moments * self.traced.adapter.num_parameters)) // share
        parameters = (self.traced.base + whole) // share
        return (optimizer if place.offloads("optimizer") else 0) + (parameters if place.offloads("param") else 0)
