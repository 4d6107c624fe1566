import pytest

from physedit.eval_hooks.metrics.accuracy import Accuracy, ItemAccuracy
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord


def _record(index: int, *corrects: bool | None, kind: str | None = None) -> ItemRecord:
    answers = tuple(
        Answer(n, "?", "Yes", kind, "unparsed" if correct is None else "yes", correct, "", "")
        for n, correct in enumerate(corrects)
    )
    return ItemRecord(index, "Optics", "Reflection", "add", "superficial", answers, None, has_edit_area=False)


def test_accuracy_weighs_questions_and_item_accuracy_weighs_items() -> None:
    records = [_record(0, True), _record(1, True, False, False, False)]
    assert Accuracy().score(records).value == pytest.approx(2 / 5)
    assert ItemAccuracy().score(records).value == pytest.approx((1 + 1 / 4) / 2)


def test_unanswered_questions_are_neither_right_nor_wrong() -> None:
    records = [_record(0, True, None), _record(1, None, None), _record(2, False)]
    score = Accuracy().score(records)
    assert (score.value, score.n) == (0.5, 2)
    assert ItemAccuracy().score(records).value == 0.5


def test_no_answers_give_no_value() -> None:
    score = Accuracy().score([_record(0, None)])
    assert (score.value, score.standard_error, score.n) == (None, None, 0)


def test_kind_selects_questions() -> None:
    records = [_record(0, True, True, kind="physics"), _record(1, False, kind="semantic")]
    assert Accuracy(kind="physics").score(records).value == 1.0
    assert Accuracy(kind="semantic").score(records).value == 0.0
    assert Accuracy().score(records).value == pytest.approx(2 / 3)


def test_standard_error_of_one_question_per_item_is_that_of_the_mean() -> None:
    records = [_record(index, index < 3) for index in range(10)]
    expected = (0.3 * 0.7 * 10 / 9 / 10) ** 0.5
    assert Accuracy().score(records).standard_error == pytest.approx(expected)
