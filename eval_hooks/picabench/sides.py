"""What an evaluation compares: base, unchanged inputs and checkpoint, each a folder of pictures with a key."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from physedit.eval_hooks.files import digest_of
from physedit.eval_hooks.hook import EvalContext
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem, benchmark_digest, load_benchmark
from physedit.eval_hooks.picabench.benchmark_place import find_benchmark, place_in_words
from physedit.eval_hooks.picabench.edit_task import EditSettings, EditTask
from physedit.eval_hooks.picabench.generate import made_with
from physedit.eval_hooks.picabench.inputs import INPUT_RULE, sizes_in_words
from physedit.eval_hooks.picabench.manifest import Manifest, OutputsMismatch, read_whole_manifest
from physedit.eval_hooks.picabench.subset import select

# Raise it when the same settings would lead to other pictures, answers or numbers.
_PROTOCOL = 3
_BASE, _INPUT_COPY = "base", "input_copy"
_OF_THE_EDITOR = ("num_steps", "guidance")
"""Settings that are the editor's own where they are None."""


@dataclass(frozen=True, slots=True)
class Side:
    """The base, the unchanged inputs or the adapter under evaluation.

    Attributes:
        folder: of its pictures.
        key: hash of everything that decides them.
        described: what the key was made of, in words.
    """

    folder: Path
    key: str
    described: Mapping[str, object]

    @property
    def num_items(self) -> int:
        """How many items of the benchmark are in use."""
        return int(str(self.described["num_items"]))


@dataclass
class Sides:
    """The sides of a hook's evaluations.

    Attributes:
        hook: its name.
        benchmark, revision: as the hook is given them.
        limit, per_law: which items; None for all.
        edits: how they are edited.
        editor: the editor's weights by name, told beside what decides the pictures; None if not known.
    """

    hook: str
    benchmark: str
    revision: str | None
    limit: int | None
    per_law: int | None
    edits: EditSettings
    editor: str | None = None

    @cached_property
    def place(self) -> Path:
        """Where the benchmark lies, downloaded if need be."""
        return find_benchmark(self.benchmark, self.revision)

    @cached_property
    def items(self) -> tuple[BenchmarkItem, ...]:
        """The items in use."""
        return select(load_benchmark(self.place), limit=self.limit, per_law=self.per_law)

    @cached_property
    def settings(self) -> Mapping[str, object]:
        """What decides the pictures and is known without a model."""
        return {
            **self._which_items,
            "hook": self.hook,
            "seed": self.edits.seed,
            "num_steps": self.edits.num_steps,
            "guidance": self.edits.guidance,
            "batch_size": self.edits.batch_size,
        }

    @cached_property
    def _which_items(self) -> Mapping[str, object]:
        """What decides the inputs and what is asked about them."""
        return {
            "protocol": _PROTOCOL,
            "benchmark": benchmark_digest(self.place),
            "limit": self.limit,
            "per_law": self.per_law,
            "level": self.edits.level.value,
            "inputs": INPUT_RULE,
        }

    def folder(self, run_folder: Path, step: int) -> Path:
        """Returns the folder of a step; 0 is the base."""
        return run_folder / "eval" / self.hook / (_BASE if step == 0 else f"step_{step:08d}")

    def made_steps(self, run_folder: Path) -> list[int]:
        """Returns the steps that have a folder, in order."""
        folders = (run_folder / "eval" / self.hook).glob("step_*")
        return [0, *sorted(int(folder.name.removeprefix("step_")) for folder in folders)]

    def base(self, context: EvalContext) -> Side:
        """Returns the base."""
        return self._side(context, self.folder(context.run_folder, 0), self._edited(context))

    def tuned(self, context: EvalContext) -> Side:
        """Returns the adapter at ``context.step``; at step 0 the base."""
        if context.step == 0:
            return self.base(context)
        described = {**self._edited(context), "step": context.step, "adapter": context.adapter_id}
        return self._side(context, self.folder(context.run_folder, context.step), described)

    def input_copy(self, context: EvalContext) -> Side:
        """Returns the unchanged inputs as an editor's outputs."""
        folder = context.run_folder / "eval" / self.hook / _INPUT_COPY
        return self._side(context, folder, {**self._which_items, "edits": "none: the input itself"})

    def made(self, run_folder: Path, step: int) -> Side:
        """Returns the side of a step as its folder tells it; needs no editor.

        Raises:
            OutputsMismatch: its pictures are not all made, or were made with other settings.
        """
        return self._made(self.folder(run_folder, step), self.settings)

    def made_input_copy(self, run_folder: Path) -> Side:
        """Returns the unchanged inputs as their folder tells it.

        Raises:
            OutputsMismatch: as ``made``.
        """
        return self._made(run_folder / "eval" / self.hook / _INPUT_COPY, self._which_items)

    def task(self, side: Side, *, twin: Path | None) -> EditTask:
        """Returns the task of making a side's pictures."""
        return EditTask(
            folder=side.folder,
            items=self.items,
            settings=self.edits,
            hook=self.hook,
            key=side.key,
            described=side.described,
            twin=twin,
        )

    def _edited(self, context: EvalContext) -> dict[str, object]:
        resolved = self.edits.for_editor(context.backbone)
        return {
            **self.settings,
            "num_steps": resolved.num_steps,
            "guidance": resolved.guidance,
            **made_with(context),
        }

    def _side(self, context: EvalContext, folder: Path, decided_by: Mapping[str, object]) -> Side:
        """Returns a side; where the benchmark was found is told beside what decides the pictures."""
        beside = {
            "editor": self.editor,
            "source": place_in_words(self.benchmark, self.revision, self.place),
            "num_items": len(self.items),
            "sizes": sizes_in_words(self.items, context.backbone.sizes_of),
        }
        return Side(folder=folder, key=digest_of(decided_by), described={**decided_by, **beside})

    def _made(self, folder: Path, asked: Mapping[str, object]) -> Side:
        manifest = read_whole_manifest(folder)
        if manifest is None:
            raise OutputsMismatch(f"{folder} has no finished edits to judge. Resume the run: it makes what is missing.")
        if not _is_asked(manifest, asked):
            raise OutputsMismatch(
                f"{folder} was edited with other settings than the evaluation {self.hook} has now, or of another "
                "benchmark. Judge it with the settings of the run, or resume the run, which edits anew."
            )
        return Side(folder, manifest.key, manifest.settings)


def _is_asked(manifest: Manifest, asked: Mapping[str, object]) -> bool:
    return all(
        manifest.settings.get(key) == value
        for key, value in asked.items()
        if value is not None or key not in _OF_THE_EDITOR
    )
