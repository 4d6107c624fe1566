"""Which numbers an evaluation on the embedded world reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from physedit.data_loaders.scenes.questions import kind_of
from physedit.eval_hooks.metrics.accuracy import Accuracy
from physedit.eval_hooks.metrics.consistency import Consistency
from physedit.eval_hooks.metrics.metric import ItemRecord
from physedit.eval_hooks.picabench.measures import Measure, by_value, law_of


@dataclass(frozen=True, slots=True)
class SceneMeasures:
    """The embedded world's numbers: physics and semantic accuracy, physics by law, PSNR where it means something.

    Items without an edit area (a law that changes the whole picture) are left out of the PSNR: over the whole picture
    it would reward an editor that does nothing.
    """

    @property
    def measures_id(self) -> str:
        """Names the set and its version."""
        return "scenes-1"

    def kind_of(self, question: str) -> str | None:
        """Returns ``"physics"`` or ``"semantic"``."""
        return kind_of(question)

    def by_key(self, hook: str, records: Sequence[ItemRecord]) -> Mapping[str, Measure]:
        """Returns ``physics_acc``, ``semantic_acc``, ``psnr``, and ``physics_acc/LAW``."""
        physics = Accuracy(kind="physics")
        acc = f"{hook}/physics_acc"
        return {
            acc: Measure(physics),
            f"{hook}/semantic_acc": Measure(Accuracy(kind="semantic")),
            f"{hook}/psnr": Measure(Consistency(), _has_edit_area),
            **by_value(acc, physics, records, law_of),
        }

    def notes(self, records: Sequence[ItemRecord]) -> tuple[str, ...]:
        """Returns how many items are left out of the PSNR."""
        whole = sum(not record.has_edit_area for record in records)
        if not whole:
            return ()
        return (f"PSNR leaves out {whole} of {len(records)} items whose edit changes the whole picture.",)


def _has_edit_area(record: ItemRecord) -> bool:
    return record.has_edit_area
