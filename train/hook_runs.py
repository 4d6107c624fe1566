"""Running an evaluation hook on the adapter that a run would ship at a step."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from physedit.eval_hooks.hook import EvalContext, EvalHook, EvalReport, LateHook
from physedit.models.adapter_file import ADAPTER_FILE
from physedit.models.lora import without_adapter
from physedit.train.adapter_settings import adapter_id
from physedit.train.asking import Asking
from physedit.train.checkpoint import step_name
from physedit.train.loop import Trainer
from physedit.train.signals import Stopped


@dataclass(frozen=True, slots=True)
class HookRunner:
    """Runs hooks on every rank of a run."""

    trainer: Trainer
    folder: Path
    """Of the run."""
    base_cache: Path
    asking: Asking
    progress: Callable[[int, int, str], None]
    """Called with (done, total, label)."""

    def attempt(self, hook: EvalHook, step: int) -> tuple[EvalReport | None, list[Exception]]:
        """Runs ``hook`` on the adapter that is shipped, or has it make its pictures: then there is no report yet.

        Called on every rank. What takes all ranks but may not fail is around the attempt.

        Raises:
            Stopped: the run was asked to stop meanwhile.
        """
        engine, average, denoiser = self.trainer.engine, self.trainer.average, self.trainer.backbone.denoiser
        identity = adapter_id(denoiser, engine.adapter() if average is None else average.values)
        passes = denoiser if engine.passes_take_all_ranks else None
        with nullcontext() if average is None else engine.swapped(average.values):
            return self.trainer.processes.attempt(lambda: _evaluated(hook, self._context(step, identity)), passes)

    def _context(self, step: int, identity: str) -> EvalContext:
        backbone, accelerator = self.trainer.backbone, self.trainer.accelerator
        adapter = self.folder / "checkpoints" / step_name(step) / "adapter" / ADAPTER_FILE
        return EvalContext(
            step=step,
            backbone=backbone,
            denoiser=backbone.denoiser,
            without_adapter=lambda: without_adapter(backbone.denoiser),
            run_folder=self.folder,
            base_cache=self.base_cache,
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
            barrier=self.trainer.processes.wait,
            progress=self._tell,
            device=accelerator.device,
            adapter_id=identity,
            adapter_file=None if step == 0 else adapter,
        )

    def _tell(self, done: int, total: int, label: str) -> None:
        self.progress(done, total, label)
        if self.asking.stops_here():
            raise Stopped(
                "Stopped during an evaluation; what it has so far is kept, and so is the checkpoint it is of."
            )


def _evaluated(hook: EvalHook, context: EvalContext) -> EvalReport | None:
    if isinstance(hook, LateHook) and hook.is_background:
        hook.generate(context)
        return None
    return hook.run(context)
