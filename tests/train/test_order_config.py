"""Order, levels, dropped share and mixtures on the command line."""

from pathlib import Path

import pytest

from physedit.data_loaders.mixture import Mixture
from physedit.data_loaders.scenes.write import ensure_world
from physedit.train import preflight
from physedit.train.build import build
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError

MIXED = (
    "experiment=smoke", "data=mixture", "+data@data.members.world=scenes", "+data@data.members.pica=pica100k",
    "+data.weights={world: 0.7, pica: 0.3}",
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "scenes"
    ensure_world(folder, num_train=48, num_benchmark=2, seed=7)
    return folder


REFUSED = [
    (["levels.mode=all"], ["levels.mode=all", "levels.mode=draw or levels.mode=each"]),
    (["order.balance=laws"], ["order.balance=laws", "order.balance=none or order.balance=law"]),
    (["order.balanse=law"], ["order.balanse", "Did you mean balance?"]),
    (["levels.mode=each", "levels.explicit=0.5"], ["unlike weights", "levels.mode=draw"]),
    (["max_dropped_share=1.5"], ["max_dropped_share=1.5", "from 0 to 1"]),
    (["max_dropped_share=-0.1"], ["max_dropped_share=-0.1"]),
    (["max_dropped_share=null"], ["max_dropped_share"]),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED, ids=[" ".join(o) for o, _ in REFUSED])
def test_a_wrong_setting_is_refused_in_one_paragraph(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_config(["experiment=smoke", *overrides])
    message = str(refused.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_each_takes_levels_of_one_weight() -> None:
    config = compose_config(["experiment=smoke", "levels.mode=each", "levels.explicit=1.0"])
    assert config.levels.mode == "each"


def test_a_mixture_composes_on_the_command_line_and_is_built(world: Path, tmp_path: Path) -> None:
    config = compose_config(
        [*MIXED, f"scenes.folder={world}", f"data.members.pica.path={world}/train", "data.members.pica.limit=5"]
    )
    mixture = build(config.data)
    assert isinstance(mixture, Mixture)
    assert [(m.name, m.num_rows, m.weight) for m in mixture.members] == [("world", 48, 0.7), ("pica", 5, 0.3)]


def test_a_mixture_composes_from_a_yaml_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text(
        "defaults: [mixture, pica100k@members.a, pairs@members.b, _self_]\n"
        "weights: {a: 0.7, b: 0.3}\n"
        "levels: {b: explicit}\n"
        "members: {b: {path: x, source: in, target: out, instruction: say, level: explicit}}\n"
    )
    config = compose_config(["experiment=smoke", "data=mine"], config_dir=tmp_path)
    assert config.data.members.a.path == "data/PICA-100K"
    assert config.data.members.b.instruction == "say"
    assert config.data.weights == {"a": 0.7, "b": 0.3}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["+data.members.pica.pathh=x"], ["data.members.pica.pathh", "Did you mean path?"]),
        (["+data@data.members.own=pairs"], ["data.members.own.path"]),
        (["+data@data.members.own=pairz"], ["pairz"]),
    ],
)
def test_a_wrong_member_is_refused_before_a_file_is_opened(more: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_config([*MIXED, *more])
    for word in words:
        assert word in str(refused.value)


def test_a_member_without_a_weight_is_refused_before_a_model_is_loaded(world: Path, tmp_path: Path) -> None:
    given = [*MIXED[:3], f"scenes.folder={world}", "scenes.write=false", f"output_root={tmp_path}", "tracker=none"]
    with pytest.raises(ConfigError, match=r"data: No weight for world\. Give each member one, such as weights\.world"):
        preflight.check(compose_config(given))


def test_members_of_a_world_that_is_yet_to_be_written_are_checked_later(tmp_path: Path) -> None:
    given = [*MIXED[:3], "+data.weights={world: 1}", f"scenes.folder={tmp_path}/absent", f"output_root={tmp_path}/runs"]
    preflight.check(compose_config([*given, "tracker=none"]))
