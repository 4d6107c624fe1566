"""What differs between runs: settings worth a column, and conditions under which numbers cannot be compared. Pure."""

from collections.abc import Mapping, Sequence

from physedit.eval_hooks.comparing.runs import CompareError, Evaluation, Run

_WHERE_IT_RAN = frozenset(
    {"run_name", "output_root", "resume", "num_workers", "device", "num_threads", "tracker", "launch", "checkpoint",
     "collective_timeout_s", "eval_failures", "log_every", "eval", "eval_steps",
     "scenes.write"}
)  # fmt: skip
"""Settings that say where a run ran or what it kept; how it was evaluated stands among the conditions."""
_EDITORS_OWN = frozenset({"sampler.guidance", "sampler.num_steps"})
"""Where every run leaves one to its editor, each was sampled as its editor is meant to be, and that is alike."""
_MOST_NAMED = 6


class DifferentConditions(CompareError):
    """The runs were not evaluated alike."""


def differing_settings(runs: Sequence[Run]) -> tuple[str, ...]:
    """Returns the keys of settings that are not the same in all runs: those of a sweep first, then by name."""
    swept = dict.fromkeys(key for run in runs for key in run.swept)
    others = sorted({key for run in runs for key in run.settings} - swept.keys())
    known = [run for run in runs if run.settings]
    return tuple(
        key
        for key in (*swept, *others)
        if not _WHERE_IT_RAN.intersection((key, key.split(".")[0]))
        and len({_told_apart(run.settings.get(key)) for run in known}) > 1
    )


def different_conditions(evaluations: Mapping[str, Evaluation]) -> tuple[str, ...]:
    """Returns what the evaluations of a hook do not have in common, each in one phrase.

    Args:
        evaluations: by run.
    """
    are_proven = all(each.conditions for each in evaluations.values())
    conditions = {name: each.conditions if are_proven else each.configured for name, each in evaluations.items()}
    keys = dict.fromkeys(key for each in conditions.values() for key in each)
    return tuple(
        _phrase(key, {name: each.get(key) for name, each in conditions.items()})
        for key in keys
        if len({_told_apart(each.get(key)) for each in conditions.values()}) > 1
        and not (key in _EDITORS_OWN and all(_leaves_it_open(each, key) for each in evaluations.values()))
    )


def refuse_different(hook: str, differences: Sequence[str]) -> None:
    """Raises if there are differences.

    Raises:
        DifferentConditions: there are, and these.
    """
    if differences:
        named = "; ".join(differences[:_MOST_NAMED])
        more = f"; and {len(differences) - _MOST_NAMED} more" if len(differences) > _MOST_NAMED else ""
        raise DifferentConditions(
            f"The runs were not evaluated alike by {hook}, so a difference of their numbers could come from that: "
            f"{named}{more}. Evaluate them alike (physedit eval), leave the odd one out, or compare all the same with "
            "--allow-different."
        )


def show_setting(value: object) -> str:
    """Returns a setting as text, short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if text.startswith("physedit."):
        return text.rpartition(".")[2]  # what _target_ names
    return text if len(text) <= 40 else f"{text[:18]}…{text[-18:]}"


def _leaves_it_open(evaluation: Evaluation, key: str) -> bool:
    return key in evaluation.configured and evaluation.configured[key] is None


def _phrase(key: str, values: Mapping[str, object]) -> str:
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(show_setting(value), []).append(name)
    said = [f"{value} in {', '.join(names[:3])}{' …' if len(names) > 3 else ''}" for value, names in by_value.items()]
    return f"{key} is {', '.join(said)}"


def _told_apart(value: object) -> str:
    """Numbers that are equal are one, whatever reader they come from: wandb's turns 2.0 into 2."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(float(value))
    return f"{type(value).__name__} {value}"
