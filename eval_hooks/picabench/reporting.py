"""The report on two sides of an evaluation: what it belongs to, whether it is there, and how it is written."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from physedit.eval_hooks.files import digest_of
from physedit.eval_hooks.hook import EvalReport
from physedit.eval_hooks.picabench.comparison import Comparison, write_report
from physedit.eval_hooks.picabench.manifest import OutputsMismatch
from physedit.eval_hooks.picabench.scoring import Scoring
from physedit.eval_hooks.picabench.sides import Side, Sides
from physedit.eval_hooks.picabench.subset import part_in_words
from physedit.eval_hooks.ranks import Ranks
from physedit.eval_hooks.report_file import ReportKeys, load_report, report_keys


@dataclass
class Reporting:
    """The reports of a hook.

    Attributes:
        hook: its name.
        sides: what it compares.
        scoring: how they are judged and measured.
        has_reference: the unchanged inputs are scored too.
    """

    hook: str
    sides: Sides
    scoring: Scoring
    has_reference: bool

    @cached_property
    def settings_key(self) -> str:
        """Names everything but the model that decides a report."""
        return digest_of({**self.sides.settings, **self._asked})

    def is_finished(self, ranks: Ranks, base: Side, tuned: Side) -> bool:
        """Tells whether the sides' report is there and whole; every rank calls it."""
        keys, may_lack = self._keys(base, tuned), self.sides.edits.time_budget_s is not None
        found: list[bool] = []

        def look() -> None:
            is_reported = self.scoring.is_reported(tuned.folder, keys, may_lack=may_lack)
            found.append(is_reported and load_report(tuned.folder).is_whole)

        ranks.together(tuned.folder, look)
        return found[0]

    def is_pending(self, run_folder: Path, step: int) -> bool:
        """Tells whether the pictures of a step are made, but not all judged and reported."""
        try:
            base, tuned = self.sides.made(run_folder, 0), self.sides.made(run_folder, step)
        except OutputsMismatch:
            return False
        is_current = report_keys(tuned.folder) == self._keys(base, tuned)
        return not is_current or not load_report(tuned.folder).is_whole

    def write(
        self, ranks: Ranks, base: Side, tuned: Side, reference: Side | None, *, step: int, started: float
    ) -> EvalReport:
        """Writes the report on judged and measured sides and returns it; every rank calls it.

        Args:
            ranks: all of which get the same report.
            base: what is compared with.
            tuned: the checkpoint, or the base again.
            reference: the unchanged inputs; None if they are not scored.
            step: of the checkpoint.
            started: by ``time.monotonic``, when the evaluation began.
        """
        comparison = Comparison(
            hook=self.hook,
            step=step,
            base=base.folder,
            tuned=tuned.folder,
            judge=self.scoring.judge,
            measures=self.scoring.measures,
            part=part_in_words(self.sides.limit, self.sides.per_law),
            num_items=base.num_items,
            input_copy=None if reference is None else reference.folder,
        )
        keys = self._keys(base, tuned)
        ranks.first_alone(tuned.folder, lambda: write_report(comparison, keys, time.monotonic() - started))
        return load_report(tuned.folder)

    @property
    def _asked(self) -> Mapping[str, object]:
        """What decides the numbers that the same pictures get."""
        return {**self.scoring.described, "reference": self.has_reference}

    def _keys(self, base: Side, tuned: Side) -> ReportKeys:
        decided_by = {"base": base.key, "tuned": tuned.key, **self._asked}
        return ReportKeys(key=digest_of(decided_by), settings_key=self.settings_key)
