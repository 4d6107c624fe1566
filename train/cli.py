"""The command line: ``physedit VERB [PATHS] key=value ...``.

Heavy modules are imported inside the verbs, so that help and a refused setting answer at once.
"""

import json
import logging
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from physedit.train.cli_arena import arena_app
from physedit.train.cli_compare import compare
from physedit.train.cli_data import data_app
from physedit.train.cli_doctor import doctor
from physedit.train.cli_estimate import estimate
from physedit.train.cli_judge import judge
from physedit.train.cli_options import ConfigDir, Overrides
from physedit.train.cli_sweep import sweep
from physedit.train.compose import SWEEP_ADVICE, compose_config, with_hooks_named
from physedit.train.config import ConfigError
from physedit.train.guarded import fail, guarded, is_rank_0
from physedit.train.swept import agent_values, check_swept, exact_overrides

app = typer.Typer(
    name="physedit",
    help="Fine-tune physics-aware image editors and measure the change on PICABench.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
scenes_app = typer.Typer(help="The embedded world: small scenes under known physics.", no_args_is_help=True)
config_app = typer.Typer(help="Show what a command line composes to.", no_args_is_help=True)
app.add_typer(scenes_app, name="scenes")
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(arena_app, name="arena")
app.command("sweep")(sweep)
app.command("judge")(judge)
app.command("compare")(compare)
app.command("estimate")(estimate)
app.command("doctor")(doctor)


def main() -> None:
    """Runs the command line; the console script ``physedit``."""
    guarded(app)


def train_main() -> None:
    """Runs ``train`` with the arguments of this process: the door for ``accelerate launch -m physedit.train``."""
    guarded(lambda: app(args=["train", *sys.argv[1:]]))


@app.command()
def train(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate everything, start nothing.")] = False,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", hidden=True)] = False,
) -> None:
    """Fine-tunes an adapter, or resumes: physedit train experiment=demo; with launch=NAME on many GPUs."""
    swept = agent_values()
    if multirun:
        raise ConfigError(f"--multirun would run one job after another in the same processes, but {SWEEP_ADVICE}")
    typed = exact_overrides(overrides or [], swept)
    given = with_hooks_named(typed, config_dir=config_dir)
    config = compose_config(given, config_dir=config_dir)
    check_swept(config, given, swept)
    from physedit.eval_hooks.judges.judge import JudgeUnavailable
    from physedit.eval_hooks.ranks import FailedElsewhere
    from physedit.train import launching, preflight, sft
    from physedit.train.console import print_results
    from physedit.train.loop import NonFiniteLoss
    from physedit.train.processes import leaving_last
    from physedit.train.signals import Stopped, stop_on_signal

    command = launching.command_of_parent()
    if command is None or config.launch.kind != "none":
        launching.check_launch(config)
        preflight.check(config)
        command = _command(typed, config_dir)
    plan = None if config.launch.kind == "none" else launching.plan(config, given, command, config_dir)
    if dry_run:
        typer.echo("Settings, components, data, local weights and run folder can be used; nothing was started.")
        if plan is not None:
            typer.echo(f"\n{plan.described()}{launching.lacking_gpus(config.launch) or ''}")
        return
    if plan is not None:
        raise SystemExit(launching.start(config, plan))
    with stop_on_signal() as stop:
        try:
            reports = sft.train(config, given, command, stop)
        except Stopped as stopped:
            logging.getLogger(__name__).warning("%s Run the same command again to go on.", stopped)
            raise SystemExit(stop.exit_code) from None
        except (NonFiniteLoss, JudgeUnavailable) as error:
            fail(str(error), 1)
        except FailedElsewhere as error:
            with leaving_last():
                fail(str(error), 1)
    if is_rank_0():
        print_results(Path(str(config.output_root)) / str(config.run_name), reports)


@app.command()
def encode(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Fills the encoded cache of a run with encode=cached, and trains nothing: physedit encode experiment=demo."""
    given = overrides or []
    asked = [] if any(override.startswith("encode=") for override in given) else ["encode=cached"]
    config = compose_config([*asked, *given], config_dir=config_dir)
    from physedit.train import encode as encoding
    from physedit.train import launching

    launching.check_starts_here(config, "encode")
    counts = encoding.encode(config)
    if not is_rank_0():
        return
    if as_json:
        typer.echo(json.dumps(asdict(counts), indent=2))
    else:
        typer.echo(encoding.described(counts))


@app.command("eval")
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint folder, or a folder with an adapter.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; default: RUN/evaluations/CHECKPOINT_NAME.")] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Evaluates a saved adapter against its base: physedit eval runs/demo/checkpoints/step_00000800."""
    from physedit.train import evaluate as evaluation
    from physedit.train import launching
    from physedit.train.saved_adapter import find_adapter, overrides_of, run_of
    from physedit.train.typed_commands import check_typed_commands

    adapter = find_adapter(checkpoint)
    run = run_of(adapter)
    if out is None:
        if run is None:
            raise ConfigError(f"{checkpoint} is not a checkpoint of a run. Say where to write with --out FOLDER.")
        out = run / "evaluations" / adapter.resolve().parent.parent.name
    config = compose_config([*overrides_of(run), *(overrides or [])], config_dir=config_dir)
    if run is not None:
        check_typed_commands(config, overrides or [])
    launching.check_starts_here(config, "eval")
    step = evaluation.step_of(adapter) or int(config.num_steps)
    reports = evaluation.evaluate(config, adapter, out, step)
    if is_rank_0():
        from physedit.train.console import print_results

        print_results(out, reports)


@app.command()
def edit(
    image: Annotated[list[Path], typer.Option(help="The picture to edit; again for each further reference.")],
    prompt: Annotated[str, typer.Option(help="What is to be edited.")],
    overrides: Overrides = None,
    adapter: Annotated[
        Path | None, typer.Option(help="A checkpoint folder, a folder with an adapter, or a .safetensors file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; default: edits/IMAGE_HASH.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise, which base and adapter share.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Denoising steps; default: the backbone's own.")] = None,
    guidance: Annotated[float | None, typer.Option(help="Guidance scale; default: the backbone's own.")] = None,
    config_dir: ConfigDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print edit.json instead of the files' names.")] = False,
) -> None:
    """Edits a picture with the base and with an adapter, side by side.

    An adapter of a run brings its backbone; else choose it with backbone=NAME.
    """
    from physedit.train import edit as editing
    from physedit.train.saved_adapter import editor_config, find_adapter

    request = editing.EditRequest(tuple(image), prompt, seed=seed, num_steps=steps, guidance=guidance)
    editing.check_request(request)
    file = None if adapter is None else find_adapter(adapter)
    folder = editing.edit(editor_config(file, overrides or [], config_dir), request, file, out)
    if as_json:
        typer.echo((folder / editing.RECORD).read_text(encoding="utf-8"), nl=False)
    else:
        for path in sorted(folder.iterdir()):
            typer.echo(path)


@app.command()
def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint folder, a folder with an adapter, or a .safetensors file.")
    ],
    out: Annotated[Path, typer.Option(help="A new folder or, for an adapter, a new .safetensors file.")],
    form: Annotated[
        Literal["diffusers", "kohya", "merged"],
        typer.Option("--format", help="The adapter for diffusers; for ComfyUI (Kohya's names); merged into its base."),
    ],
    overrides: Overrides = None,
    transformer_only: Annotated[
        bool, typer.Option("--transformer-only", help="Of the merged pipeline, write only the transformer.")
    ] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Brings a saved adapter into the form that another program loads."""
    from physedit.train import export as exporting
    from physedit.train.saved_adapter import editor_config, find_adapter

    if transformer_only and form != "merged":
        raise ConfigError(f"--transformer-only belongs to --format merged, but {form} was asked. Leave one out.")
    if form == "diffusers" and overrides:
        raise ConfigError(f"{overrides[0]} has no effect on --format diffusers, which copies the file. Leave it out.")
    file = find_adapter(checkpoint)
    if form == "diffusers":
        written = exporting.export_diffusers(file, out)
    else:
        config = editor_config(file, overrides or [], config_dir)
        if form == "kohya":
            written = exporting.export_kohya_file(config, file, out)
        else:
            save = exporting.export_merged_transformer if transformer_only else exporting.export_merged
            written = save(config, file, out)
    typer.echo(written)


@scenes_app.command("write")
def scenes_write(
    folder: Annotated[Path, typer.Argument(help="Where the world is to be written.")],
    num_train: Annotated[int, typer.Option(min=1, help="Training pairs.")] = 2500,
    num_benchmark: Annotated[int, typer.Option(min=1, help="Benchmark scenes.")] = 150,
    seed: Annotated[int, typer.Option(help="Seed of the world.")] = 0,
) -> None:
    """Writes the embedded world as parquet files in the schemas of PICA-100K and PICABench."""
    from physedit.data_loaders.scenes.write import ensure_world

    is_new = not folder.exists()
    try:
        ensure_world(folder, num_train=num_train, num_benchmark=num_benchmark, seed=seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not is_new:
        typer.echo(f"{num_train} training pairs and {num_benchmark} benchmark scenes are already in {folder}.")


@config_app.command("show")
def config_show(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of yaml.")] = False,
) -> None:
    """Prints the composed and validated config."""
    from omegaconf import OmegaConf

    config = compose_config(overrides or [], config_dir=config_dir)
    if as_json:
        typer.echo(json.dumps(OmegaConf.to_container(config, resolve=True), indent=2))
    else:
        typer.echo(OmegaConf.to_yaml(config, resolve=True), nl=False)


def _command(given: list[str], config_dir: Path | None) -> str:
    """Returns what was typed."""
    program = "python -m physedit.train" if Path(sys.argv[0]).name == "__main__.py" else "physedit train"
    options = [] if config_dir is None else ["--config-dir", str(config_dir)]
    return f"{program} {shlex.join([*options, *given])}"
