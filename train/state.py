"""The state of a training run as named tensors and numbers: what a checkpoint holds and resume puts back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from physedit.train.config import ConfigError


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: finished optimizer steps.
        position: samples seen so far over all ranks; the next batch starts here.
        window_loss: sum of the step losses since the last line of metrics.jsonl.
        window_steps: how many steps that sum holds.
        grad_norm: gradient norm of the newest step in the window, before clipping.
        num_fitted: samples so far whose target was not of its source's size and was fitted to it.
    """

    step: int = 0
    position: int = 0
    window_loss: float = 0.0
    window_steps: int = 0
    grad_norm: float = 0.0
    num_fitted: int = 0

    def after_step(self, num_samples: int) -> "Progress":
        """Returns the progress one optimizer step and ``num_samples`` samples later."""
        return replace(self, step=self.step + 1, position=self.position + num_samples)

    def with_losses(self, losses: Sequence[float], grad_norm: float) -> "Progress":
        """Returns the progress with ``losses`` of further steps in the window."""
        # One addition a step, in order: a resumed window gets the same sum as an uninterrupted one.
        total = self.window_loss
        for loss in losses:
            total += loss
        return replace(self, window_loss=total, window_steps=self.window_steps + len(losses), grad_norm=grad_norm)

    def with_fitted(self, count: int) -> "Progress":
        """Returns the progress with ``count`` more fitted targets."""
        return replace(self, num_fitted=self.num_fitted + count)

    def with_new_window(self) -> "Progress":
        """Returns the progress with an empty logging window."""
        return Progress(step=self.step, position=self.position, num_fitted=self.num_fitted)

    def to_json(self) -> dict[str, int | float]:
        """Returns the fields as plain data."""
        return asdict(self)


class AdapterAverage:
    """Exponential moving average of the adapter, float32, in the adapter's own names."""

    def __init__(self, live: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.values = {name: value.detach().clone() for name, value in live.items()}

    @torch.no_grad()
    def update(self, live: Mapping[str, Tensor], refused: Tensor | None = None) -> None:
        """Moves the average towards the live adapter by 1 - decay; call once after every optimizer step.

        Args:
            live: the adapter after the step.
            refused: 1 on the device if the step's update was not made, else 0: then the average stays as it is.
        """
        values, targets = list(self.values.values()), [live[name] for name in self.values]
        if refused is None:
            torch._foreach_lerp_(values, targets, 1.0 - self.decay)
        else:
            torch._foreach_lerp_(values, targets, [(1.0 - self.decay) * (1.0 - refused)] * len(values))

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Copies ``values`` in place; names must be the same."""
        for name, value in self.values.items():
            value.copy_(values[name])


def trainable(denoiser: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trainable parameters by name, in module order."""
    return {name: p for name, p in denoiser.named_parameters() if p.requires_grad}


def optimizer_tensors(denoiser: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Returns the optimizer's tensors as ``PARAMETER/FIELD``, such as ``.../exp_avg``, on the CPU."""
    return {
        f"{name}/{entry}": value.detach().cpu().contiguous()
        for name, parameter in trainable(denoiser).items()
        for entry, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(denoiser: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Puts back what ``optimizer_tensors`` returned, on the devices the optimizer wants; rates are left alone.

    Raises:
        ConfigError: a tensor belongs to no trainable parameter, or a parameter has no tensors.
    """
    entries = by_parameter(denoiser, tensors)
    state = {position: entries[name] for position, name in enumerate(trainable(denoiser)) if name in entries}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def by_parameter(denoiser: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Returns what ``optimizer_tensors`` returned by parameter and field, as copies; empty if it is empty.

    Raises:
        ConfigError: a tensor belongs to no trainable parameter, or a parameter has no tensors.
    """
    entries: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        entries.setdefault(name, {})[entry] = value.clone()  # the optimizer changes its tensors in place
    names = list(trainable(denoiser))
    if entries and set(entries) != set(names):  # plain SGD has no tensors at all
        different = sorted(set(entries) ^ set(names))[:3]
        raise ConfigError(
            f"The checkpoint's optimizer state is for another adapter: {', '.join(different)} on one side only. "
            f"Resume with the adapter settings of the checkpoint's config.yaml."
        )
    return entries
