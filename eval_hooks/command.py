"""An evaluation by a program of the user's own, in any language: it is given an adapter and answers with numbers."""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from physedit.eval_hooks.external_program import CommandFailed, Reading, parse_answer, run_program, tail_of
from physedit.eval_hooks.files import DamagedFileError, digest_of, read_json, write_json
from physedit.eval_hooks.hook import Cadence, EvalContext, EvalReport, MetricChange
from physedit.eval_hooks.ranks import Ranks
from physedit.eval_hooks.report_file import ReportKeys, finished_reports, load_report, save_report

log = logging.getLogger(__name__)

_RESULT = "result.json"


class CommandHook:
    """Runs a program at every due step, and once for the base, and reports the numbers that it prints.

    Only rank 0 starts it; the others wait at a barrier. Its last line of output is a JSON object of metrics, each a
    number or ``{"value": number, "n": items}``. A program that fails, answers otherwise or takes too long fails this
    evaluation, and no other.
    """

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        cadence: Cadence,
        timeout_s: float = 3600.0,
        lower_is_better: Sequence[str] = (),
    ) -> None:
        """Keeps the settings.

        Args:
            name: folder of the hook and first part of its metric keys.
            command: program and arguments, without a shell; ``{adapter}``, ``{run_folder}``, ``{step}`` and ``{out}``
                in them are replaced. For the base, ``{adapter}`` is empty and ``{step}`` is 0.
            cadence: when the hook is due.
            timeout_s: seconds after which the program is ended.
            lower_is_better: metrics of its that are the better the lower they are.

        Raises:
            ValueError: no program, or a time out of range.
        """
        if not command or not command[0]:
            raise ValueError(f"{name}.command is empty; give a program and its arguments, such as [python, score.py].")
        if not timeout_s > 0:
            raise ValueError(f"{name}.timeout_s is {timeout_s}; expected more than 0.")
        self.name, self.cadence = name, cadence
        self._command, self._timeout_s = tuple(command), timeout_s
        self._lower_is_better = tuple(lower_is_better)

    def check(self) -> None:
        """Verifies that there is such a program; starts nothing.

        Raises:
            CommandFailed: there is none.
        """
        if shutil.which(self._command[0]) is None:
            raise CommandFailed(
                f"{self.name}.command starts {self._command[0]}, which is no program here that can be started. Give "
                "its path, make the file executable, or name its interpreter first."
            )
        log.info("%s: %s", self.name, " ".join(self._command))

    def finished_reports(self, run_folder: Path, last_step: int) -> tuple[EvalReport, ...]:
        """Returns the reports of steps up to ``last_step`` of an earlier start, if the command is the present one."""
        return finished_reports(run_folder / "eval" / self.name, self._settings_key, last_step)

    def run(self, context: EvalContext) -> EvalReport:
        """Returns what the program says of the adapter at ``context.step`` beside what it says of the base.

        Called on every rank; all get the same report. What it said of the same weights is not asked again.

        Raises:
            CommandFailed: on rank 0, the program failed, took too long, or answered something else.
            FailedElsewhere: on the others.
        """
        started = time.monotonic()
        root = context.run_folder / "eval" / self.name
        base = root / "base"
        folder = base if context.step == 0 else root / f"step_{context.step:08d}"
        base_key = digest_of({"command": list(self._command), "backbone": context.backbone.fingerprint})
        key = digest_of({"base": base_key, "step": context.step, "adapter": context.adapter_id})
        keys = ReportKeys(key=key, settings_key=self._settings_key)

        def evaluate() -> None:
            before = self._answer(context, base, base_key, step=0)
            after = before if context.step == 0 else self._answer(context, folder, key, step=context.step)
            self._report(context.step, folder, (before, after), keys, time.monotonic() - started)

        Ranks(context.rank, context.world_size, context.barrier).first_alone(root, evaluate)
        return load_report(folder)

    @cached_property
    def _settings_key(self) -> str:
        return digest_of({"command": list(self._command), "lower_is_better": sorted(self._lower_is_better)})

    def _answer(self, context: EvalContext, folder: Path, key: str, *, step: int) -> Mapping[str, Reading]:
        """Returns what the program says of a step, or has said of the same weights."""
        known = _read_result(folder, key) if step == 0 or context.adapter_id else None
        if known is not None:
            return known
        adapter = "" if step == 0 else str(self._adapter_of(context))
        run_folder, out = str(context.run_folder.absolute()), str(folder.absolute())
        values = {"adapter": adapter, "run_folder": run_folder, "step": str(step), "out": out}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        output = run_program(
            [_filled(argument, values) for argument in self._command],
            {f"PHYSEDIT_{name.upper()}": value for name, value in values.items()},
            folder,
            timeout_s=self._timeout_s,
            progress=lambda done, total: context.progress(done, total, f"{self.name}: seconds of at most"),
        )
        try:
            readings = parse_answer(output)
        except ValueError as error:
            raise CommandFailed(
                f"{self.name}: the last line of what {self._command[0]} printed at step {step} is no answer: {error}. "
                f"All of it is in {folder}.{tail_of(folder)}"
            ) from error
        write_json(folder / _RESULT, {"key": key, "metrics": {n: [each.value, each.n] for n, each in readings.items()}})
        return readings

    def _adapter_of(self, context: EvalContext) -> Path:
        if context.adapter_file is None or not context.adapter_file.is_file():
            raise CommandFailed(
                f"{self.name}: there is no file of the adapter at step {context.step} to hand to "
                f"{self._command[0]}: {context.adapter_file}."
            )
        return context.adapter_file.absolute()

    def _report(
        self,
        step: int,
        folder: Path,
        sides: tuple[Mapping[str, Reading], Mapping[str, Reading]],
        keys: ReportKeys,
        seconds: float,
    ) -> None:
        before, after = sides
        # What is over all items before its parts: a report begins with its first metric.
        names = sorted({**after, **before}, key=lambda name: name.count("/"))
        if unknown := sorted({*self._lower_is_better} - {*names}):
            raise CommandFailed(
                f"{self.name}.lower_is_better names {', '.join(unknown)}, but {self._command[0]} measures "
                f"{', '.join(names)}. Name some of these."
            )
        report = EvalReport(
            self.name,
            step,
            {f"{self.name}/{metric}": _change(before.get(metric), after.get(metric)) for metric in names},
            folder,
            (f"Measured by {' '.join(self._command)}, which gives no interval.",),
            seconds,
            lower_is_better=frozenset(f"{self.name}/{m}" for m in self._lower_is_better),
        )
        save_report(report, keys=keys, evidence={"command": list(self._command)})


def _filled(argument: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument


def _change(before: Reading | None, after: Reading | None) -> MetricChange:
    base, tuned = (None if side is None else side.value for side in (before, after))
    change = None if base is None or tuned is None else tuned - base
    return MetricChange(base, tuned, change, None, 0 if after is None else after.n)


def _read_result(folder: Path, key: str) -> dict[str, Reading] | None:
    try:
        content = read_json(folder / _RESULT)
        metrics = content["metrics"]
        if content["key"] != key or not isinstance(metrics, dict):
            return None
        return {name: Reading(float(value), int(n)) for name, (value, n) in metrics.items()}
    except (FileNotFoundError, DamagedFileError, KeyError, TypeError, ValueError):
        return None
