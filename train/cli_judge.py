"""``physedit judge``: answers about pictures that are made, of any editor or of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from physedit.train.config import ConfigError

if TYPE_CHECKING:
    from physedit.eval_hooks.agreement import RepeatabilityReport
    from physedit.eval_hooks.hook import EvalReport
    from physedit.eval_hooks.picabench.outputs import Outputs

_GO_ON = "What was answered is kept: run the same command again to go on."


def judge(
    folder: Annotated[
        Path, typer.Argument(help="Outputs of any editor in PICABench's layout (meta_info.json), or a run's folder.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="out=FOLDER judge=NAME, or judge.model=NAME judge.base_url=URL judge.api=responses|chat"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write, as out=FOLDER; default: the folder itself.")] = None,
    repeat: Annotated[
        int | None,
        typer.Option(help="Ask every question so often, from no cache: how far does the judge agree with itself?"),
    ] = None,
    agree_with: Annotated[
        Path | None,
        typer.Option(help="Where another judge's items.jsonl about the same pictures lies: how far do both agree?"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count questions, cached answers and cost; ask no one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json, agreement.json, or the counts.")] = False,
    config_dir: Annotated[
        Path | None, typer.Option(help="A folder with yaml groups of your own, searched after ours.")
    ] = None,
) -> None:
    """Has a judge answer about a folder of outputs, or finishes what a run left unjudged."""
    from physedit.train.judge import check_agreement, is_run, outputs_of

    given, is_of_run = overrides or [], is_run(folder)
    check_agreement(folder, given, repeat, agree_with, is_run=is_of_run, is_dry=dry_run)
    with _told_what_is_kept():
        if not is_of_run:
            outputs = outputs_of(folder, given, out, config_dir)
            if repeat is not None or agree_with is not None:
                _measure_agreement(outputs, repeat, agree_with, dry_run=dry_run, as_json=as_json)
            elif dry_run:
                _say_plan(outputs, as_json=as_json)
            else:
                _judge_outputs(outputs, as_json=as_json)
            return
        if out is not None or any(each.split("=", 1)[0] == "out" for each in given):
            raise ConfigError(f"{folder} is a run, whose results stay in its folder: out has no effect. Leave it out.")
        if dry_run:
            _say_pending(folder, given, config_dir, as_json=as_json)
        else:
            _judge_run(folder, given, config_dir, as_json=as_json)


@contextmanager
def _told_what_is_kept() -> Iterator[None]:
    """Ends a disk that is full, or a path that cannot be written, with what that means for judging."""
    from physedit.train.guarded import fail, room

    try:
        yield
    except OSError as error:
        fail(f"{error}{room(error)}. Free space or mend the path. {_GO_ON}", 1)


def _measure_agreement(
    outputs: Outputs, times: int | None, other: Path | None, *, dry_run: bool, as_json: bool
) -> None:
    """Measures one or both agreements; all that can be refused is before any question is asked."""
    from physedit.eval_hooks.agreement import AGREEMENT_FILE, write_agreement
    from physedit.eval_hooks.picabench.two_judges import agreement_with, judges_of, read_other
    from physedit.train.console import print_agreement, print_repeatability, print_scores

    rows = [] if other is None else read_other(other, outputs.folder, outputs.out, outputs.judge)
    if dry_run:
        _say_plan(outputs, as_json=as_json)
        return
    repeats = None if times is None else _ask_again(outputs, times)
    if repeats is not None and not as_json:
        print_repeatability(repeats)
    if other is not None:
        report, stopped = _score(outputs)
        if not as_json:
            print_scores(report)
        _end_if_left(report, stopped)
        judges, between = [outputs.judge.judge_id, *judges_of(rows)], agreement_with(outputs.out, rows)
        write_agreement(outputs.out, judges=judges, repeats=repeats, between=between)
        if not as_json:
            print_agreement(between, judges)
    path = outputs.out / AGREEMENT_FILE
    typer.echo(path.read_text(encoding="utf-8") if as_json else path, nl=not as_json)


def _ask_again(outputs: Outputs, times: int) -> RepeatabilityReport:
    from physedit.eval_hooks.judges.judge import JudgeUnavailable
    from physedit.eval_hooks.picabench.repeats import measure_repeatability
    from physedit.train.guarded import fail
    from physedit.train.progress import JudgingBar

    try:
        with JudgingBar() as bar:
            return measure_repeatability(outputs.folder, outputs.judge, times, progress=bar.show, out=outputs.out)
    except JudgeUnavailable as error:
        fail(f"Not every repeat is answered: {str(error).rstrip('.')}. {_GO_ON}", 1)


def _judge_outputs(outputs: Outputs, *, as_json: bool) -> None:
    from physedit.train.console import print_scores

    report, stopped = _score(outputs)
    if as_json:
        typer.echo((report.folder / "report.json").read_text(encoding="utf-8"), nl=False)
    else:
        print_scores(report)
    _end_if_left(report, stopped)


def _score(outputs: Outputs) -> tuple[EvalReport, str | None]:
    from physedit.eval_hooks.picabench.outputs import score_outputs
    from physedit.train.progress import JudgingBar

    with JudgingBar() as bar:
        return score_outputs(outputs, bar.show)


def _end_if_left(report: EvalReport, stopped: str | None) -> None:
    from physedit.train.guarded import fail

    if stopped is not None:
        scored = f"{report.num_questions - report.num_unscored} of {report.num_questions} questions are scored"
        fail(f"{scored}: {stopped.rstrip('.')}. {_GO_ON}", 1)


def _say_plan(outputs: Outputs, *, as_json: bool) -> None:
    from physedit.eval_hooks.picabench.outputs import plan_judging, plan_record

    plan = plan_judging(outputs)
    if as_json:
        typer.echo(plan_record(plan))
        return
    typer.echo(f"{plan.num_questions} questions about {plan.num_items} items; judge {outputs.judge.judge_id}")
    typer.echo(f"{plan.num_answered} answered in {outputs.out}, {plan.num_cached} in the judge's cache")
    prices = "judge.usd_per_million_input and judge.usd_per_million_output tell its price"
    cost = prices if plan.cost_usd is None else f"about {plan.cost_usd:.2f} USD ({plan.tokens})"
    typer.echo(f"{plan.num_to_ask} would be asked: {cost}")


def _judge_run(folder: Path, overrides: list[str], config_dir: Path | None, *, as_json: bool) -> None:
    from physedit.train.console import print_results
    from physedit.train.guarded import fail
    from physedit.train.judge_run import judge_run
    from physedit.train.progress import JudgingBar

    with JudgingBar() as bar:
        result = judge_run(folder, overrides, config_dir, bar.show)
    if as_json:
        told = asdict(result)
        told["reports"] = [str(report.folder) for report in result.reports]
        typer.echo(json.dumps(told, indent=2))
    else:
        print_results(folder, result.reports)
        typer.echo(f"judged now: {', '.join(result.finished) or 'nothing'}; logged now: {result.logged}")
    if result.left is not None:
        fail(f"Not all is judged. {result.left.rstrip('.')}. {_GO_ON}", 1)


def _say_pending(folder: Path, overrides: list[str], config_dir: Path | None, *, as_json: bool) -> None:
    from physedit.train.judge_run import pending_evaluations

    pending = pending_evaluations(folder, overrides, config_dir)
    if as_json:
        typer.echo(json.dumps(pending, indent=2))
        return
    for hook, steps in pending.items():
        typer.echo(f"{hook}: to be judged at step {', '.join(map(str, steps))}")
    if not pending:
        typer.echo(f"All pictures of {folder} are judged.")
