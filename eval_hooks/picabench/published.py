"""The paper's own rows, to stand beside a run's numbers where base, judge and level are the same.

Source: PICABench, arXiv 2510.17681v3, Tables 1 and 3 to 8 (Table 2 repeats rows of them), held by ``published.json``.
How a printed number was averaged is not said there. What stands here was worked out from the numbers: an accuracy of a
law that is a whole number of right answers over the benchmark's questions of that law is per question.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import Any

from physedit.eval_hooks.picabench.names import LAWS, law_name

NUM_ITEMS, NUM_QUESTIONS = 900, 4112
"""Of the whole benchmark."""
QUESTIONS_OF_LAW: Mapping[str, int] = dict(zip(LAWS, (413, 371, 593, 228, 409, 711, 906, 481), strict=True))
"""What the printed accuracies of a law are whole numbers of right answers over."""

_BASE_OF_WEIGHTS = {
    "black-forest-labs/FLUX.1-Kontext-dev": "FLUX.1-Kontext",
    "Qwen/Qwen-Image-Edit": "Qwen-Image-Edit",
}
_GPT5 = re.compile(r"gpt-5(-\d{4}-\d{2}-\d{2})?")
_NAME_OF_QWEN = "qwen2.5-vl-72b-instruct"
_TABLES_OF_QUESTIONS = frozenset({4, 5, 6, 7, 8})
_NOT_WHOLE_NUMBERS = "Qwen-Image-Edit + PICA-100K SFT"
_PER_ITEM_IN_EVERY_TABLE = frozenset({"Nano Banana Pro", "GPT-Image-1.5", _NOT_WHOLE_NUMBERS})


class Aggregation(StrEnum):
    """How a printed accuracy was averaged, as far as the numbers tell."""

    PER_QUESTION = "per question"
    """Every question weighs the same (micro): compare with ``acc``."""
    PER_ITEM = "per item, by inference"
    """No weighting of the laws gives it; the published script's mean over items fits: compare with ``acc_item``."""
    UNKNOWN = "not known"
    """No whole number of right answers gives it."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A model's row of one of the paper's tables.

    Attributes:
        model: as printed.
        base: the editor that was fine-tuned or is evaluated as it is; None for models that are no base here.
        trained_on: the data that the base was fine-tuned on; None for a model as it was released.
        table, level, judge: where it stands.
        accuracy: of each law by display name, 0 to 1.
        overall: over all laws, 0 to 1.
        law_aggregation, overall_aggregation: how they were averaged.
        consistency_db: PSNR outside the edit by law; that of the same table's level where only accuracies are printed.
        overall_consistency_db: over all laws.
    """

    model: str
    base: str | None
    trained_on: str | None
    table: int
    level: str
    judge: str
    accuracy: Mapping[str, float]
    overall: float
    law_aggregation: Aggregation
    overall_aggregation: Aggregation
    consistency_db: Mapping[str, float]
    overall_consistency_db: float


@dataclass(frozen=True, slots=True)
class Placement:
    """What the paper has to stand beside an evaluation.

    Attributes:
        base, judge, level: of the evaluation in the paper's words; None where the paper has none such.
        rows: of that base, judge and level; empty if any of them is not the paper's.
        notes: why there are none, or what to know when comparing.
    """

    base: str | None
    judge: str | None
    level: str | None
    rows: tuple[PublishedRow, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What an evaluation was of.

    Attributes:
        weights: of the editor, as its config names them; None if not known.
        judge_id: who answered.
        protocol: ``official`` or ``strict``.
        level: of the instructions; None if not known.
        num_items, num_questions: how many were used.
    """

    weights: str | None
    judge_id: str
    protocol: str
    level: str | None
    num_items: int
    num_questions: int


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Returns every row, in the order of the tables."""
    text = resources.files("physedit.eval_hooks.picabench").joinpath("published.json").read_text(encoding="utf-8")
    record: dict[str, Any] = json.loads(text)
    assert tuple(record["laws"]) == LAWS
    rows = [_row(table, row) for table in record["tables"] for row in table["rows"]]
    printed = {(row.level, row.model): row for row in rows if row.consistency_db}
    return tuple(row if row.consistency_db else _with_consistency(row, printed[row.level, row.model]) for row in rows)


def published_source() -> str:
    """Returns which version of the paper the rows are from."""
    text = resources.files("physedit.eval_hooks.picabench").joinpath("published.json").read_text(encoding="utf-8")
    return str(json.loads(text)["source"])


def rows_beside(base: str, judge: str, level: str) -> tuple[PublishedRow, ...]:
    """Returns the rows of a base and of what was fine-tuned from it, by one judge at one level; none if there are none.

    Args:
        base: ``FLUX.1-Kontext`` or ``Qwen-Image-Edit``.
        judge: ``GPT-5`` or ``Qwen2.5-VL-72B``.
        level: ``superficial``, ``intermediate`` or ``explicit``.
    """
    return tuple(row for row in published_rows() if (row.base, row.judge, row.level) == (base, judge, level))


def base_of_weights(weights: str) -> str | None:
    """Returns the paper's name of the base whose released weights these are, by a hub id or the name of a folder.

    Later releases of Qwen-Image-Edit (2509, 2511) are none of the paper's.
    """
    name = weights.partition("@")[0]
    parts = PurePath(name).parts
    for hub_id, base in _BASE_OF_WEIGHTS.items():
        owner, _, model = hub_id.partition("/")
        if name == hub_id or (parts and parts[-1] == model) or f"models--{owner}--{model}" in parts:
            return base
    return None


def judge_of_id(judge_id: str) -> str | None:
    """Returns the paper's name of a judge, None if it is none of the paper's; smaller or quantised models are not."""
    model = judge_id.partition("@")[0].rstrip("/").rpartition("/")[2].lower()
    if _GPT5.fullmatch(model):
        return "GPT-5"
    return "Qwen2.5-VL-72B" if model == _NAME_OF_QWEN else None


def place(evaluated: Evaluated) -> Placement:
    """Returns the paper's rows of the same base, judge and level, or none and why."""
    base = None if evaluated.weights is None else base_of_weights(evaluated.weights)
    judge = judge_of_id(evaluated.judge_id)
    level = evaluated.level if evaluated.level in {row.level for row in published_rows()} else None
    if base is None or judge is None or level is None:
        return Placement(base, judge, level, (), (_why_none(evaluated, base, judge),))
    return Placement(base, judge, level, rows_beside(base, judge, level), tuple(_cautions(evaluated)))


def placement_record(placement: Placement) -> dict[str, object]:
    """Returns a placement as ``report.json`` holds it, with the source of its rows."""
    return {
        "source": published_source(),
        "base": placement.base,
        "judge": placement.judge,
        "level": placement.level,
        "rows": [_row_record(row) for row in placement.rows],
        "notes": list(placement.notes),
    }


def accuracy_of_law(row: Mapping[str, Any], law: str | None) -> float | None:
    """Returns the accuracy of a row of ``placement_record``: of a law in any spelling, or overall for None."""
    value = row["overall"] if law is None else row["accuracy"].get(law_name(law))
    return None if value is None else float(value)


def _row(table: Mapping[str, Any], row: Mapping[str, Any]) -> PublishedRow:
    accuracy = [round(value / 100, 4) for value in row["accuracy"]]
    consistency: Sequence[float] = row["consistency_db"] or ()
    model, number = row["model"], int(table["table"])
    is_micro = number in _TABLES_OF_QUESTIONS and model not in _PER_ITEM_IN_EVERY_TABLE
    return PublishedRow(
        model=model,
        base=row["base"],
        trained_on=row["trained_on"],
        table=number,
        level=table["level"],
        judge=table["judge"],
        accuracy=dict(zip(LAWS, accuracy, strict=False)),
        overall=accuracy[-1],
        law_aggregation=Aggregation.UNKNOWN if model == _NOT_WHOLE_NUMBERS else Aggregation.PER_QUESTION,
        overall_aggregation=Aggregation.PER_QUESTION if is_micro else Aggregation.PER_ITEM,
        consistency_db=dict(zip(LAWS, consistency, strict=False)),
        overall_consistency_db=consistency[-1] if consistency else 0.0,
    )


def _with_consistency(row: PublishedRow, printed: PublishedRow) -> PublishedRow:
    """The PSNR does not depend on the judge: the tables of the second judge print accuracies alone."""
    return replace(row, consistency_db=printed.consistency_db, overall_consistency_db=printed.overall_consistency_db)


def _why_none(evaluated: Evaluated, base: str | None, judge: str | None) -> str:
    if judge is None:
        reason = (
            "it has none by this judge: its judges are GPT-5 and Qwen2.5-VL-72B, whose own overall numbers are 7 to 13 "
            "points apart"
        )
    elif base is None:
        named = "whose weights are not named" if evaluated.weights is None else f"from the weights {evaluated.weights}"
        reason = f"it has none of an editor {named}: its bases are FLUX.1-Kontext-dev and the first Qwen-Image-Edit"
    else:
        reason = f"it has none at the level {evaluated.level}"
    return f"No row of the paper stands beside these numbers: {reason}."


def _cautions(evaluated: Evaluated) -> list[str]:
    notes = [
        "The paper's accuracies of a law are per question (compare with acc); its overall ones are per question or per "
        "item, as each row says (compare with acc or acc_item). It does not say whether its PSNR is of native pictures "
        "or at 512, nor with which seeds it edited."
    ]
    if evaluated.protocol != "official":
        notes.append("The paper's judge was asked by the published script; here by the strict protocol.")
    if (evaluated.num_items, evaluated.num_questions) != (NUM_ITEMS, NUM_QUESTIONS):
        notes.append(
            f"The paper's numbers are over {NUM_ITEMS} items and {NUM_QUESTIONS:,} questions, these over "
            f"{evaluated.num_items} and {evaluated.num_questions:,}."
        )
    return notes


def _row_record(row: PublishedRow) -> dict[str, object]:
    return {
        "model": row.model,
        "base": row.base,
        "trained_on": row.trained_on,
        "table": row.table,
        "accuracy": dict(row.accuracy),
        "overall": row.overall,
        "law_aggregation": row.law_aggregation.value,
        "overall_aggregation": row.overall_aggregation.value,
        "consistency_db": dict(row.consistency_db),
        "overall_consistency_db": row.overall_consistency_db,
    }
