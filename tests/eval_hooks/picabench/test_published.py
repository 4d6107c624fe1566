"""The paper's rows, held by what they say about themselves."""

import math

import pytest

from physedit.eval_hooks.picabench.names import LAWS
from physedit.eval_hooks.picabench.published import (
    NUM_QUESTIONS,
    QUESTIONS_OF_LAW,
    Aggregation,
    Evaluated,
    PublishedRow,
    base_of_weights,
    judge_of_id,
    place,
    placement_record,
    published_rows,
    rows_beside,
)

GPT5 = "gpt-5@https://api.openai.com/v1 responses official-gpt-1-0123456789ab"
KONTEXT = "black-forest-labs/FLUX.1-Kontext-dev@af58063aa431f4d2bbc11ae46f57451d4416a170"
ROUNDING = 0.00005001
"""Half of the last printed digit of a percentage, as a share."""


def num_right(row: PublishedRow) -> list[int] | None:
    """Returns the right answers of each law, None if no whole numbers give the printed accuracies."""
    counts = [round(row.accuracy[law] * QUESTIONS_OF_LAW[law]) for law in LAWS]
    fits = (abs(n / QUESTIONS_OF_LAW[law] - row.accuracy[law]) <= ROUNDING for law, n in zip(LAWS, counts, strict=True))
    return counts if all(fits) else None


def test_every_row_has_every_law_and_both_columns() -> None:
    rows = published_rows()
    assert len(rows) == 6 * 16 + 1
    assert len({(row.table, row.model) for row in rows}) == len(rows)
    assert all(tuple(row.accuracy) == tuple(row.consistency_db) == LAWS for row in rows)
    assert all(0.15 < value < 0.9 for row in rows for value in (*row.accuracy.values(), row.overall))
    assert all(8 < value < 41 for row in rows for value in (*row.consistency_db.values(), row.overall_consistency_db))


def test_accuracies_of_a_law_are_whole_numbers_of_right_answers_where_that_is_said() -> None:
    assert sum(QUESTIONS_OF_LAW.values()) == NUM_QUESTIONS
    rows = [row for row in published_rows() if row.model != "GPT-Image-1.5"]  # lacks a few answers
    for row in rows:
        is_whole = num_right(row) is not None
        assert is_whole == (row.law_aggregation is Aggregation.PER_QUESTION), (row.table, row.model)


def test_overall_accuracies_are_per_question_just_where_that_is_said() -> None:
    checked = 0
    for row in published_rows():
        counts = num_right(row)
        if counts is None:
            continue
        is_micro = abs(sum(counts) / NUM_QUESTIONS - row.overall) <= ROUNDING
        assert is_micro == (row.overall_aggregation is Aggregation.PER_QUESTION), (row.table, row.model)
        checked += is_micro
    assert checked == 65


def test_changes_are_those_the_paper_prints() -> None:
    base, tuned, mira = rows_beside("FLUX.1-Kontext", "GPT-5", "superficial")
    assert (base.trained_on, tuned.trained_on, mira.trained_on) == (None, "PICA-100K", "MIRA400K")
    assert [round(100 * (tuned.accuracy[law] - base.accuracy[law]), 2) for law in LAWS] == [
        2.42, 1.08, 5.57, 0.0, 1.47, 2.95, -1.77, 1.66,
    ]  # fmt: skip
    assert round(100 * (tuned.overall - base.overall), 2) == 1.71
    assert round(tuned.overall_consistency_db - base.overall_consistency_db, 2) == 0.66
    base, tuned = rows_beside("Qwen-Image-Edit", "GPT-5", "superficial")
    assert [round(100 * (tuned.accuracy[law] - base.accuracy[law]), 2) for law in LAWS] == [
        -1.65, 7.07, 8.30, 0.75, 8.85, 5.24, -1.79, 4.77,
    ]  # fmt: skip
    assert math.isclose(tuned.overall - base.overall, 0.0384)
    assert round(tuned.overall_consistency_db - base.overall_consistency_db, 2) == 2.48


def test_the_second_judges_rows_have_the_consistency_of_their_level() -> None:
    (first, *_), (second, *_) = (rows_beside("Qwen-Image-Edit", j, "explicit") for j in ("GPT-5", "Qwen2.5-VL-72B"))
    assert (first.table, second.table) == (6, 8)
    assert first.consistency_db == second.consistency_db
    assert (first.overall, second.overall) == (0.6802, 0.57)


def test_the_papers_judges_are_as_far_apart_as_is_said() -> None:
    overall = {(row.judge, row.level, row.model): row.overall for row in published_rows()}
    apart = [
        100 * (value - overall["Qwen2.5-VL-72B", level, model])
        for (judge, level, model), value in overall.items()
        if judge == "GPT-5" and "MIRA" not in model
    ]
    assert (len(apart), round(min(apart)), round(max(apart))) == (48, 7, 13)
    note = place(Evaluated(KONTEXT, "gpt-4o@x", "official", "explicit", 900, 4112)).notes[0]
    assert "7 to 13 points apart" in note


@pytest.mark.parametrize(
    ("weights", "base"),
    [
        (KONTEXT, "FLUX.1-Kontext"),
        ("/models/FLUX.1-Kontext-dev", "FLUX.1-Kontext"),
        ("/hub/models--Qwen--Qwen-Image-Edit/snapshots/ac7f", "Qwen-Image-Edit"),
        ("Qwen/Qwen-Image-Edit", "Qwen-Image-Edit"),
        ("Qwen/Qwen-Image-Edit-2511@6f3c", None),
        ("toy", None),
        ("", None),
    ],
)
def test_a_base_is_known_by_the_name_of_its_weights(weights: str, base: str | None) -> None:
    assert base_of_weights(weights) == base


@pytest.mark.parametrize(
    ("judge_id", "judge"),
    [
        (GPT5, "GPT-5"),
        ("gpt-5-2025-08-07@https://api.openai.com/v1 responses", "GPT-5"),
        ("Qwen/Qwen2.5-VL-72B-Instruct@http://localhost:8000/v1 chat", "Qwen2.5-VL-72B"),
        ("/models/Qwen2.5-VL-72B-Instruct@http://localhost:8000/v1 chat", "Qwen2.5-VL-72B"),
        ("gpt-5-mini@https://api.openai.com/v1 responses", None),
        ("gpt-4o@https://api.openai.com/v1 responses", None),
        ("Qwen/Qwen2.5-VL-72B-Instruct-AWQ@http://localhost:8000/v1 chat", None),
        ("Qwen/Qwen2.5-VL-7B-Instruct local", None),
    ],
)
def test_a_judge_is_the_papers_only_if_it_is_the_same_model(judge_id: str, judge: str | None) -> None:
    assert judge_of_id(judge_id) == judge


def test_rows_stand_beside_an_evaluation_of_the_same_base_judge_and_level() -> None:
    placement = place(Evaluated(KONTEXT, GPT5, "official", "superficial", 900, 4112))
    assert [row.table for row in placement.rows] == [1, 1, 3]
    assert len(placement.notes) == 1
    record = placement_record(placement)
    assert record["base"] == "FLUX.1-Kontext"
    assert "2510.17681v3" in str(record["source"])


@pytest.mark.parametrize(
    ("weights", "judge_id", "level", "reason"),
    [
        (KONTEXT, "gpt-4o@https://api.openai.com/v1 responses", "superficial", "none by this judge"),
        ("toy", GPT5, "superficial", "from the weights toy"),
        (None, GPT5, "superficial", "whose weights are not named"),
        (KONTEXT, GPT5, "unknown", "none at the level unknown"),
    ],
)
def test_where_nothing_fits_no_row_is_placed_and_the_reason_is_said(
    weights: str | None, judge_id: str, level: str, reason: str
) -> None:
    placement = place(Evaluated(weights, judge_id, "official", level, 900, 4112))
    assert placement.rows == ()
    assert reason in placement.notes[0]


def test_a_part_of_the_benchmark_and_another_protocol_are_said() -> None:
    notes = place(Evaluated(KONTEXT, GPT5, "strict", "explicit", 160, 731)).notes
    assert "here by the strict protocol" in notes[1]
    assert "over 900 items and 4,112 questions, these over 160 and 731" in notes[2]
