"""Both backbones at tiny size, with nothing encoded yet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.encoded import fill_alone, filling, some_pairs, write_pairs
from tests.support.memory_editors import EDITORS, Editor


@pytest.fixture(scope="module")
def editors() -> dict[str, Editor]:
    torch.set_num_threads(1)
    return {name: build() for name, build in EDITORS.items()}


@pytest.fixture(params=EDITORS)
def editor(request: pytest.FixtureRequest, editors: dict[str, Editor]) -> Iterator[Editor]:
    found = editors[request.param]
    found.forget()
    yield found
    found.forget()


@pytest.fixture
def flux(editors: dict[str, Editor]) -> Editor:
    return editors["flux_kontext"]


@pytest.fixture
def filled(editor: Editor, tmp_path: Path) -> Path:
    """A folder with a filled cache of five rows in ``data``."""
    write_pairs(tmp_path / "data", some_pairs(5))
    fill_alone(filling(editor, tmp_path / "data", tmp_path / "cache"))
    return tmp_path
