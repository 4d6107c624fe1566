"""Which values the next trial of a sweep gets: a pure function of the file, a seed and the trials before it."""

import math
import random
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from physedit.launch.plan import LaunchError
from physedit.launch.sweep_file import Choice, Metric, Parameters, Real, Space, SweepFile, Whole

MOST_TRIALS = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial that has ended has to tell the search."""

    parameters: Parameters
    values: tuple[float, ...]
    """Of the metric, oldest first; empty if it logged none."""
    was_stopped: bool = False
    """By the rule of ``early_terminate``: its values are those of an unfinished run."""


def num_trials(sweep: SweepFile, count: int | None) -> int:
    """Returns how many trials there are: ``count``, else the file's ``run_cap``, and no more than a grid has.

    Raises:
        LaunchError: nothing says when a random or bayes search ends, or there are more than ``MOST_TRIALS``.
    """
    wanted = sweep.run_cap if count is None else count
    if sweep.method == "grid":
        size = math.prod(_grid_size(space) for space in sweep.parameters.values())
        return _refused_if_many(sweep, size if wanted is None else min(size, wanted))
    if wanted is None:
        raise LaunchError(f"{sweep.path}: method: {sweep.method} has no end. Give --count N, or run_cap in the file.")
    return _refused_if_many(sweep, wanted)


def next_parameters(sweep: SweepFile, number: int, seed: int, past: Sequence[Outcome]) -> Parameters:
    """Returns the values of trial ``number``, counted from 0.

    A grid runs through the values in the order of the file, the last setting fastest; a random trial depends on seed
    and number alone; ``past``, in the order of the trials, is read by bayes.

    Raises:
        LaunchError: bayes without optuna.
    """
    if sweep.method == "grid":
        chosen: dict[str, object] = {}
        for key, space in reversed(list(sweep.parameters.items())):
            number, place = divmod(number, _grid_size(space))
            chosen[key] = _grid_value(space, place)
        return {key: chosen[key] for key in sweep.parameters}
    if sweep.method == "random":
        source = random.Random(f"{seed}/{number}")  # text is hashed the same in every process
        return {key: _draw(space, source) for key, space in sweep.parameters.items()}
    assert sweep.metric is not None
    return _suggested(sweep, sweep.metric, seed + number, past)


def import_optuna() -> types.ModuleType:
    """Returns optuna, which bayes needs.

    Raises:
        LaunchError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise LaunchError(
            "method: bayes needs optuna, which is not installed: pip install 'physedit[sweeps]', or from a clone pip "
            "install -c constraints.txt -e '.[sweeps]'. Or use method: random."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _suggested(sweep: SweepFile, metric: Metric, seed: int, past: Sequence[Outcome]) -> Parameters:
    """Returns what TPE suggests after ``past``. The study is made anew each time, so a restart changes nothing."""
    optuna = import_optuna()
    distributions = {key: _distribution(optuna, space) for key, space in sweep.parameters.items()}
    with warnings.catch_warnings():
        # Lists as choices are compared by position alone here.
        warnings.simplefilter("ignore", UserWarning)
        study = optuna.create_study(direction=metric.goal, sampler=optuna.samplers.TPESampler(seed=seed))
        for outcome in past:
            study.add_trial(_as_trial(optuna, sweep, distributions, outcome))
        asked = study.ask(distributions).params
    return {key: _value(space, asked[key]) for key, space in sweep.parameters.items()}


def _as_trial(optuna: types.ModuleType, sweep: SweepFile, distributions: dict[str, Any], outcome: Outcome) -> Any:
    state = optuna.trial.TrialState
    kind = state.FAIL if not outcome.values else state.PRUNED if outcome.was_stopped else state.COMPLETE
    return optuna.trial.create_trial(
        state=kind,
        params={key: _index(space, outcome.parameters[key]) for key, space in sweep.parameters.items()},
        distributions=distributions,
        value=outcome.values[-1] if kind is state.COMPLETE else None,
        intermediate_values=dict(enumerate(outcome.values, start=1)),
    )


def _distribution(optuna: types.ModuleType, space: Space) -> Any:
    if isinstance(space, Choice):  # by position: choices may be lists
        return optuna.distributions.CategoricalDistribution(range(len(space.values)))
    if isinstance(space, Whole):
        return optuna.distributions.IntDistribution(space.low, space.high)
    return optuna.distributions.FloatDistribution(space.low, space.high, log=space.is_log, step=space.step)


def _value(space: Space, asked: Any) -> object:
    return space.values[asked] if isinstance(space, Choice) else asked


def _index(space: Space, value: Any) -> Any:
    return space.values.index(value) if isinstance(space, Choice) else value


def _refused_if_many(sweep: SweepFile, wanted: int) -> int:
    if wanted > MOST_TRIALS:
        raise LaunchError(
            f"{sweep.path} makes {wanted} trials, but a sweep has at most {MOST_TRIALS}: all are validated before the "
            "first starts. Give --count N, or run_cap or fewer values in the file."
        )
    return wanted


def _grid_size(space: Space) -> int:
    assert not isinstance(space, Real)  # the file refuses it
    return len(space.values) if isinstance(space, Choice) else space.high - space.low + 1


def _grid_value(space: Space, place: int) -> object:
    assert not isinstance(space, Real)
    return space.values[place] if isinstance(space, Choice) else space.low + place


def _draw(space: Space, source: random.Random) -> object:
    if isinstance(space, Choice):
        return source.choices(space.values, weights=space.probabilities)[0]
    if isinstance(space, Whole):
        return source.randint(space.low, space.high)
    if space.is_log:
        return math.exp(source.uniform(math.log(space.low), math.log(space.high)))
    drawn = source.uniform(space.low, space.high)
    return drawn if space.step is None else round(drawn / space.step) * space.step
