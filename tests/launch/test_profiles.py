"""The shipped profiles: accelerate's own parser takes them, they hold numbers, and conf/launch agrees with them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from omegaconf import OmegaConf

from physedit.launch.plan import PROFILES, find_profile, shipped_profiles
from physedit.train.compose import compose_config
from physedit.train.config import CONF_FOLDER, options

NAMES = (
    "cpu_ddp2", "cpu_zero2", "cpu_zero3", "ddp", "multinode_zero2", "single", "zero1", "zero2", "zero3",
    "zero3_offload",
)  # fmt: skip
STAGES = {
    "zero1": 1, "zero2": 2, "zero3": 3, "zero3_offload": 3, "multinode_zero2": 2, "cpu_zero2": 2, "cpu_zero3": 3,
}  # fmt: skip


def numbers(value: Any) -> list[Any]:
    return [leaf for item in value.values() for leaf in numbers(item)] if isinstance(value, dict) else [value]


def test_all_profiles_are_there_and_conf_offers_each():
    assert tuple(shipped_profiles()) == NAMES
    assert options("launch") == sorted([*NAMES, "none", "slurm"])


@pytest.mark.parametrize("name", NAMES)
def test_accelerate_reads_the_profile_as_it_is_meant(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(PROFILES.parent.parent)
    given = ["--config_file", f"launch/accelerate/{name}.yaml", "-m", "physedit.train", "experiment=demo"]
    args, defaults, from_file = _validate_launch_command(launch_command_parser().parse_args(given))
    assert isinstance(defaults, ClusterConfig)
    kind = "NO" if name == "single" else "MULTI_GPU" if "ddp" in name else "DEEPSPEED"
    assert defaults.distributed_type.value == kind
    assert (args.use_deepspeed, args.multi_gpu) == (kind == "DEEPSPEED", kind == "MULTI_GPU")
    assert not args.use_cpu  # true starts processes that each believe they are alone
    assert args.mixed_precision == "no"
    assert args.num_machines == (2 if name == "multinode_zero2" else 1)
    assert args.num_processes == {"single": 1, "multinode_zero2": 16}.get(name, 2 if "cpu" in name else 8)
    if kind == "DEEPSPEED":
        assert not from_file  # accelerate refuses mixed_precision beside a DeepSpeed file
        assert Path(args.deepspeed_config_file).is_file()
        assert args.deepspeed_multinode_launcher == "standard"
        assert str(args.zero3_init_flag) == "False"
    if name not in ("single", "multinode_zero2"):
        assert args.main_process_port == 0


@pytest.mark.parametrize("name", STAGES)
def test_deepspeed_files_hold_numbers_and_leave_the_arithmetic_to_the_run(name: str):
    profile = find_profile(name)
    assert profile.deepspeed_file is not None
    settings = json.loads(profile.deepspeed_file.read_text())
    zero = settings["zero_optimization"]
    assert profile.zero_stage == STAGES[name] == zero["stage"]
    assert "auto" not in numbers(settings)
    assert isinstance(zero["reduce_bucket_size"], int)
    if STAGES[name] == 3:
        assert isinstance(zero["stage3_prefetch_bucket_size"], int)
        assert zero["stage3_param_persistence_threshold"] == (0 if "cpu" in name else 100_000)
        assert zero["stage3_gather_16bit_weights_on_model_save"] is False
    else:
        assert isinstance(zero["allgather_bucket_size"], int)
    assert not {"optimizer", "scheduler", "gradient_accumulation_steps", "gradient_clipping"} & settings.keys()
    assert not any("batch_size" in key for key in settings)
    assert settings["bf16"] == settings["fp16"] == {"enabled": False}
    assert ("offload_param" in zero, "offload_optimizer" in zero) == (("offload" in name),) * 2


@pytest.mark.parametrize("name", NAMES)
def test_conf_agrees_with_the_profile_and_both_say_when_to_choose_it(name: str):
    launch = compose_config(["experiment=smoke", f"launch={name}"]).launch
    profile = yaml.safe_load((PROFILES / f"{name}.yaml").read_text())
    assert (launch.kind, launch.profile) == ("local", name)
    assert launch.num_processes in (None, profile["num_processes"])
    assert launch.num_machines == profile["num_machines"]
    assert launch.device == ("any" if name == "single" else "cpu" if "cpu" in name else "cuda")
    for folder in (PROFILES, CONF_FOLDER / "launch"):
        assert (folder / f"{name}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize("name", [name for name in NAMES if "cpu" in name])
def test_the_bare_line_in_a_profile_exports_what_conf_sets(name: str):
    env = OmegaConf.to_container(compose_config(["experiment=smoke", f"launch={name}"]).launch.env)
    assert isinstance(env, dict)
    comment = (PROFILES / f"{name}.yaml").read_text()
    exported = dict(re.findall(r"\b([A-Z_]{3,})=(\w+)", comment.split("accelerate launch")[0]))
    assert exported == {key: value for key, value in env.items() if key != "CUDA_VISIBLE_DEVICES"}


def test_several_machines_are_told_apart_by_names_that_users_know(monkeypatch: pytest.MonkeyPatch):
    for key, value in {"NNODES": "3", "NODE_RANK": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29999"}.items():
        monkeypatch.setenv(key, value)
    launch = compose_config(["experiment=smoke", "launch=multinode_zero2"]).launch
    found = (launch.num_machines, launch.machine_rank, launch.main_process_ip, launch.main_process_port)
    assert found == (3, 2, "node0", 29999)
