"""DeepSpeed's ZeRO-1, 2 and 3 behind the loop's seam. With ``zero`` and ``assemble``, all that knows DeepSpeed."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from physedit.models.lora import adapter_state, load_state, swapped
from physedit.train.engine import Arithmetic, EngineFacts
from physedit.train.optim import learning_rate, set_learning_rate
from physedit.train.state import by_parameter, trainable
from physedit.train.zero import config_of, cut


class ZeroEngine:
    """DeepSpeed's engine around the denoiser; optimizer state, gradients and parameters are cut by its stage."""

    def __init__(self, accelerator: Accelerator, bare: nn.Module, optimizer: Optimizer, arithmetic: Arithmetic) -> None:
        """Wraps ``bare``, whose adapter is in place and on its device.

        Raises:
            ConfigError: see ``config_of``.
            RuntimeError: DeepSpeed counts otherwise than the run.
        """
        import deepspeed

        given = accelerator.state.deepspeed_plugin.deepspeed_config
        self._config = config_of(given, arithmetic, accelerator.num_processes)
        self._accelerator = accelerator
        self._bare = bare
        self._optimizer = optimizer
        self._arithmetic = arithmetic
        if self._config["zero_optimization"]["stage"] == 3:
            cut(accelerator, bare, arithmetic)
        self._engine: Any = deepspeed.initialize(model=bare, optimizer=optimizer, config=self._config)[0]
        self._stage = int(self._engine.zero_optimization_stage())
        self._check_counts()

    @property
    def denoiser(self) -> nn.Module:
        """DeepSpeed's engine."""
        return self._engine  # type: ignore[no-any-return]

    @property
    def passes_take_all_ranks(self) -> bool:
        """True under ZeRO-3, which gathers the denoiser layer by layer."""
        return self._stage == 3

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return learning_rate(self._optimizer)

    def set_learning_rate(self, factor: float) -> None:
        """Sets every group's rate; DeepSpeed updates with these very groups."""
        set_learning_rate(self._optimizer, factor)

    @contextmanager
    def accumulating(self, *, is_last: bool) -> Iterator[None]:
        """Tells DeepSpeed whether the step's gradient is complete after this micro batch."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        yield

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of ``loss`` as it is."""
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self) -> Tensor:
        """Clips, updates and clears; DeepSpeed skips the update where the norm is not finite.

        Raises:
            RuntimeError: DeepSpeed did not make exactly one step.
        """
        before = self._engine.global_steps
        self._engine.step()
        if self._engine.global_steps != before + 1:
            raise RuntimeError(
                f"DeepSpeed went from update {before} to {self._engine.global_steps} in one step of the run: its "
                f"accumulation is not the run's {self._arithmetic.accumulation}."
            )
        return torch.as_tensor(self._engine.get_global_grad_norm(), dtype=torch.float32)

    @property
    def refused(self) -> Tensor | None:
        """None: DeepSpeed waits for the device in every step."""
        return None

    def adapter(self) -> dict[str, Tensor]:
        """Returns views of the adapter; under ZeRO-3 copies of it, gathered."""
        with self._whole():
            live = adapter_state(self._bare)
            return {name: value.clone() for name, value in live.items()} if self._stage == 3 else live

    def load_adapter(self, values: Mapping[str, Tensor]) -> None:
        """Puts ``values`` into the parameters and into DeepSpeed's own copy, from which it updates them."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        self._write(values)
        for name, parameter in zip(adapter_state(self._bare), trainable(self._bare).values(), strict=True):
            if self._stage == 3:
                safe_set_local_fp32_param(parameter, self._local(parameter, values[name]))
            else:
                safe_set_full_fp32_param(parameter, values[name].to(parameter.device))

    @contextmanager
    def swapped(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Puts ``values`` into the parameters alone, and their own values back afterwards.

        Under ZeRO-3 an error that leaves the context ends the run: nothing is put back, which would take all ranks.
        """
        if self._stage < 3:
            with swapped(self._bare, values):
                yield
            return
        kept = self.adapter()
        self._write(values)
        yield
        self._write(kept)

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Gathers the state, field by field; rank 0 returns it, the others take part."""
        from deepspeed.utils import safe_get_full_optimizer_state

        found: dict[str, Tensor] = {}
        state = self._optimizer.state.get(self._flat_parts()[0], {})
        for name, parameter in trainable(self._bare).items():
            for field, value in state.items():
                if not isinstance(value, Tensor):
                    continue
                whole = value if value.dim() == 0 else safe_get_full_optimizer_state(parameter, field)
                if self._accelerator.is_main_process:
                    found[f"{name}/{field}"] = whole.detach().cpu().clone()
        return found

    def restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        """Cuts the state for this rank's part.

        Raises:
            ConfigError: it is the state of another adapter, or of an optimizer that does not work element by element.
        """
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        entries = by_parameter(self._bare, tensors)
        if not entries:
            return
        fields = next(iter(entries.values()))
        for flat in self._flat_parts():
            state = self._optimizer.state[flat]
            for field, value in fields.items():
                if value.dim() == 0:
                    state[field] = value.clone().to(flat.device if self._counts_on_device() else "cpu")
                elif field not in state:
                    state[field] = torch.zeros_like(flat)
        if self._stage < 3:
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()
        for name, parameter in trainable(self._bare).items():
            for field, value in entries[name].items():
                if value.dim() == 0:
                    continue
                if self._stage == 3:
                    safe_set_local_optimizer_state(parameter, self._local(parameter, value), field)
                else:
                    safe_set_full_optimizer_state(parameter, value.to(parameter.device), field)

    def facts(self) -> EngineFacts:
        """Returns what runs, in DeepSpeed's own words."""
        zero = self._engine.zero_offload_optimizer(), self._engine.zero_offload_param()
        offload = tuple(
            kind for kind, found in zip(("optimizer", "parameters"), zero, strict=True)
            if found is not None and str(getattr(found.device, "value", found.device)) != "none"
        )  # fmt: skip
        return EngineFacts(
            distributed_type=str(self._accelerator.distributed_type.value),
            num_processes=self._accelerator.num_processes,
            wrapper=type(self._engine).__name__,
            optimizer=f"{type(self._engine.optimizer).__name__}/{type(self._engine.optimizer.optimizer).__name__}",
            zero_stage=self._stage,
            offload=offload,
            persistence_threshold=self._engine.zero_param_persistence_threshold() if self._stage == 3 else None,
            num_whole=sum(parameter.numel() for parameter in trainable(self._bare).values()),
            micro_batch=self._engine.train_micro_batch_size_per_gpu(),
            accumulation=self._engine.gradient_accumulation_steps(),
            global_batch=self._engine.train_batch_size(),
            max_grad_norm=self._engine.gradient_clipping() or None,
        )

    def _check_counts(self) -> None:
        facts, asked = self.facts(), self._arithmetic
        found = Arithmetic(facts.micro_batch, facts.accumulation, facts.global_batch, facts.max_grad_norm)
        if found != asked:
            raise RuntimeError(f"DeepSpeed counts {found}, but the run asks for {asked}.")

    def _whole(self) -> AbstractContextManager[object]:
        if self._stage < 3:
            return nullcontext()
        import deepspeed

        gathered: AbstractContextManager[object] = deepspeed.zero.GatheredParameters(
            list(trainable(self._bare).values())
        )
        return gathered

    def _write(self, values: Mapping[str, Tensor]) -> None:
        """Puts ``values`` into the parameters, but not into DeepSpeed's own copy of them."""
        if self._stage < 3:
            load_state(self._bare, values)
            return
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(trainable(self._bare).values()), modifier_rank=0):
            load_state(self._bare, values)

    def _flat_parts(self) -> list[Tensor]:
        """Returns this rank's part of the adapter, as DeepSpeed flattens it for the optimizer."""
        zero = self._engine.optimizer
        parts: list[Tensor] = (
            zero.fp32_partitioned_groups_flat if self._stage == 3 else (zero.single_partition_of_fp32_groups)
        )
        return parts

    def _counts_on_device(self) -> bool:
        group = self._optimizer.param_groups[0]
        return bool(group.get("fused") or group.get("capturable"))

    def _local(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """Returns this rank's slice of ``value``; the last ones are filled up with zeros."""
        from deepspeed.utils import safe_get_local_fp32_param

        length = int(safe_get_local_fp32_param(parameter).numel())
        rank, world = self._accelerator.process_index, self._accelerator.num_processes
        padded = torch.zeros(length * world, dtype=torch.float32)
        padded[: value.numel()] = value.detach().cpu().flatten()
        return padded[rank * length : (rank + 1) * length]
