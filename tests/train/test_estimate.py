"""``physedit estimate``: what it tells of a config, and which knobs it turns."""

import json

import pytest
from typer.testing import CliRunner

from physedit.train.cli import app
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.estimate import Estimate, estimate
from physedit.train.estimate_gpus import find_gpu, fits, time_range
from physedit.train.estimate_search import knobs_to_turn, search

RECIPE = ("experiment=pica100k_kontext", "launch.num_processes=8")
GIB = 2**30


def estimated(*overrides: str) -> Estimate:
    return estimate(compose_config(overrides))


def test_the_recipe_of_the_paper_has_the_released_transformer_and_adds_up() -> None:
    found = estimated(*RECIPE, "launch=zero2")
    assert found.num_base == 11_901_408_320
    assert found.rows["base"] == 2 * found.num_base
    assert found.accumulation * found.micro_batch * 8 == 64
    assert sum(found.rows.values()) == found.peak == max(found.phases.values())
    assert found.rows["optimizer"] == 8 * found.adapter.num_parameters // 8
    assert found.checkpoint == 12 * found.adapter.num_parameters


def test_each_stage_of_zero_keeps_what_deepspeed_keeps() -> None:
    ddp, one, two, three = (estimated(*RECIPE, f"launch={name}").rows for name in ("ddp", "zero1", "zero2", "zero3"))
    adapter = ddp["adapter"]
    assert ddp["gradients"] == ddp["buckets"] == adapter
    assert ddp["optimizer"] == 2 * adapter
    assert one["gradients"] == adapter
    assert one["optimizer"] == two["optimizer"] == three["optimizer"] == 2 * adapter // 8
    assert one["adapter"] == two["adapter"] == adapter + adapter // 8
    assert two["gradients"] == three["gradients"] == adapter // 8
    assert three["base"] == ddp["base"] // 8
    offloaded = estimated(*RECIPE, "launch=zero3_offload")
    assert offloaded.rows["base"] == offloaded.rows["optimizer"] == offloaded.rows["gradients"] == 0
    assert offloaded.host > three["base"]


@pytest.mark.parametrize("backbone", ["toy", "toy_qwen_image_edit"])
def test_settings_move_what_they_name(backbone: str) -> None:
    base = ("experiment=smoke", f"backbone={backbone}", "global_batch=2", "micro_batch=2")
    plain = estimated(*base)
    assert estimated(*base, "ema_decay=0.9").rows["average"] == plain.rows["adapter"]
    assert estimated(*base, "backbone.gradient_checkpointing=true").step.peak < plain.step.peak
    assert estimated(*base, "backbone.gradient_checkpointing=true").step.flops > plain.step.flops
    assert estimated(*base, "backbone.encoders=offload").rows.get("encoders", 0) <= plain.rows["encoders"]
    assert estimated(*base, "encode=cached").pair > 0 == plain.pair
    assert estimated(*base, "optimizer._target_=torch.optim.SGD", "~optimizer.betas", "~optimizer.eps").rows[
        "optimizer"
    ] == 0  # fmt: skip


def test_knobs_are_turned_until_the_run_fits() -> None:
    config = compose_config([*RECIPE, "launch=ddp", "backbone.gradient_checkpointing=false"])
    gpu = find_gpu("h100")
    assert not fits(estimate(config), gpu)
    turns = knobs_to_turn(config, gpu)
    assert turns[0].overrides == ("backbone.gradient_checkpointing=true",)
    assert [turn.is_enough for turn in turns] == [False] * (len(turns) - 1) + [True]


def test_search_lists_only_what_fits_fastest_first() -> None:
    gpu = find_gpu("H100")
    found = search(compose_config([*RECIPE, "launch=zero2"]), gpu)
    assert found
    assert all(fits(each.estimate, gpu) for each in found)
    speeds = [each.time.least_samples_s for each in found]
    assert speeds == sorted(speeds, reverse=True)


def test_a_faster_gpu_is_faster_and_the_range_is_one() -> None:
    found = estimated(*RECIPE, "launch=zero2")
    slow, fast = time_range(found, find_gpu("A100-80GB")), time_range(found, find_gpu("H200"))
    assert fast.fast_s < slow.fast_s < slow.slow_s


def test_the_command_prints_json_and_refuses_what_has_no_effect() -> None:
    runner = CliRunner()
    given = ["estimate", "experiment=smoke", "--json"]
    assert json.loads(runner.invoke(app, given).stdout)["num_base"] > 0
    assert isinstance(runner.invoke(app, ["estimate", "experiment=smoke", "--search"]).exception, ConfigError)
    with pytest.raises(ConfigError, match="Did you mean H100"):
        find_gpu("H10")
