import json
from pathlib import Path

import pytest

from physedit.eval_hooks.agreement import (
    NotTheSameQuestions,
    agreement_of,
    cohens_kappa,
    repeatability_of,
    write_agreement,
)

Rows = list[dict[str, object]]


def rows(verdicts: str, laws: str | None = None) -> Rows:
    """A line for each letter: y, n, u (unparsed), - (unscored); ``laws`` names theirs by letter."""
    words = {"y": "yes", "n": "no", "u": "unparsed", "-": "unscored"}
    return [
        {"index": i, "number": 0, "law": law, "question": f"q{i}", "verdict": words[letter], "output_sha256": f"h{i}"}
        for i, (letter, law) in enumerate(zip(verdicts, laws or "A" * len(verdicts), strict=True))
    ]


def test_kappa_of_a_worked_example() -> None:
    # 50 pairs: 20 both yes, 15 both no, 5 and 10 apart: p_o 0.7, p_e 0.5, kappa 0.4.
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohens_kappa(pairs) == pytest.approx(0.4)


def test_kappa_is_1_for_equal_labels_and_absent_where_chance_explains_all() -> None:
    assert cohens_kappa([("y", "y"), ("n", "n")]) == 1.0
    assert cohens_kappa([("y", "n"), ("n", "y")]) == -1.0
    assert cohens_kappa([("y", "y")] * 3) is None
    assert cohens_kappa([]) is None


def test_two_judges_are_compared_where_both_answered() -> None:
    report = agreement_of(rows("yynnu-", "AABBAB"), rows("ynnnyu", "AABBAB"))
    overall = report.overall
    assert (overall.num_questions, overall.num_answered, overall.num_equal) == (6, 4, 3)
    assert overall.num_unanswered == (2, 1)
    assert overall.share == 0.75
    assert overall.kappa == pytest.approx(0.5)
    assert report.by_law["A"].share == 0.5
    assert report.by_law["B"].share == 1.0
    assert report.by_law["B"].kappa is None


def test_questions_of_one_side_are_left_out_and_counted() -> None:
    report = agreement_of(rows("yyn"), rows("yy"))
    assert (report.num_left_out, report.overall.num_questions) == (1, 2)


@pytest.mark.parametrize(("key", "word"), [("question", "another question"), ("output_sha256", "another picture")])
def test_other_questions_and_other_pictures_are_no_disagreement(key: str, word: str) -> None:
    others = rows("yy")
    others[1][key] = "else"
    with pytest.raises(NotTheSameQuestions, match=word):
        agreement_of(rows("yy"), others)


def test_a_question_twice_and_nothing_in_common_are_refused() -> None:
    with pytest.raises(NotTheSameQuestions, match="twice"):
        agreement_of(rows("y") * 2, rows("y"))
    with pytest.raises(NotTheSameQuestions, match="no question in common"):
        agreement_of(rows("y"), [])


def test_a_judge_with_itself_over_three_repeats() -> None:
    report = repeatability_of([rows("yyn", "AAB"), rows("ynn", "AAB"), rows("yuu", "AAB")])
    overall = report.overall
    assert (report.num_repeats, overall.num_questions, overall.num_unanswered) == (3, 3, 2)
    assert (overall.num_pairs, overall.share) == (3 + 1 + 1, 4 / 5)
    assert (overall.num_always_answered, overall.share_always_equal) == (1, 1.0)
    assert report.by_law["B"].share == 1.0
    assert report.by_law["B"].share_always_equal is None


def test_one_repeat_says_nothing() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        repeatability_of([rows("y")])


def test_the_file_holds_both(tmp_path: Path) -> None:
    path = write_agreement(
        tmp_path,
        judges=["a", "b"],
        repeats=repeatability_of([rows("yn"), rows("yy")]),
        between=agreement_of(rows("yn"), rows("yy")),
    )
    found = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "agreement.json"
    assert found["judges"] == ["a", "b"]
    assert found["with_itself"]["overall"]["share"] == 0.5
    assert found["between_judges"]["overall"]["num_unanswered"] == [0, 0]
    assert found["between_judges"]["by_law"]["A"]["kappa"] == 0.0
