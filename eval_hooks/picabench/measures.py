"""Which numbers an evaluation reports, under which keys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from physedit.eval_hooks.compare import PairedRecords, change_of, flips_of
from physedit.eval_hooks.hook import Flips, MetricChange, MetricValue
from physedit.eval_hooks.metrics.accuracy import Accuracy, ItemAccuracy
from physedit.eval_hooks.metrics.consistency import Consistency
from physedit.eval_hooks.metrics.metric import ItemRecord, Metric


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric over the items to which it applies."""

    metric: Metric
    applies: Callable[[ItemRecord], bool] = lambda _record: True


class Measures(Protocol):
    """A set of measures."""

    @property
    def measures_id(self) -> str:
        """Changes when the same answers would be reported otherwise."""
        ...

    def kind_of(self, question: str) -> str | None:
        """Returns what a question is about, or None if no measure asks."""
        ...

    def by_key(self, hook: str, records: Sequence[ItemRecord]) -> Mapping[str, Measure]:
        """Returns the measures by metric key, the headline first, for the groups found in ``records``."""
        ...

    def notes(self, records: Sequence[ItemRecord]) -> tuple[str, ...]:
        """Returns what a reader must know of how ``records`` are measured."""
        ...


@dataclass(frozen=True, slots=True)
class PicaBenchMeasures:
    """The published numbers: accuracy per question and per item, by law, category, operation and level; PSNR.

    The published per-law columns weigh every question the same, as ``acc`` does; the published scripts' files weigh
    every item the same, as ``acc_item`` does.
    """

    @property
    def measures_id(self) -> str:
        """Names the set and its version."""
        return "picabench-2"

    def kind_of(self, question: str) -> str | None:  # noqa: ARG002  (PICABench does not tell kinds apart)
        """Returns None: PICABench does not tell kinds of questions apart."""
        return None

    def by_key(self, hook: str, records: Sequence[ItemRecord]) -> Mapping[str, Measure]:
        """Returns ``acc``, ``acc_item``, ``psnr``, ``psnr_512``, then both accuracies by group.

        ``acc`` weighs every question the same, ``acc_item`` every item. Each is there as ``acc/LAW`` and as
        ``acc/GROUP/VALUE`` for the groups category, operation and level.
        """
        accuracies: tuple[tuple[str, Metric], ...] = (
            (f"{hook}/acc", Accuracy()),
            (f"{hook}/acc_item", ItemAccuracy()),
        )
        found = {key: Measure(metric) for key, metric in accuracies}
        found[f"{hook}/psnr"] = Measure(Consistency())
        found[f"{hook}/psnr_512"] = Measure(Consistency(in_square=True))
        for key, metric in accuracies:
            found |= by_value(key, metric, records, law_of)
            for group, value_of in _GROUPS.items():
                found |= by_value(f"{key}/{group}", metric, records, value_of)
        return found

    def notes(self, records: Sequence[ItemRecord]) -> tuple[str, ...]:
        """Returns how many items give the PSNR of the whole picture."""
        whole = sum(not record.has_edit_area for record in records)
        if not whole:
            return ()
        return (
            f"PSNR: {whole} of {len(records)} items have no edit area and count with the whole picture, "
            "as in the published evaluator.",
        )


def scores_of(measures: Measures, hook: str, records: Sequence[ItemRecord]) -> dict[str, MetricValue]:
    """Returns every measure of one evaluation on its own, by key."""
    return {
        key: measure.metric.score([record for record in records if measure.applies(record)])
        for key, measure in measures.by_key(hook, records).items()
    }


def changes_of(
    measures: Measures, hook: str, paired: PairedRecords
) -> tuple[dict[str, MetricChange], dict[str, Flips]]:
    """Returns the change of every measure, and the flips of every accuracy, by key."""
    changes: dict[str, MetricChange] = {}
    flips: dict[str, Flips] = {}
    for key, measure in measures.by_key(hook, paired.tuned).items():
        narrowed = replace(
            paired,
            base=tuple(record for record in paired.base if measure.applies(record)),
            tuned=tuple(record for record in paired.tuned if measure.applies(record)),
        )
        changes[key] = change_of(measure.metric, narrowed)
        if isinstance(measure.metric, Accuracy):
            flips[key] = flips_of(measure.metric, narrowed)
    return changes, flips


def by_value(
    key: str, metric: Metric, records: Sequence[ItemRecord], value_of: Callable[[ItemRecord], str]
) -> dict[str, Measure]:
    """Returns ``metric`` for each value found in ``records``, under ``key/VALUE``, in the order of first items."""
    values = dict.fromkeys(value_of(record) for record in records)
    return {f"{key}/{value}": Measure(metric, _having(value_of, value)) for value in values}


def law_of(record: ItemRecord) -> str:
    """Returns an item's law."""
    return record.law


def _category_of(record: ItemRecord) -> str:
    return record.category


def _operation_of(record: ItemRecord) -> str:
    return record.operation


def _level_of(record: ItemRecord) -> str:
    return record.level


def _having(value_of: Callable[[ItemRecord], str], value: str) -> Callable[[ItemRecord], bool]:
    return lambda record: value_of(record) == value


_GROUPS: Mapping[str, Callable[[ItemRecord], str]] = {
    "category": _category_of,
    "operation": _operation_of,
    "level": _level_of,
}
