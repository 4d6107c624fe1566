"""The loss on rows that training does not see, with the same noise at every checkpoint: does the adapter still learn?

Shape legend: C latent channels, h w latent cells.
"""

import logging
import math
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from physedit.data_loaders.sample import (
    DatasetRowError,
    EditDataset,
    EditSample,
    PictureSizeError,
    PromptLevel,
    collate,
)
from physedit.eval_hooks.files import digest_of, link_or_copy
from physedit.eval_hooks.hook import Cadence, EvalContext, EvalReport
from physedit.eval_hooks.picabench.generate import made_with, undisturbed
from physedit.eval_hooks.ranks import Ranks
from physedit.eval_hooks.report_file import ReportKeys, finished_reports, load_report, save_report
from physedit.eval_hooks.row_losses import LOSSES_FILE, RowLosses, changes_of_losses, draw, read_losses, write_losses
from physedit.models.backbone import Conditioning

log = logging.getLogger(__name__)

# Raise it when the same settings would lead to other losses.
_PROTOCOL = 1


class HeldOutRowsUnusable(ValueError):
    """There is nothing to measure, or what is measured is no number."""


class HeldOutLoss:
    """Measures the plain flow-matching loss of held-out rows at fixed noise and noise levels.

    Every row is measured once in each quantile of the noise levels, so that a change at high noise (composition) is
    told from one at low noise (detail). The loss weighs all cells alike, whatever the objective of the run, so that
    runs with other objectives can be compared. Training is as it was afterwards: no gradient, no mode and no global
    random state changes.
    """

    def __init__(
        self,
        *,
        name: str,
        data: EditDataset,
        cadence: Cadence,
        level: str | None = None,
        num_items: int = 64,
        num_quantiles: int = 4,
        seed: int = 0,
    ) -> None:
        """Keeps the settings.

        Args:
            name: folder of the hook and first part of its metric keys.
            data: the rows that are held out.
            cadence: when the hook is due.
            level: which instructions; None for the first of superficial, intermediate and explicit that the data has.
            num_items: use so many rows, evenly spaced.
            num_quantiles: parts of equal probability into which the noise levels are cut.
            seed: decides noise and noise levels, with a row's id.

        Raises:
            ValueError: a setting out of range, with its name.
        """
        for key, value in {"num_items": num_items, "num_quantiles": num_quantiles}.items():
            if value < 1:
                raise ValueError(f"{name}.{key} is {value}; expected at least 1.")
        if level is not None and level not in tuple(PromptLevel):
            raise ValueError(f"{name}.level is {level!r}; expected one of {', '.join(PromptLevel)}, or null.")
        self.name, self.cadence, self._data, self._seed = name, cadence, data, seed
        self._asked_level = level
        self._num_quantiles = num_quantiles
        num_rows = min(num_items, len(data))
        self._rows = tuple(number * len(data) // num_rows for number in range(num_rows))

    def check(self) -> None:
        """Verifies that the rows have instructions of the level, and that one has no known problem.

        Raises:
            HeldOutRowsUnusable: they have not, or none is usable.
        """
        if self._asked_level is not None and self._asked_level not in self._data.levels:
            raise HeldOutRowsUnusable(
                f"{self.name}.level={self._asked_level}, but the held-out rows have only "
                f"{', '.join(sorted(self._data.levels))}. Set it to one of these, or to null."
            )
        problems = [self._data.header(row).problem for row in self._rows]
        if all(problem is not None for problem in problems):
            raise HeldOutRowsUnusable(f"{self.name}: none of {len(problems)} held-out rows can be used: {problems[0]}.")
        log.info("%s: %d of %d held-out rows", self.name, len(self._rows), len(self._data))

    def finished_reports(self, run_folder: Path, last_step: int) -> tuple[EvalReport, ...]:
        """Returns the reports of steps up to ``last_step`` that an earlier start with these settings has written."""
        return finished_reports(run_folder / "eval" / self.name, self._settings_key, last_step)

    def run(self, context: EvalContext) -> EvalReport:
        """Returns the change of the loss at ``context.step`` against the base, which has the adapter off.

        Called on every rank; all get the same report, and all make the same number of forward passes.

        Raises:
            HeldOutRowsUnusable: no row can be used, or a loss is not finite.
            FailedElsewhere: another rank failed.
        """
        started = time.monotonic()
        ranks = Ranks(context.rank, context.world_size, context.barrier)
        root = context.run_folder / "eval" / self.name
        base_key = digest_of({**self._settings, **made_with(context)})
        base = root / "base"
        self._measure_base(context, ranks, base, base_key)
        folder, key = base, base_key
        if context.step > 0:
            folder = root / f"step_{context.step:08d}"
            key = digest_of({"base": base_key, "step": context.step, "adapter": context.adapter_id})
            is_known = bool(context.adapter_id) and self._has_losses(ranks, folder, key)
            if not is_known:
                self._measure(context, ranks, folder, key)
        keys = ReportKeys(key=digest_of({"base": base_key, "tuned": key}), settings_key=self._settings_key)
        ranks.first_alone(folder, lambda: self._report(context.step, folder, base, keys, time.monotonic() - started))
        return load_report(folder)

    @cached_property
    def _level(self) -> PromptLevel:
        if self._asked_level is not None:
            return PromptLevel(self._asked_level)
        return next(level for level in PromptLevel if level in self._data.levels)

    @cached_property
    def _settings(self) -> Mapping[str, object]:
        return {
            "protocol": _PROTOCOL,
            "data": self._data.fingerprint,
            "rows": list(self._rows),
            "level": self._level.value,
            "num_quantiles": self._num_quantiles,
            "seed": self._seed,
        }

    @cached_property
    def _settings_key(self) -> str:
        return digest_of(self._settings)

    def _measure_base(self, context: EvalContext, ranks: Ranks, folder: Path, key: str) -> None:
        """Ensures the base's losses in ``folder``, from another run of the same base and rows where there is one."""
        shelf = context.base_cache / self.name / f"{key}.json"

        def fetch() -> None:
            if read_losses(folder, key) is None and shelf.exists():
                link_or_copy(shelf, folder / LOSSES_FILE)

        ranks.first_alone(folder, fetch)
        if self._has_losses(ranks, folder, key):
            return
        with context.without_adapter():
            self._measure(context, ranks, folder, key)
        ranks.first_alone(folder, lambda: link_or_copy(folder / LOSSES_FILE, shelf))

    def _has_losses(self, ranks: Ranks, folder: Path, key: str) -> bool:
        found: list[bool] = []
        ranks.together(folder, lambda: found.append(read_losses(folder, key) is not None))
        return found[0]

    def _measure(self, context: EvalContext, ranks: Ranks, folder: Path, key: str) -> None:
        """Writes the losses of all rows to ``folder``; every rank does its share."""

        def measure_share() -> None:
            with undisturbed(context.denoiser, context.device):
                rows = self._losses_of_share(context, ranks)
            write_losses(folder / _part_name(ranks.rank), key, rows)

        ranks.together(folder, measure_share)
        ranks.first_alone(folder, lambda: self._merge(folder, key, ranks.world_size))

    def _losses_of_share(self, context: EvalContext, ranks: Ranks) -> list[RowLosses]:
        """Measures this rank's rows; where it has none left, or one cannot be used, it passes another in vain.

        A denoiser that is cut over the ranks needs all of them in each of its passes.
        """
        share, measured = ranks.share(self._rows), []
        num_rounds = math.ceil(len(self._rows) / ranks.world_size)
        stand_in: tuple[EditSample, Conditioning] | None = None
        for number in range(num_rounds):
            mine = self._encoded(context, share[number]) if number < len(share) else None
            if isinstance(mine, tuple):
                stand_in = mine
            elif mine is not None:
                measured.append(mine)
            stand_in = stand_in or self._first_usable(context)
            losses = self._losses(context, *stand_in)
            if isinstance(mine, tuple):
                measured.append(RowLosses(mine[0].sample_id, mine[0].law, losses))
            context.progress(number + 1, num_rounds, f"{self.name}: held-out rows")
        return measured

    def _encoded(self, context: EvalContext, row: int) -> tuple[EditSample, Conditioning] | RowLosses:
        """Returns a row as the editor takes it, or why it cannot."""
        try:
            sample = self._data.sample(row, self._level)
            return sample, context.backbone.encode(collate([sample]))
        except (DatasetRowError, PictureSizeError) as error:
            return RowLosses(self._data.name(row).sample_id, None, (), str(error))

    def _first_usable(self, context: EvalContext) -> tuple[EditSample, Conditioning]:
        problem = ""
        for row in self._rows:
            found = self._encoded(context, row)
            if isinstance(found, tuple):
                return found
            problem = problem or str(found.problem)
        raise HeldOutRowsUnusable(f"{self.name}: none of {len(self._rows)} held-out rows can be used: {problem}")

    def _losses(self, context: EvalContext, sample: EditSample, conditioning: Conditioning) -> tuple[float, ...]:
        """Returns the loss of a row in every quantile: x_t = (1 - sigma) x_0 + sigma n, target n - x_0, float32."""
        target = conditioning.target.float()  # [1, C, h, w]
        noise, sigmas = draw(self._seed, sample.sample_id, target, self._num_quantiles, conditioning.time_shift)
        losses = []
        for number in range(self._num_quantiles):
            sigma = sigmas[number : number + 1]
            level = sigma.view(-1, 1, 1, 1)
            noisy = (1.0 - level) * target + level * noise
            velocity = context.backbone.velocity(context.denoiser, noisy, sigma, conditioning).float()
            loss = float(((velocity - (noise - target)) ** 2).mean())
            if not math.isfinite(loss):
                raise HeldOutRowsUnusable(
                    f"{self.name}: the loss of held-out row {sample.sample_id} is {loss} at noise level "
                    f"{float(sigma):.3f}, step {context.step}. Look at the row, or at the adapter's training loss."
                )
            losses.append(loss)
        return tuple(losses)

    def _merge(self, folder: Path, key: str, num_ranks: int) -> None:
        parts = [read_losses(folder, key, _part_name(rank)) for rank in range(num_ranks)]
        by_id = {row.sample_id: row for part in parts if part is not None for row in part}
        ids = [self._data.name(row).sample_id for row in self._rows]
        if lost := [each for each in ids if each not in by_id]:
            raise FileNotFoundError(
                f"{folder}: no loss of {len(lost)} rows (first {lost[0]}) although every rank has finished. All ranks "
                "must see the same folder: put the run on a file system that they share."
            )
        write_losses(folder / LOSSES_FILE, key, [by_id[each] for each in ids])
        for part in folder.glob("losses.*.json"):
            part.unlink()

    def _report(self, step: int, folder: Path, base: Path, keys: ReportKeys, seconds: float) -> None:
        before, after = (read_losses(each) or () for each in (base, folder))
        num_dropped = sum(row.problem is not None for row in after)
        metrics = changes_of_losses(self.name, before, after)
        notes = [
            "Lower is better: the mean squared error of the predicted velocity on rows that are held out of training.",
            f"q1 to q{self._num_quantiles} are equally likely parts of the noise levels, lowest noise first.",
        ]
        if num_dropped:
            notes.append(f"{num_dropped} of {len(self._rows)} held-out rows cannot be used; {LOSSES_FILE} says why.")
        report = EvalReport(self.name, step, metrics, folder, tuple(notes), seconds, lower_is_better=frozenset(metrics))
        save_report(report, keys=keys, evidence={"settings": self._settings, "num_dropped": num_dropped})


def _part_name(rank: int) -> str:
    return f"losses.{rank}.json"
