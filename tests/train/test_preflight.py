"""What is wrong with the inputs of a run is said before anything is loaded, and together."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.support.runs import smoke_overrides

from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError
from physedit.data_loaders.tables import row_without_picture
from physedit.train import preflight
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.encode import encode


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from physedit.data_loaders.scenes.write import ensure_world

    folder = tmp_path_factory.mktemp("world") / "scenes"
    ensure_world(folder, num_train=6, num_benchmark=6, seed=7)
    return folder


def without_source(world: Path, folder: Path, row: int) -> Path:
    """A copy of the benchmark in which one item has no picture."""
    table = parquet.read_table(next(file for file in world.rglob("benchmark/*.parquet") if file.stem != "targets"))
    cells = table.column("input_image").to_pylist()
    cells[row] = {"bytes": None, "path": None}
    place = table.schema.get_field_index("input_image")
    folder.mkdir()
    column = pa.array(cells, table.schema.field("input_image").type)
    parquet.write_table(table.set_column(place, "input_image", column), folder / "benchmark.parquet", row_group_size=2)
    return folder


def check(world: Path, tmp_path: Path, *more: str) -> None:
    preflight.check(compose_config(smoke_overrides(world, tmp_path / "runs", "run", ["eval=scenes", *more])))


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: Any) -> None:
        raise AssertionError("weights were opened")

    monkeypatch.setattr("physedit.models.flux_kontext.load_pipeline", refuse)
    monkeypatch.setattr("safetensors.torch.load_file", refuse)


def test_all_that_is_wrong_is_said_at_once_before_any_weight_is_opened(world, tmp_path: Path, no_weights) -> None:
    """F15: a wrong data path, an evaluation item without a source, weights that are nowhere."""
    benchmark = without_source(world, tmp_path / "benchmark", 4)
    wrong = [
        f"eval.scenes.benchmark={benchmark}", "data.path=no/pairs", "backbone.weights=./no/weights", "optimizer.lr=-1",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as refused:
        check(world, tmp_path, *wrong)
    said = str(refused.value)
    assert said.startswith("4 things are wrong. (1) ")
    for words in ("benchmark.parquet, row 4: input_image holds no picture", "no/pairs", "no/weights", "optimizer"):
        assert words in said
    assert "\n" not in said
    assert not (tmp_path / "runs").exists()


def test_an_unknown_key_of_a_judge_is_refused_before_any_file_is_opened(world: Path, tmp_path: Path) -> None:
    """F15: it does not compose, so nothing else can be looked at."""
    with pytest.raises(ConfigError, match=r"eval\.scenes\.judge\.api_kee"):
        check(world, tmp_path, "+eval.scenes.judge.api_kee=X", "data.path=no/pairs")


def test_one_problem_keeps_its_own_error(world: Path, tmp_path: Path) -> None:
    check(world, tmp_path)
    with pytest.raises(DatasetRowError, match=r"row 3: input_image holds no picture"):
        check(world, tmp_path, f"eval.scenes.benchmark={without_source(world, tmp_path / 'benchmark', 3)}")
    with pytest.raises(ConfigError, match=r"^data: .*no/pairs"):
        check(world, tmp_path, "data.path=no/pairs")


def test_data_is_not_opened_to_report_something_else(world: Path, tmp_path: Path, monkeypatch) -> None:
    """Opening a large set may convert it first."""

    def refuse(*_arguments: object, **_options: Any) -> None:
        raise AssertionError("the data was opened")

    config = compose_config(smoke_overrides(world, tmp_path / "runs", "run", ["optimizer.lr=-1"]))
    monkeypatch.setattr("physedit.data_loaders.pica100k.Pica100k.__init__", refuse)
    with pytest.raises(ConfigError, match=r"^optimizer"):
        preflight.check(config)


def test_an_error_that_is_no_refusal_keeps_its_own_traceback(world: Path, tmp_path: Path, monkeypatch) -> None:
    def fault(*_arguments: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(preflight, "check_run_folder", fault)
    with pytest.raises(ValueError, match=r"^a fault of ours$"):
        check(world, tmp_path)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("kind", ["struct", "binary"])
def test_the_first_row_without_a_picture_is_found_by_statistics_or_by_reading(
    tmp_path: Path, statistics: bool, kind: str
) -> None:
    for missing in (None, 0, 3, 4):
        cells: list[Any] = [None if n == missing else b"x" for n in range(6)]
        column = cells if kind == "binary" else [{"bytes": cell, "path": "p"} for cell in cells]
        parquet.write_table(
            pa.table({"picture": column}), tmp_path / "f.parquet", row_group_size=2, write_statistics=statistics
        )
        assert row_without_picture(tmp_path / "f.parquet", "picture") == missing
    (tmp_path / "f.parquet").write_bytes(b"PAR1")
    with pytest.raises(DatasetLayoutError):
        row_without_picture(tmp_path / "f.parquet", "picture")


QWEN = ["backbone=qwen_image_edit_plus", "backbone.weights=random_tiny", "backbone.area_px=4096"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["backbone.area_px=0"], "backbone.area_px is 0"),
        (["backbone.area_px=99999999"], "backbone.area_px is 99999999"),
        (["backbone.max_text_tokens=513"], "backbone.max_text_tokens is 513"),
        (["backbone.train_guidance=-1"], "backbone.train_guidance is -1"),
        ([*QWEN, "backbone.vision_area_px=1"], "backbone.vision_area_px is 1"),
        ([*QWEN, "backbone.edit_guidance=-0.5"], "backbone.edit_guidance is -0.5"),
        (["backbone=qwen_image_edit_plus", "backbone.weights=toy"], "is a QwenImageEditPipeline, but this backbone"),
    ],
)
def test_a_backbone_that_would_refuse_its_settings_is_refused_before_it_loads(
    world: Path, tmp_path: Path, no_weights: None, wrong: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        check(world, tmp_path, *wrong)


def test_under_zero_an_optimizer_that_needs_whole_matrices_is_refused(world, tmp_path, monkeypatch):
    adafactor = ("optimizer._target_=torch.optim.Adafactor", "~optimizer.betas", "optimizer.eps=[null,1e-3]")
    check(world, tmp_path, *adafactor)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigError, match="Adafactor cannot be used under ZeRO"):
        check(world, tmp_path, *adafactor)


def test_an_optimizer_for_matrices_is_accepted_without_zero(world, tmp_path):
    check(world, tmp_path, "optimizer._target_=torch.optim.Muon", "~optimizer.betas", "optimizer.eps=1e-7")


@pytest.mark.parametrize("key", ["output_root", "encode.folder"])
def test_a_place_where_no_folder_can_be_made_is_refused_by_its_key(world: Path, tmp_path: Path, key: str) -> None:
    """Root may write everywhere by its rights, but not in /proc."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    for place, said in (
        (tmp_path / "file", "is no folder that can be written"),
        (tmp_path / "file" / "below", "is no folder that can be written"),
        (Path("/proc/nope"), "/proc is no folder that can be written"),
        (tmp_path / "link" / "below", "link is a link to .*unmounted"),
    ):
        with pytest.raises(ConfigError, match=rf"^{re.escape(key)}={place}: .*{said}.* another {re.escape(key)}\."):
            check(world, tmp_path, "encode=cached", f"{key}={place}", *encode_elsewhere(key, tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def encode_elsewhere(key: str, tmp_path: Path) -> list[str]:
    """The encoded cache lies below ``output_root`` unless something else is said."""
    return [f"encode.folder={tmp_path / 'encoded'}"] if key == "output_root" else []


def test_the_encode_verb_refuses_such_a_place_before_it_starts(world: Path, tmp_path: Path, no_weights: None) -> None:
    overrides = ["encode=cached", "encode.folder=/proc/nope"]
    with pytest.raises(ConfigError, match=r"^encode\.folder=/proc/nope"):
        encode(compose_config(smoke_overrides(world, tmp_path / "runs", "run", overrides)))
    assert not (tmp_path / "runs").exists()
