"""What a sweep tries next, and when it stops a trial."""

import json
import math
import sys
from pathlib import Path

import pytest

from physedit.launch.hyperband import Hyperband
from physedit.launch.plan import LaunchError
from physedit.launch.sweep_file import Choice, Metric, Real, SweepFile, Whole
from physedit.launch.sweep_search import Outcome, next_parameters, num_trials

SPACES = {
    "a": Choice(("x", [1, 2], None), (0.5, 0.5, 0.0)),
    "b": Whole(2, 4),
    "c": Real(1e-5, 1e-1, is_log=True),
    "d": Real(0.0, 1.0, step=0.25),
    "e": Real(-1.0, 1.0),
}


def sweep_of(method: str, spaces=SPACES, run_cap: int | None = None) -> SweepFile:
    return SweepFile(
        path=Path("s.yaml"), name="s", method=method, metric=Metric("m", "maximize"), parameters=spaces, command=(),
        program=None, early_stop=None, run_cap=run_cap,
    )  # fmt: skip


def test_a_grid_has_every_combination_once_the_last_setting_fastest():
    sweep = sweep_of("grid", {"a": Choice((1, 2)), "b": Whole(5, 6), "c": Choice((9,))})
    assert num_trials(sweep, None) == 4
    assert num_trials(sweep, 3) == 3
    found = [tuple(next_parameters(sweep, number, 0, ()).values()) for number in range(4)]
    assert found == [(1, 5, 9), (1, 6, 9), (2, 5, 9), (2, 6, 9)]


def test_a_random_trial_depends_on_seed_and_number_alone_and_lies_in_its_range():
    sweep = sweep_of("random", run_cap=200)
    assert num_trials(sweep, None) == 200
    drawn = [next_parameters(sweep, number, 7, ()) for number in range(200)]
    assert drawn[11] == next_parameters(sweep, 11, 7, [Outcome(drawn[0], (1.0,))])
    assert drawn[11] != next_parameters(sweep, 11, 8, ())
    assert {str(each["a"]) for each in drawn} == {"x", "[1, 2]"}  # null has no share
    assert {each["b"] for each in drawn} == {2, 3, 4}
    assert {each["d"] for each in drawn} == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert all(1e-5 <= float(str(each["c"])) <= 1e-1 and -1 <= float(str(each["e"])) <= 1 for each in drawn)
    below = sum(float(str(each["c"])) < 1e-3 for each in drawn)
    assert 70 < below < 130  # evenly by logarithm: half of them, within four standard deviations


def test_a_grid_of_any_size_is_cut_or_refused_without_being_made():
    sweep = sweep_of("grid", {"b": Whole(1, 10**30), "a": Choice(("x", "y"))})
    with pytest.raises(LaunchError, match="--count N"):
        num_trials(sweep, None)
    assert num_trials(sweep, 3) == 3
    assert [tuple(next_parameters(sweep, number, 0, ()).values()) for number in range(3)] == [
        (1, "x"), (1, "y"), (2, "x")
    ]  # fmt: skip
    with pytest.raises(LaunchError, match="10000000 trials"):
        num_trials(sweep_of("random"), 10_000_000)


def test_bayes_is_repeatable_and_goes_where_values_were_good():
    pytest.importorskip("optuna")
    spaces = {"x": Real(0.0, 1.0), "k": Choice(("good", "bad"))}
    sweep = sweep_of("bayes", spaces)

    def values(parameters) -> tuple[float, ...]:
        return (1.0 - abs(parameters["x"] - 0.8) - (parameters["k"] == "bad"),)

    past: list[Outcome] = []
    for number in range(40):
        parameters = next_parameters(sweep, number, 0, past)
        assert parameters == next_parameters(sweep, number, 0, past)
        past.append(Outcome(parameters, () if number == 3 else values(parameters), was_stopped=number == 4))
    late = [outcome.parameters for outcome in past[25:]]
    assert sum(each["k"] == "good" for each in late) > 10
    assert sum(math.isclose(float(str(each["x"])), 0.8, abs_tol=0.2) for each in late) > 10
    written = [Outcome(json.loads(json.dumps(each.parameters)), each.values, each.was_stopped) for each in past]
    assert next_parameters(sweep, 40, 0, written) == next_parameters(sweep, 40, 0, past)


def test_bayes_without_optuna_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(LaunchError, match=r"pip install 'physedit\[sweeps\]'"):
        next_parameters(sweep_of("bayes"), 0, 0, ())


def test_brackets_are_those_of_wandbs_block():
    read = Hyperband.from_mapping
    assert read({"type": "hyperband", "min_iter": 3}).brackets[:4] == (3, 9, 27, 81)
    assert read({"type": "hyperband", "min_iter": 2, "eta": 2}).brackets[:3] == (2, 4, 8)
    assert read({"type": "hyperband", "max_iter": 27, "s": 2}).brackets == (3, 9)
    assert read({"type": "hyperband", "max_iter": 27, "s": 10**8}).brackets == (1, 3, 9)
    assert len(read({"type": "hyperband", "min_iter": 10**9, "eta": 1.01}).brackets) < 2000
    for wrong in ({"eta": 1.0000001}, {"eta": 1e300}, {"eta": float("nan")}, {"min_iter": 10**400}):
        with pytest.raises(LaunchError, match="early_terminate"):
            read({"type": "hyperband", "min_iter": 3, **wrong})
    for block in ({"min_iter": 3, "max_iter": 9}, {"max_iter": 9}, {"min_iter": 0}, {"min_iter": 3, "strict": True}):
        with pytest.raises(LaunchError, match="early_terminate"):
            read({"type": "hyperband", **block})


def test_a_trial_goes_on_among_the_best_share_at_its_bracket():
    rule = Hyperband((2, 4), eta=2.0)
    others = [[0.1, 0.5, 0.9], [0.1, 0.3], [0.9]]  # the last has not come as far as the bracket
    assert not rule.stops([0.0], others, maximize=True)  # before the first bracket
    assert rule.stops([0.1, 0.2], others, maximize=True)
    assert rule.stops([0.1, 0.4], [[0.1, 0.5], [0.1, 0.45]], maximize=True)  # the best two of three go on
    assert not rule.stops([0.1, 0.4], others, maximize=True)
    assert not rule.stops([0.1, 0.3], others, maximize=True)  # as good as the last that goes on
    assert not rule.stops([0.4, 0.2, 0.1], others, maximize=True)  # its best value counts, up to the bracket
    assert not rule.stops([0.1, 0.2], [], maximize=True)  # the first has nothing to be compared with
    assert rule.stops([0.9, 0.8], [[0.1, 0.5]], maximize=False)
