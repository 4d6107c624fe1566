"""The paired tests: known values, and how often they cry wolf."""

import numpy as np
import pytest

from physedit.eval_hooks.comparing.runs import read_run
from physedit.eval_hooks.comparing.tests import (
    ALL_FLIPS_UP_TO,
    NUM_FLIPS,
    holm_corrected,
    mcnemar_p,
    pair_tests,
    records_of,
    sign_flip_p,
)
from physedit.eval_hooks.metrics.metric import Tally


def tallies(values) -> list[Tally]:
    return [Tally(float(value), 3.0) for value in values]


def test_holm_is_the_textbooks_step_down() -> None:
    assert holm_corrected([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_corrected([0.5, 0.9]) == [1.0, 1.0]
    assert holm_corrected([]) == []


def test_mcnemar_is_the_exact_binomial() -> None:
    assert mcnemar_p(10, 2) == pytest.approx(2 * (1 + 12 + 66) / 4096)
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(3, 3) == 1.0


@pytest.mark.parametrize("n", [1, 5, ALL_FLIPS_UP_TO])
def test_few_items_that_all_went_one_way_have_the_exact_p(n: int) -> None:
    assert sign_flip_p(tallies([0] * n), tallies([1] * n)) == 2 / 2**n


def test_items_that_do_not_differ_add_nothing() -> None:
    assert sign_flip_p(tallies([0, 2, 2, 1]), tallies([1, 2, 2, 1])) == 1.0
    assert sign_flip_p(tallies([1, 2]), tallies([1, 2])) == 1.0


def test_sampled_flips_come_near_the_exact_p() -> None:
    apart = np.random.default_rng(0).normal(0.4, 1, size=16)
    signs = 2 * ((np.arange(2**16)[:, None] >> np.arange(16)) & 1) - 1
    exact = np.mean(np.abs(signs @ apart) >= abs(apart.sum()) * (1 - 1e-12))
    sampled = sign_flip_p(tallies([0] * 16), tallies(apart))
    assert sampled == pytest.approx(exact, abs=4 * (exact * (1 - exact) / NUM_FLIPS) ** 0.5)  # four standard errors


def test_a_sampled_p_is_never_zero() -> None:
    assert sign_flip_p(tallies([0] * 40), tallies([1] * 40)) == 1 / (NUM_FLIPS + 1)


def test_equal_runs_are_called_different_no_more_often_than_the_level() -> None:
    generator = np.random.default_rng(1)
    values = []
    for _ in range(300):
        before, after = generator.integers(0, 4, size=(2, 11))
        values.append(sign_flip_p(tallies(before), tallies(after)))
    assert sum(p < 0.05 for p in values) <= 25  # 300 * 0.05 and nearly three standard errors


def test_two_runs_are_tested_on_the_items_that_both_answered(folders) -> None:
    records = {path.name: dict(records_of(path / "eval" / "picabench" / "step_00000400")) for path in folders}
    del records["even"][0]
    (test, psnr) = pair_tests("picabench", "picabench-2", records, ["picabench/acc", "picabench/psnr"])
    assert (test.first, test.second, test.n) == ("even", "all", 11)
    assert test.difference == pytest.approx(6 / 22)  # of two questions each, that about red on six odd items
    assert (test.gained, test.lost) == (6, 0)
    assert test.p == 2 / 2**6
    assert test.p_mcnemar == 2 / 2**6
    assert test.ci95 is not None
    assert test.ci95[0] < test.difference < test.ci95[1]
    assert psnr.gained is None


def test_a_run_against_its_copy_does_not_differ(folders) -> None:
    records = records_of(folders[0] / "eval" / "picabench" / "step_00000400")
    (test,) = pair_tests("picabench", "picabench-2", {"one": records, "two": records}, ["picabench/acc"])
    assert (test.difference, test.ci95, test.p) == (0.0, (0.0, 0.0), 1.0)


def test_measures_that_are_not_known_give_no_tests(folders) -> None:
    records = records_of(folders[0] / "eval" / "picabench" / "step_00000400")
    assert pair_tests("picabench", "others-1", {"one": records, "two": records}, ["picabench/acc"]) == []
    assert read_run(folders[0]).evaluations["picabench"].measures == "picabench-2"
