"""``physedit estimate``: what it tells of a config, and which knobs it turns."""

import json
import resource
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from physedit.train.cli import app
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.estimate import Estimate, estimate, useful_flops
from physedit.train.estimate_gpus import GPUS, find_gpu, fits, gpu_of_device, time_range
from physedit.train.estimate_search import EQUALLY_FAST, faster_products, knobs_to_turn, nearest_knob, search

RECIPE = ("experiment=pica100k_kontext", "launch.num_processes=8")
MOST_CPU_S = 20
PUBLISHED = {"kontext_pica100k": 11_901_408_320, "qwen_image_edit_pica100k": 20_430_401_088}


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


def test_search_lists_only_what_fits_fastest_first_and_equally_fast_by_cost() -> None:
    gpu = find_gpu("H100")
    searched = search(compose_config([*RECIPE, "launch=zero2"]), gpu)
    found = searched.found
    assert 0 < len(found) < searched.num_settings
    assert searched.nearest is None
    assert all(fits(each.estimate, gpu) for each in found)
    varied = {each.partition("=")[0] for entry in found for each in entry.overrides}
    assert varied == {
        "launch", "backbone.gradient_checkpointing", "backbone.encoders", "backbone.quantization", "micro_batch",
    }  # fmt: skip
    ranks = [each.rank for each in found]
    assert ranks == sorted(ranks)
    assert ranks[0] == 1
    for rank in set(ranks):
        group = [each for each in found if each.rank == rank]
        seconds = [each.time.sample_s for each in group]
        assert max(seconds) <= min(seconds) * (1 + EQUALLY_FAST)
        assert all(each.time.sample_s > max(seconds) for each in found if each.rank > rank)
        exact = ["backbone.quantization=null" in each.overrides for each in group]
        assert exact == sorted(exact, reverse=True)


def test_where_nothing_fits_search_names_the_nearest_and_the_knob_that_brings_it_there() -> None:
    config = compose_config([*RECIPE, "launch=none", "global_batch=8"])
    gpu = find_gpu("RTX4090")
    searched = search(config, gpu)
    assert not searched.found
    assert searched.nearest is not None
    assert not fits(searched.nearest.estimate, gpu)
    knob = nearest_knob(config, gpu)
    assert knob is not None
    assert knob.overrides == ("backbone.quantization=bnb_nf4",)
    assert searched.nearest.estimate.peak <= knob.peak < estimate(config).peak
    given = ["estimate", *RECIPE, "launch=none", "global_batch=8", "--gpu", "RTX4090", "--search"]
    printed = CliRunner().invoke(app, given).stdout
    assert "none of" in printed
    assert "nearest, with" in printed
    assert "of one change, the nearest: backbone.quantization=bnb_nf4" in printed


def test_a_larger_micro_batch_makes_widening_of_quantised_weights_cheaper() -> None:
    gpu = find_gpu("H100")
    base = (*RECIPE, "launch=zero2", "backbone.quantization=bnb_nf4")
    one, four = (time_range(estimated(*base, f"micro_batch={size}"), gpu).sample_s for size in (1, 4))
    exact = time_range(estimated(*RECIPE, "launch=zero2"), gpu).sample_s
    assert exact < four < one


def test_a_fused_update_takes_no_room_and_the_other_form_that_of_the_adapter() -> None:
    alone = (*RECIPE[:1], "launch=none", "global_batch=2")
    fused = estimated(*alone)
    whole = fused.rows["adapter"]
    assert estimated(*alone, "+optimizer.foreach=true").phases["update"] - fused.phases["update"] == whole
    assert estimated(*alone, "+optimizer.fused=true").phases == fused.phases


@pytest.mark.parametrize("backbone", ["toy", "toy_qwen_image_edit"])
def test_useful_operations_are_a_samples_and_none_is_counted_twice(backbone: str) -> None:
    base = ("experiment=smoke", f"backbone={backbone}", "global_batch=4")
    plain, recomputed = estimated(*base, "micro_batch=1"), estimated(
        *base, "micro_batch=1", "backbone.gradient_checkpointing=true"
    )  # fmt: skip
    useful = useful_flops(compose_config([*base, "micro_batch=1"]))
    # Of seven products of attention one is done twice.
    assert 6 / 7 * plain.step.flops < useful < plain.step.flops < recomputed.step.flops
    assert useful_flops(compose_config([*base, "micro_batch=1", "backbone.gradient_checkpointing=true"])) == useful
    assert useful_flops(compose_config([*base, "micro_batch=4"])) == pytest.approx(useful, rel=1e-9)


def test_float32_products_of_the_adapter_count_at_their_own_rate() -> None:
    gpu = find_gpu("H100")
    exact = (*RECIPE, "launch=zero2", "adapter.compute_dtype=float32")
    plain, coarse = estimated(*exact), estimated(*exact, "float32_matmul_precision=high")
    saved = plain.step.slow_flops * (1 / 66.9e12 - 1 / 494.7e12) * plain.accumulation / 0.6
    assert time_range(plain, gpu).fast_s - time_range(coarse, gpu).fast_s == pytest.approx(saved)
    rounded = estimated(*RECIPE, "launch=zero2")
    assert (rounded.step.slow_flops, rounded.step.flops) == (0, plain.step.flops)
    saved = plain.step.slow_flops * (1 / 66.9e12 - 1 / 989.4e12) * plain.accumulation / 0.6
    assert time_range(plain, gpu).fast_s - time_range(rounded, gpu).fast_s == pytest.approx(saved)
    assert {name for name, size in rounded.rows.items() if size != plain.rows[name]} == {"activations"}


def test_products_that_could_be_rounded_are_told_of() -> None:
    gpu = find_gpu("H100")
    exact = (*RECIPE, "launch=zero2", "adapter.compute_dtype=float32")
    faster = faster_products(compose_config(exact), gpu)
    assert faster is not None
    rounded = estimated(*RECIPE, "launch=zero2")
    assert faster.overrides == ("adapter.compute_dtype=bfloat16",)
    assert (faster.peak, faster.time) == (rounded.peak, time_range(rounded, gpu))
    assert faster_products(compose_config([*RECIPE, "launch=zero2"]), gpu) is None
    dora = faster_products(compose_config([*exact, "adapter.use_dora=true"]), gpu)
    assert dora is not None
    assert dora.overrides == ("float32_matmul_precision=high",)
    assert faster_products(compose_config([*exact, "backbone.dtype=float32"]), gpu) is None
    printed = CliRunner().invoke(app, ["estimate", *exact, "--gpu", "H100"]).stdout
    assert f"{faster.peak / 2**30:.2f} GiB with adapter.compute_dtype=bfloat16, which rounds the products" in printed
    turns = knobs_to_turn(compose_config([*exact, "backbone.gradient_checkpointing=false"]), gpu)
    assert turns[0].overrides == ("adapter.compute_dtype=bfloat16",)


def test_launches_exchange_what_they_must() -> None:
    found = {name: estimated(*RECIPE, f"launch={name}") for name in ("ddp", "zero1", "zero2", "zero3")}
    turn = 4 * found["ddp"].adapter.num_parameters * 7 // 8
    accumulation = found["ddp"].accumulation
    assert accumulation == 4
    assert {name: round(each.exchanged / turn) for name, each in found.items()} == {
        "ddp": 2, "zero1": 2, "zero2": accumulation + 1, "zero3": accumulation,
    }  # fmt: skip
    assert estimated("experiment=smoke").exchanged == 0


def test_cards_are_known_by_the_names_of_their_drivers() -> None:
    assert {
        device: gpu_of_device(device)
        for device in (
            "NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA RTX A6000", "NVIDIA H100 80GB HBM3",
            "NVIDIA H100 PCIe", "NVIDIA H200", "NVIDIA L40S", "NVIDIA GeForce RTX 4090", "NVIDIA H200 NVL", "Tesla T4",
        )
    } == {
        "NVIDIA A100-SXM4-40GB": "A100-40GB", "NVIDIA A100 80GB PCIe": "A100-80GB", "NVIDIA RTX A6000": "A6000",
        "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 PCIe": "H100-PCIe", "NVIDIA H200": "H200", "NVIDIA L40S": "L40S",
        "NVIDIA GeForce RTX 4090": "RTX4090", "NVIDIA H200 NVL": None, "Tesla T4": None,
    }  # fmt: skip
    assert all(gpu.float_tflops <= gpu.tf32_tflops < gpu.tensor_tflops for gpu in GPUS.values())


@pytest.mark.parametrize("experiment", PUBLISHED)
def test_a_recipe_is_estimated_within_seconds_of_one_core_and_without_a_network(experiment: str) -> None:
    asked = ["estimate", f"experiment={experiment}", "launch=zero2", "launch.num_processes=8", "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # No socket can be made: whoever looks a name up or connects fails.
    closed = "import socket; socket.socket.connect = socket.getaddrinfo = None"
    code = f"{closed}; from physedit.train.cli import app; app({asked!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    assert found["num_base"] == PUBLISHED[experiment]
    assert found["placement"]["num_processes"] == 8
    # Of the processor: waiting beside other work is not the command's own.
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < MOST_CPU_S


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
