"""How far yes/no answers agree: a judge's with its own over repeats, or two judges' about the same pictures.

Rows are lines of ``items.jsonl``. Only a yes or no is an answer; what has none is counted apart, never as agreement.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from physedit.eval_hooks.files import write_json

AGREEMENT_FILE = "agreement.json"
ROW_KEYS = ("index", "number", "law", "question", "verdict", "output_sha256")
"""What a line must tell."""
_ANSWERS = ("yes", "no")

_Row = Mapping[str, object]


class NotTheSameQuestions(ValueError):
    """The two sides do not answer the same questions about the same pictures."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two answers to each of some questions.

    Attributes:
        num_questions: asked on both sides.
        num_answered: with a yes or no on both sides.
        num_equal: of those, with the same one.
        num_unanswered: of the first and of the second side.
        share: ``num_equal`` over ``num_answered``; None without any.
        kappa: Cohen's, None where it is not defined: no answers, or both sides give one and the same answer always.
    """

    num_questions: int
    num_answered: int
    num_equal: int
    num_unanswered: tuple[int, int]
    share: float | None
    kappa: float | None


@dataclass(frozen=True, slots=True)
class AgreementReport:
    """Agreement over all questions and by law; ``num_left_out`` questions are on one side only."""

    overall: Agreement
    by_law: Mapping[str, Agreement]
    num_left_out: int


@dataclass(frozen=True, slots=True)
class Repeatability:
    """Several answers of one judge to each of some questions.

    Attributes:
        num_questions: asked in every repeat.
        num_unanswered: answers without yes or no, of ``num_questions`` times the repeats.
        num_pairs: pairs of answers to one question.
        share: of those pairs, the share with equal answers; None without any.
        num_always_answered: questions with a yes or no in every repeat.
        share_always_equal: the share of those that got the same one each time; None without any.
    """

    num_questions: int
    num_unanswered: int
    num_pairs: int
    share: float | None
    num_always_answered: int
    share_always_equal: float | None


@dataclass(frozen=True, slots=True)
class RepeatabilityReport:
    """A judge's agreement with itself, over all questions and by law."""

    num_repeats: int
    overall: Repeatability
    by_law: Mapping[str, Repeatability]
    num_left_out: int


def agreement_of(rows_a: Sequence[_Row], rows_b: Sequence[_Row]) -> AgreementReport:
    """Returns how far two sides agree. Pure.

    Raises:
        NotTheSameQuestions: a question stands twice on a side, is another one, or is about another picture.
    """
    common, num_left_out = _matched((rows_a, rows_b))
    return AgreementReport(
        overall=_agreement(list(common.values())),
        by_law={law: _agreement(group) for law, group in _by_law(common).items()},
        num_left_out=num_left_out,
    )


def repeatability_of(repeats: Sequence[Sequence[_Row]]) -> RepeatabilityReport:
    """Returns how far a judge agrees with itself over two or more repeats. Pure.

    Raises:
        NotTheSameQuestions: as ``agreement_of``.
        ValueError: fewer than two repeats.
    """
    if len(repeats) < 2:
        raise ValueError(f"A judge's agreement with itself needs at least 2 repeats, found {len(repeats)}.")
    common, num_left_out = _matched(repeats)
    return RepeatabilityReport(
        num_repeats=len(repeats),
        overall=_repeatability(list(common.values())),
        by_law={law: _repeatability(group) for law, group in _by_law(common).items()},
        num_left_out=num_left_out,
    )


def cohens_kappa(answers: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Returns (p_o - p_e) / (1 - p_e) of pairs of labels; None where that is not defined. Pure.

    p_o is the share of equal pairs, p_e what two raters with these marginal frequencies would agree by chance.

    Source: J. Cohen, A coefficient of agreement for nominal scales, Educational and Psychological Measurement 20
    (1960), 37-46, equation 1.
    """
    n = len(answers)
    if n == 0:
        return None
    first, second = [a for a, _ in answers], [b for _, b in answers]
    by_chance = sum(first.count(label) * second.count(label) for label in {*first}) / n**2
    if by_chance == 1.0:
        return None
    return (sum(a == b for a, b in answers) / n - by_chance) / (1.0 - by_chance)


def write_agreement(
    folder: Path,
    *,
    judges: Sequence[str],
    repeats: RepeatabilityReport | None = None,
    between: AgreementReport | None = None,
) -> Path:
    """Writes ``agreement.json`` and returns its path.

    Args:
        folder: receives the file.
        judges: ids of the judge, or of both.
        repeats: the agreement of one judge with itself, if it was measured.
        between: the agreement of two judges, if it was measured.
    """
    path = folder / AGREEMENT_FILE
    content = {
        "judges": list(judges),
        "with_itself": None if repeats is None else asdict(repeats),
        "between_judges": None if between is None else asdict(between),
    }
    write_json(path, content)
    return path


def _matched(sides: Sequence[Sequence[_Row]]) -> tuple[dict[tuple[object, object], tuple[_Row, ...]], int]:
    """Returns the rows of every question that all sides have, and how many questions only some have."""
    by_place = [_by_place(rows) for rows in sides]
    places = {place for side in by_place for place in side}
    common = {place: tuple(side[place] for side in by_place) for place in by_place[0] if _in_all(place, by_place)}
    for place, rows in common.items():
        for key, what in (("question", "another question"), ("output_sha256", "another picture")):
            if len({row[key] for row in rows}) > 1:
                raise NotTheSameQuestions(
                    f"Item {place[0]}, question {place[1]} is {what} on one side: "
                    f"{' / '.join(str(row[key]) for row in rows)}. Judge the same folder on both sides."
                )
    if not common:
        raise NotTheSameQuestions("The sides have no question in common. Judge the same folder on both sides.")
    return common, len(places) - len(common)


def _in_all(place: tuple[object, object], sides: Sequence[Mapping[tuple[object, object], _Row]]) -> bool:
    return all(place in side for side in sides)


def _by_place(rows: Sequence[_Row]) -> dict[tuple[object, object], _Row]:
    found: dict[tuple[object, object], _Row] = {}
    for row in rows:
        place = row["index"], row["number"]
        if place in found:
            raise NotTheSameQuestions(f"Item {place[0]}, question {place[1]} stands twice on one side.")
        found[place] = row
    return found


def _by_law(common: Mapping[tuple[object, object], tuple[_Row, ...]]) -> dict[str, list[tuple[_Row, ...]]]:
    groups: dict[str, list[tuple[_Row, ...]]] = {}
    for rows in common.values():
        groups.setdefault(str(rows[0]["law"]), []).append(rows)
    return groups


def _agreement(pairs: Sequence[tuple[_Row, ...]]) -> Agreement:
    verdicts = [(str(a["verdict"]), str(b["verdict"])) for a, b in pairs]
    answered = [pair for pair in verdicts if pair[0] in _ANSWERS and pair[1] in _ANSWERS]
    num_equal = sum(a == b for a, b in answered)
    return Agreement(
        num_questions=len(verdicts),
        num_answered=len(answered),
        num_equal=num_equal,
        num_unanswered=(sum(a not in _ANSWERS for a, _ in verdicts), sum(b not in _ANSWERS for _, b in verdicts)),
        share=_share(num_equal, len(answered)),
        kappa=cohens_kappa(answered),
    )


def _repeatability(questions: Sequence[tuple[_Row, ...]]) -> Repeatability:
    answers = [[str(row["verdict"]) for row in rows if row["verdict"] in _ANSWERS] for rows in questions]
    pairs = [pair for given in answers for pair in combinations(given, 2)]
    always = [given for given, rows in zip(answers, questions, strict=True) if len(given) == len(rows)]
    return Repeatability(
        num_questions=len(questions),
        num_unanswered=sum(len(rows) for rows in questions) - sum(len(given) for given in answers),
        num_pairs=len(pairs),
        share=_share(sum(a == b for a, b in pairs), len(pairs)),
        num_always_answered=len(always),
        share_always_equal=_share(sum(len(set(given)) == 1 for given in always), len(always)),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
