"""Which folder is judged, by whom, and where the results go: ``physedit judge``."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from physedit.data_loaders.sample import PromptLevel
from physedit.eval_hooks.judges.judge import Judge
from physedit.eval_hooks.picabench.benchmark_rows import META_INFO
from physedit.eval_hooks.picabench.measure import MeasuringRules
from physedit.eval_hooks.picabench.outputs import Outputs, check_outputs
from physedit.train.assemble import build_checked
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError, options, suggestion
from physedit.train.output import check_can_be_made

_ANY_JUDGE = "judge=openai_compatible"
_RECIPE = ("run_name=judged", "num_steps=1", "global_batch=1", "micro_batch=1", "data=scenes", "backbone=toy")
"""Values of a run that a config must have and a judge does not need."""
_FRAMES = {"long_side_1024": MeasuringRules.STRICT, "input": MeasuringRules.PLAIN}
_DEFAULT_FRAME = "long_side_1024"
_OWN = ("out", "area_frame", "judge_time_budget_s", "editor", "level")
_TAKEN = ("judge", "output_root", *_OWN)


@dataclass(frozen=True, slots=True)
class _OwnSettings:
    """What a command line says that no run's config holds.

    Attributes:
        out: where the results go; None for the folder itself.
        area_frame: what edit areas are given in, for a judge with the strict protocol.
        time_budget_s: seconds after which no further question is asked; None for no end.
        editor: the weights that made the pictures, to find the paper's rows; None for what the folder tells.
        level: of the instructions; None for what the folder tells.
    """

    out: Path | None
    area_frame: str
    time_budget_s: float | None
    editor: str | None
    level: str | None


def is_run(folder: Path) -> bool:
    """True for the folder of a run, false for one of outputs.

    Raises:
        ConfigError: it is neither.
    """
    if (folder / META_INFO).is_file():
        return False
    if (folder / "config.yaml").is_file() and (folder / "overrides.txt").is_file():
        return True
    if not folder.is_dir():
        found = "is not a folder" if folder.exists() else "does not exist"
    else:
        below = sorted(each.parent.name for each in folder.glob(f"*/{META_INFO}"))
        hint = f" Did you mean {folder / below[0]}?" if below else ""
        found = f"has neither {META_INFO} nor the config.yaml of a run.{hint}"
    raise ConfigError(
        f"{folder} {found.rstrip('.')}. Give a folder of outputs in PICABench's layout (meta_info.json, whose items "
        "name input_path and output_path), or the folder of a run."
    )


def outputs_of(folder: Path, overrides: Sequence[str], out: Path | None, config_dir: Path | None) -> Outputs:
    """Returns what is to be judged, verified as far as that needs neither pictures nor the judge.

    Args:
        folder: outputs with their ``meta_info.json``.
        overrides: of the command line: a judge, and the settings of this module.
        out: where the results go, if an option said so.
        config_dir: as for ``compose_config``.

    Raises:
        ConfigError: the overrides do not compose, name no judge, or have no effect here.
        DatasetLayoutError: there is nothing to judge in the folder.
    """
    own, composed = _own_settings(overrides, out)
    config = compose_config([*_RECIPE, *_with_a_judge(composed)], config_dir=config_dir)
    place = own.out or folder
    _refuse_evaluation_of_a_run(folder, place)
    check_can_be_made(place)
    judge = judge_of(config)
    rules = MeasuringRules.OFFICIAL if judge.protocol.name == "official" else _FRAMES[own.area_frame]
    check_outputs(folder, judge.protocol)
    return Outputs(folder, place, judge, rules, own.time_budget_s, editor=own.editor, level=own.level)


def check_agreement(
    folder: Path, overrides: Sequence[str], repeat: int | None, agree_with: Path | None, *, is_run: bool, is_dry: bool
) -> None:
    """Verifies what ``--repeat`` and ``--agree-with`` ask for, as far as that needs no file.

    Raises:
        ConfigError: a number below 2, or an option or setting beside them that has no effect.
    """
    if repeat is None and agree_with is None:
        return
    if is_run:
        option = "--repeat" if agree_with is None else "--agree-with"
        raise ConfigError(
            f"{option} is about a folder of outputs, but {folder} is a run. Give one of its evaluations, with results "
            f"elsewhere: physedit judge {folder}/eval/HOOK/step_... out=FOLDER {option} ..."
        )
    if repeat is None:
        return
    if repeat < 2:
        raise ConfigError(f"--repeat {repeat}: a judge's agreement with itself needs at least 2 repeats.")
    if is_dry:
        raise ConfigError(
            "--dry-run counts what judging once would take, but each of --repeat's repeats asks all questions. Leave "
            "one of both out."
        )
    unused = [each for each in overrides if _key(each) in _OWN and _key(each) != "out"]
    if unused and agree_with is None:
        raise ConfigError(f"{unused[0]} has no effect on --repeat, which asks and measures nothing else. Leave it out.")


def judge_of(config: DictConfig) -> Judge:
    """Builds the judge of a config.

    Raises:
        ConfigError: a setting that it refuses, or no key.
    """
    judge: Judge = build_checked("judge", config.judge)
    return judge


def _with_a_judge(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides with the group that ``judge.model`` alone stands for."""
    keys = {_key(each) for each in overrides}
    if "judge" in keys:
        return list(overrides)
    if "judge.model" in keys:
        return [_ANY_JUDGE, *overrides]
    near = [found for key in sorted(keys) if key.startswith("judge.") and (found := suggestion(key, ["judge.model"]))]
    raise ConfigError(
        f"No judge was chosen.{''.join(near[:1])} Give judge=NAME ({', '.join(options('judge'))}), or judge.model=NAME "
        "judge.base_url=http://HOST:8000/v1 judge.api=chat for a model behind an OpenAI-compatible server."
    )


def _own_settings(overrides: Sequence[str], out: Path | None) -> tuple[_OwnSettings, list[str]]:
    given: dict[str, str] = {}
    composed: list[str] = []
    for each in overrides:
        key, value = _key(each), each.partition("=")[2]
        if key.split(".")[0].split("/")[0] not in _TAKEN:
            raise ConfigError(
                f"{each} has no effect on judging a folder.{suggestion(key, _TAKEN)} It takes: {', '.join(_TAKEN)}."
            )
        if key in _OWN:
            given[key] = value
        else:
            composed.append(each)
    if out is not None and "out" in given:
        raise ConfigError(f"--out {out} and out={given['out']} both say where to write. Leave one out.")
    frame = given.get("area_frame", _DEFAULT_FRAME)
    if frame not in _FRAMES:
        raise ConfigError(f"area_frame={frame} is not known. Use {' or '.join(_FRAMES)}.")
    if (level := given.get("level")) not in (None, *PromptLevel):
        raise ConfigError(f"level={level} is not known. Use {', '.join(PromptLevel)}.")
    if given.get("out") == "":
        raise ConfigError("out= names no folder. Give one, or leave it out to write into the folder of outputs itself.")
    # No shell expands ~ after an equals sign; an unknown ~NAME stays as it is, at which Path.expanduser raises.
    place = Path(os.path.expanduser(given["out"])) if "out" in given else out  # noqa: PTH111
    return _OwnSettings(place, frame, _seconds(given.get("judge_time_budget_s")), given.get("editor"), level), composed


def _seconds(text: str | None) -> float | None:
    if text is None or text == "null":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"judge_time_budget_s={text} must be seconds above 0, or null for no end.")
    return seconds


def _key(override: str) -> str:
    return override.lstrip("+~").split("=", 1)[0].split("@")[0].strip()


def _refuse_evaluation_of_a_run(folder: Path, out: Path) -> None:
    """Refuses to write over what a run has found about one of its steps."""
    place = folder.resolve()
    hook = place.parent  # the parent of the root is the root: no folder is too high for this
    run = hook.parent.parent
    if out.resolve() == place and hook.parent.name == "eval" and _is_run_folder(run):
        raise ConfigError(
            f"{folder} is an evaluation of the run {run}, whose report would be replaced. Finish it with: physedit "
            f"judge {run}. Or write elsewhere: out=FOLDER."
        )


def _is_run_folder(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "overrides.txt").is_file()
