"""Rows that the editor cannot take are dropped by name like rows that cannot be decoded, however the run reads them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from PIL import Image
from tests.data_loaders.hostile import encoded, noisy, plain
from tests.integration.test_dropped_rows import launch
from tests.support.runs import adapter_bytes, metrics_of, physedit, smoke_overrides

from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.slots import UNFIT_SIZE
from physedit.train.check_data import CheckRequest, check_data
from physedit.train.compose import compose_config
from physedit.train.dropped import TooManyDropped

EDITOR = (
    "backbone=qwen_image_edit_plus", "backbone.weights=random_tiny", "backbone.dtype=float32", "backbone.area_px=4096",
    "backbone.vision_area_px=3136", "backbone.gradient_checkpointing=false",
)  # fmt: skip
RUN = ("num_steps=8", "global_batch=4", "micro_batch=2", "log_every=1", "max_dropped_share=0.5")
CACHED, TEXT_LIVE = ("encode=cached",), ("encode=cached", "encode.text=live")
ROWS: list[dict[str, str]] = [
    {},
    {"more": "", "again": ""},
    {"again": "wide"},
    {"more": "strip"},
    {"say": "put <|image_pad|> there"},
    {"again": "wide"},
    {"say": "é" * 3000},
    {},
    {"source": "cut"},
    {"more": "wide"},
]
AT_START = {"table.jsonl:3": UNFIT_SIZE}
LATER = {
    "table.jsonl:4": RowProblem.TEMPLATE_WORDS,
    "table.jsonl:6": RowProblem.PROMPT_TOO_LONG,
    "table.jsonl:8": RowProblem.DAMAGED,
}


@pytest.fixture
def data(tmp_path: Path) -> tuple[str, ...]:
    """Pairs with up to two references: rows of four kinds of pictures, and four rows that cannot be used."""
    folder = tmp_path / "data"
    folder.mkdir()
    pictures = {"a": (64, 64), "b": (64, 64), "c": (48, 48), "wide": (96, 40), "strip": (600, 3)}
    for name, size in pictures.items():
        (folder / name).write_bytes(encoded(plain(size=size) if name == "b" else noisy(size)))
    (folder / "cut").write_bytes((folder / "a").read_bytes()[:200])
    usual = {"source": "a", "target": "b", "more": "c", "again": "", "say": "move it"}
    (folder / "table.jsonl").write_text("".join(json.dumps(usual | row) + "\n" for row in ROWS))
    return (
        "data=pairs", f"data.path={folder}/table.jsonl", "data.source=source", "data.target=target",
        "data.instruction=say", "data.references=[more,again]",
    )  # fmt: skip


def dropped_of(folder: Path) -> Mapping[str, str]:
    lines = [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]
    assert len({line["sample_id"] for line in lines}) == len(lines)
    return {line["sample_id"]: line["reason"] for line in lines}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_run_ends_and_names_each_row_once_with_its_reason(
    run_smoke: Callable[..., Path], data: tuple[str, ...], num_workers: int
) -> None:
    folder = run_smoke(*data, *EDITOR, *RUN, f"num_workers={num_workers}")
    assert dropped_of(folder) == AT_START | LATER
    assert metrics_of(folder)[-1]["train/dropped"] == 4.0
    assert metrics_of(folder)[-1]["step"] == 8
    assert json.loads((folder / "order.json").read_text())["sizes"] == 4, "references decide too who shares a batch"
    first = json.loads((folder / "dropped.jsonl").read_text().splitlines()[0])
    assert (first["step"], first["row"]) == (0, 3)


def test_the_encoded_cache_and_the_check_drop_the_same_rows(
    run_smoke: Callable[..., Path], data: tuple[str, ...], tmp_path: Path
) -> None:
    live = run_smoke(*data, *EDITOR, *RUN, name="live")
    for name, mode in (("cached", CACHED), ("text_live", TEXT_LIVE)):
        other = run_smoke(*data, *EDITOR, *RUN, *mode, name=name)
        assert dropped_of(other) == dropped_of(live)
        assert adapter_bytes(other, 8) == adapter_bytes(live, 8)
    config = compose_config(["experiment=smoke", *data, *EDITOR, *RUN, "num_workers=0"])
    result = check_data(config, CheckRequest(out=tmp_path / "check"))
    lines = [json.loads(line) for line in (tmp_path / "check" / "dropped.jsonl").read_text().splitlines()]
    assert {line["sample_id"]: line["reason"] for line in lines} == dropped_of(live)
    assert (result.record["kept"], result.record["would_stop"]) == (6, 0)


def test_they_count_towards_the_share_that_may_be_dropped(
    run_smoke: Callable[..., Path], data: tuple[str, ...]
) -> None:
    with pytest.raises(TooManyDropped, match=r"of 10 rows cannot be used, more than max_dropped_share=0\.3"):
        run_smoke(*data, *EDITOR, *RUN, "max_dropped_share=0.3")


def test_the_verb_that_encodes_counts_them(data: tuple[str, ...], world: Path, tmp_path: Path) -> None:
    done = physedit("encode", *smoke_overrides(world, tmp_path, "any", (*data, *EDITOR, *RUN)), "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert (counts["rows"], counts["encoded"]) == (10, 6)
    assert counts["dropped"] == {str(reason): 1 for reason in (AT_START | LATER).values()}


def test_a_reference_that_changed_since_it_was_indexed_drops_its_row(
    run_smoke: Callable[..., Path], data: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from physedit.train import sft

    claim = sft.claim_run_folder

    def change(*arguments: object) -> object:
        Image.new("RGB", (70, 30)).save(tmp_path / "data" / "wide", "PNG")
        return claim(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sft, "claim_run_folder", change)
    folder = run_smoke(*data, *EDITOR, *RUN, "max_dropped_share=0.8", "num_workers=0")
    changed = {f"table.jsonl:{row}": "changed since the size index was made" for row in (2, 5, 9)}
    assert dropped_of(folder) == AT_START | LATER | changed


@pytest.mark.slow
def test_two_processes_drop_the_same_rows_as_one(
    run_smoke: Callable[..., Path], data: tuple[str, ...], world: Path, tmp_path: Path
) -> None:
    alone = run_smoke(*data, *EDITOR, *RUN, name="alone")
    done = launch(*smoke_overrides(world, tmp_path, "pair", (*data, *EDITOR, *RUN)))
    assert done.returncode == 0, done.stderr[-2000:]
    assert dropped_of(tmp_path / "pair") == dropped_of(alone)
    for one, two in zip(metrics_of(alone), metrics_of(tmp_path / "pair"), strict=True):
        assert one["train/dropped"] == two["train/dropped"]
        assert one["train/loss"] == pytest.approx(two["train/loss"], rel=1e-5)  # sums in another order
