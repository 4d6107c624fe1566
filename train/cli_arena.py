"""``physedit arena``: human votes on pairs of edits, and how a judge ranks beside them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any  # a context's class depends on typer's version

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from physedit.eval_hooks.arena.standing import Standing

_RATE = "rate"


class _RatesByDefault(TyperGroup):
    """``physedit arena votes.csv`` is ``physedit arena rate votes.csv``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts ``rate`` before arguments that begin with no verb."""
        if args and args[0] not in (*self.commands, "--help"):
            args = [_RATE, *args]
        return super().parse_args(ctx, args)


arena_app = typer.Typer(
    cls=_RatesByDefault,
    help="Human votes on pairs of edits: arena serve A B --votes votes.csv, then arena votes.csv A B.",
    no_args_is_help=True,
)

Folders = Annotated[
    list[str] | None, typer.Argument(help="Judged folders of the models, each FOLDER or NAME=FOLDER; for correlations.")
]


@arena_app.command(_RATE)
def rate(
    votes: Annotated[Path, typer.Argument(help="CSV file: item, model_a, model_b, winner (a, b or tie), law.")],
    folders: Folders = None,
    seed: Annotated[int, typer.Option(help="Seed of the orders and resamples.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Orders of the votes that ratings are averaged over.")] = 50,
    resamples: Annotated[int, typer.Option(min=1, help="Resamples of the items behind the intervals.")] = 200,
    out: Annotated[Path | None, typer.Option(help="Also write the ratings there, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rates models by votes (Elo), and says how their judged accuracies rank beside that."""
    from physedit.eval_hooks.arena.contestants import parse_folders
    from physedit.eval_hooks.arena.standing import standing_of
    from physedit.eval_hooks.files import write_json

    standing = standing_of(votes, parse_folders(folders or []), seed=seed, rounds=rounds, resamples=resamples)
    if out is not None:
        write_json(out, asdict(standing))
    if as_json:
        typer.echo(json.dumps(asdict(standing), indent=2, ensure_ascii=False))
    else:
        _print(standing)


@arena_app.command("serve")
def serve(
    folders: Annotated[list[str], typer.Argument(help="Folders of edits to compare, each FOLDER or NAME=FOLDER.")],
    votes: Annotated[Path, typer.Option(help="CSV file that votes are added to; goes on where it ends.")],
    seed: Annotated[int, typer.Option(help="Seed of pairs, order and sides.")] = 0,
    per_law: Annotated[
        int | None, typer.Option(min=1, help="Pairs of each law; default: as many as the smallest law has.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 8765,
) -> None:
    """Serves a page to vote on blinded pairs, on this machine alone, until Ctrl-C."""
    from physedit.eval_hooks.arena.contestants import parse_folders
    from physedit.eval_hooks.arena.page import HOST, Session, make_server

    session = Session(parse_folders(folders), votes, seed=seed, per_law=per_law)
    with make_server(session, port) as server:
        typer.echo(
            f"http://{HOST}:{server.server_port}/  {session.num_done} of {len(session.pairs)} pairs are voted on"
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo(f"{session.num_done} of {len(session.pairs)} pairs are voted on: {votes}")


def _print(standing: Standing) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"Elo of {standing.num_votes} votes on {standing.num_items} items")
    table.add_column("model")
    for column in ("Elo", "95 % interval", "won", "tied", "lost", *(["accuracy"] if standing.accuracy else [])):
        table.add_column(column, justify="right")
    for rating in standing.ratings:
        low, high = rating.ci95
        accuracy = [f"{100 * standing.accuracy[rating.model]:.2f} %"] if standing.accuracy else []
        table.add_row(
            escape(rating.model), f"{rating.elo:.0f}", f"{low:.0f} … {high:.0f}",
            str(rating.num_wins), str(rating.num_ties), str(rating.num_losses), *accuracy,
        )  # fmt: skip
    console = Console()
    console.print(table)
    for note in standing.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
