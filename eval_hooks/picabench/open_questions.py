"""Which questions of a judged folder have no yes or no, and why."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from physedit.eval_hooks.files import read_json_lines
from physedit.eval_hooks.judges.judge import VerdictKind
from physedit.eval_hooks.picabench.judging import ITEMS_FILE

NUM_REASONS = 8
"""So many reasons are told one by one; errors may each have their own words."""
_REASON_OF_KIND = {
    VerdictKind.UNPARSED.value: "no yes or no can be read from the reply",
    VerdictKind.REFUSED.value: "the judge declined to answer",
}


@dataclass(frozen=True, slots=True)
class OpenQuestions:
    """Questions of one verdict that have one reason."""

    verdict: str
    reason: str
    count: int


def open_questions(folder: Path) -> tuple[OpenQuestions, ...]:
    """Returns the questions without a yes or no by verdict and reason, the most frequent first.

    Reasons beyond ``NUM_REASONS`` are counted together by verdict.
    """
    rows = read_json_lines(folder / ITEMS_FILE, ("verdict", "explanation"))
    answered = (VerdictKind.YES.value, VerdictKind.NO.value)
    counts = Counter((str(row["verdict"]), _reason(row)) for row in rows if row["verdict"] not in answered)
    ordered = counts.most_common()
    told = [OpenQuestions(verdict, reason, count) for (verdict, reason), count in ordered[:NUM_REASONS]]
    rest: Counter[str] = Counter()
    for (verdict, _), count in ordered[NUM_REASONS:]:
        rest[verdict] += count
    return (*told, *(OpenQuestions(verdict, "other reasons", count) for verdict, count in rest.items()))


def _reason(row: Mapping[str, object]) -> str:
    verdict = str(row["verdict"])
    return _REASON_OF_KIND.get(verdict) or str(row["explanation"]) or "not told"
