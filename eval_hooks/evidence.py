"""What stands beside a report's numbers: how they were made, what is open, and the paper's rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from physedit.eval_hooks.bars import BarValue
from physedit.eval_hooks.hook import EvalReport
from physedit.eval_hooks.picabench.published import Aggregation, accuracy_of_law
from physedit.eval_hooks.report_file import read_evidence

_SIDES = ("base", "tuned")
_SETTINGS = {
    "source": "benchmark",
    "level": "instructions",
    "editor": "editor",
    "num_steps": "denoising steps",
    "guidance": "guidance",
    "seed": "seed",
    "inputs": "inputs",
    "sizes": "sizes",
    "dtype": "number format",
    "device": "device",
    "torch": "torch",
    "diffusers": "diffusers",
    "transformers": "transformers",
}
"""Settings that a reader needs, with the words for them."""


@dataclass(frozen=True, slots=True)
class OpenRow:
    """Questions of one verdict that have one reason, on either side."""

    verdict: str
    reason: str
    base: int
    tuned: int


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row of the paper, as text: by law, then overall; ``note`` says how it was averaged."""

    model: str
    table: int
    accuracies: tuple[float | None, ...]
    overall: float
    overall_db: float
    note: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found beside the numbers.

    Attributes:
        protocol: how they were made, by label.
        verdicts: the count of each verdict on either side.
        open_rows: questions without a yes or no.
        paper_source: where the paper's rows are from; empty where the report says nothing of them.
        paper_title: base, judge and level in the paper's words.
        paper_notes: why there are none, or what to know when comparing.
        rows: the paper's, as ``report.json`` has them.
    """

    protocol: Mapping[str, str]
    verdicts: tuple[tuple[str, int, int], ...]
    open_rows: tuple[OpenRow, ...]
    paper_source: str
    paper_title: str
    paper_notes: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]

    @property
    def has_unknown_averaging(self) -> bool:
        """True if it is not known how the laws of one of the rows were averaged, whose label then has a star."""
        return any(row["law_aggregation"] == Aggregation.UNKNOWN.value for row in self.rows)

    def paper_rows(self, laws: Sequence[str]) -> list[PaperRow]:
        """Returns the rows as they are shown, with the accuracies of ``laws`` in this order."""
        return [
            PaperRow(
                model=str(row["model"]),
                table=int(row["table"]),
                accuracies=tuple(accuracy_of_law(row, law) for law in laws),
                overall=float(row["overall"]),
                overall_db=float(row["overall_consistency_db"]),
                note=f"laws {row['law_aggregation']}; overall {row['overall_aggregation']}",
            )
            for row in self.rows
        ]

    def bars_of_law(self, law: str) -> list[BarValue]:
        """Returns the paper's accuracies of a law."""
        found = [(row, accuracy_of_law(row, law)) for row in self.rows]
        return [BarValue("paper", _label(row, "law_aggregation"), value) for row, value in found if value is not None]

    def bars_overall(self, aggregation: Aggregation) -> list[BarValue]:
        """Returns the paper's overall accuracies that were averaged so."""
        rows = [row for row in self.rows if row["overall_aggregation"] == aggregation.value]
        return [BarValue("paper", f"paper: {row['model']}", float(row["overall"])) for row in rows]


def evidence_of(report: EvalReport) -> Evidence:
    """Returns what a report's folder tells beside its numbers; all of it may be empty."""
    record = read_evidence(report.folder)
    published: Mapping[str, Any] = record.get("published", {})
    named = [str(published[key]) for key in ("base", "judge", "level") if published.get(key)]
    return Evidence(
        protocol=_protocol(record),
        verdicts=_verdicts(record.get("verdicts", {})),
        open_rows=_open_rows(record.get("open_questions", {})),
        paper_source=str(published.get("source", "")),
        paper_title=", ".join(named),
        paper_notes=tuple(published.get("notes", ())),
        rows=tuple(published.get("rows", ())),
    )


def _label(row: Mapping[str, Any], aggregation: str) -> str:
    is_known = row[aggregation] != Aggregation.UNKNOWN.value
    return f"paper: {row['model']}" if is_known else f"paper: {row['model']} *"


def _protocol(record: Mapping[str, Any]) -> dict[str, str]:
    judge: Mapping[str, str] = record.get("judge", {})
    settings: Mapping[str, object] = record.get("settings", {})
    asked = {"judge": judge.get("id"), "protocol": judge.get("protocol"), "metrics": record.get("measures")}
    made = {label: settings.get(key) for key, label in _SETTINGS.items()}
    return {label: _words(value) for label, value in (asked | made).items() if value is not None}


def _words(value: object) -> str:
    return ", ".join(str(each) for each in value) if isinstance(value, list) else str(value)


def _verdicts(counts: Mapping[str, Mapping[str, int]]) -> tuple[tuple[str, int, int], ...]:
    kinds = dict.fromkeys(kind for side in _SIDES for kind in counts.get(side, {}))
    base, tuned = ({kind: int(counts.get(side, {}).get(kind, 0)) for kind in kinds} for side in _SIDES)
    return tuple((kind, base[kind], tuned[kind]) for kind in kinds if base[kind] or tuned[kind])


def _open_rows(told: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[OpenRow, ...]:
    counts = {
        side: {(str(each["verdict"]), str(each["reason"])): int(each["count"]) for each in told.get(side, ())}
        for side in _SIDES
    }
    reasons = dict.fromkeys(reason for side in _SIDES for reason in counts[side])
    return tuple(
        OpenRow(verdict, reason, *(counts[side].get((verdict, reason), 0) for side in _SIDES))
        for verdict, reason in reasons
    )
