"""Arguments that several verbs of the command line take."""

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Hydra overrides, such as experiment=demo optimizer.lr=1e-4")
]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder with yaml groups of your own, searched after ours.")]
