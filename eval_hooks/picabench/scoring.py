"""Judging and measuring the sides of an evaluation: the base, the unchanged inputs, and a checkpoint."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from physedit.eval_hooks.judges.judge import Judge
from physedit.eval_hooks.picabench.base_shelf import BaseShelf
from physedit.eval_hooks.picabench.judging import JudgeSettings, count_unscored, judge_folder
from physedit.eval_hooks.picabench.manifest import has_its_pictures, not_edited
from physedit.eval_hooks.picabench.measure import MeasuringRules, has_records, measure_folder
from physedit.eval_hooks.picabench.measures import Measures
from physedit.eval_hooks.picabench.sides import Side
from physedit.eval_hooks.ranks import Ranks
from physedit.eval_hooks.report_file import ReportKeys, report_keys

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """Who shares the work, and where what many runs need is kept.

    Attributes:
        ranks: all of which call alike.
        shelf: below the base cache, this hook's own folder.
        progress: called with (done, total, label) after every answer of this rank.
    """

    ranks: Ranks
    shelf: Path
    progress: Callable[[int, int, str], None]


@dataclass
class Scoring:
    """How the pictures of a hook are judged and measured.

    Attributes:
        judge: who answers.
        measures: which numbers are reported.
        rules: how pictures and edit areas are read.
        settings: of judging.
        done: sides that many runs share and that are scored whole.
    """

    judge: Judge
    measures: Measures
    rules: MeasuringRules
    settings: JudgeSettings
    done: set[Path] = field(default_factory=set)

    @property
    def described(self) -> Mapping[str, object]:
        """What decides the numbers that the same pictures get."""
        return {
            "judge": self.judge.judge_id,
            "measures": self.measures.measures_id,
            "rules": self.rules.value,
        }

    def fetch(self, work: Work, side: Side) -> None:
        """Puts into the side's folder what another run has made, judged and measured of it; every rank calls it."""
        work.ranks.first_alone(side.folder, lambda: self._shelf(work, side).fetch_into(side.folder))

    def score(self, work: Work, side: Side, *, earlier: Sequence[Path] = ()) -> None:
        """Judges and measures a side, as far as that is not done; every rank calls it.

        Args:
            work: who shares it.
            side: whose pictures are made.
            earlier: folders whose answers about identical pictures hold here too.
        """
        outcome = judge_folder(
            side.folder,
            self.judge,
            kind_of=self.measures.kind_of,
            settings=self.settings,
            earlier=earlier,
            ranks=work.ranks,
            progress=work.progress,
        )
        if outcome.stopped is not None:
            log.error("%d of %d questions are scored: %s", outcome.num_scored, outcome.num_questions, outcome.stopped)
        measure_folder(side.folder, work.ranks, rules=self.rules)

    def score_shared(self, work: Work, side: Side) -> None:
        """As ``score``, of what many runs share: it is judged once and then on the shelf for all of them."""
        if side.folder in self.done:
            return
        self.score(work, side)
        if count_unscored(side.folder) or not_edited(side.folder):
            return  # the judge left, or the time was up: the next evaluation does the rest
        work.ranks.first_alone(side.folder, lambda: self._shelf(work, side).publish(side.folder))
        self.done.add(side.folder)

    def is_reported(self, folder: Path, keys: ReportKeys, *, may_lack: bool) -> bool:
        """Tells whether a folder has the report of these keys, and all it is about.

        Args:
            folder: of a side.
            keys: what the report is to belong to.
            may_lack: some items may not be edited.
        """
        is_whole = report_keys(folder) == keys and has_its_pictures(folder) and has_records(folder)
        return is_whole and not count_unscored(folder) and (may_lack or not not_edited(folder))

    def _shelf(self, work: Work, side: Side) -> BaseShelf:
        return BaseShelf(work.shelf, side.key, self.judge.judge_id)
