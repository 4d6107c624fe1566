"""A launch is a pure function of its settings: exact commands, environments and files."""

import json
from pathlib import Path

import pytest

from physedit.launch.plan import (
    COMMAND_VARIABLE,
    PROFILES,
    LaunchError,
    LaunchPlan,
    Machines,
    Run,
    find_profile,
    plan_local,
    without_launch,
)

RUN = Run(
    folder=Path("runs/a"),
    overrides=("experiment=demo", "run_name=a b"),
    options=("--config-dir", "/own"),
    command="physedit train experiment=demo 'run_name=a b' launch=zero2",
    config="run_name: a b\n",
    python="/venv/bin/python",
)


def planned(profile: str, machines: Machines, *, has_rank_logs: bool = False) -> LaunchPlan:
    return plan_local(find_profile(profile), machines, RUN, {"NAME": "value"}, has_rank_logs=has_rank_logs)


def test_one_machine():
    plan = planned("zero2", Machines(8))
    assert plan.argv == (
        "/venv/bin/python", "-m", "physedit.train.launcher",
        "--config_file", str(PROFILES / "zero2.yaml"),
        "--deepspeed_config_file", str(PROFILES.parent / "deepspeed" / "zero2.json"),
        "--num_processes", "8", "--num_machines", "1", "--main_process_port", "0",
        "-m", "physedit.train", "--config-dir", "/own", "experiment=demo", "run_name=a b", "launch=none",
    )  # fmt: skip
    assert plan.environment == {
        "PYTHONSAFEPATH": "1",
        "PET_SIGNALS_TO_HANDLE": "SIGQUIT",
        "NAME": "value",
        COMMAND_VARIABLE: RUN.command,
    }
    assert plan.files.keys() == {Path("runs/a/launch/config.yaml"), Path("runs/a/launch/command.sh")}
    assert plan.files[Path("runs/a/launch/config.yaml")] == RUN.config
    script = plan.files[Path("runs/a/launch/command.sh")]
    assert script.startswith(f"# {RUN.command}\nexport PYTHONSAFEPATH=1\n")
    assert script.endswith("'run_name=a b' launch=none\n")
    assert "writes runs/a/launch/command.sh" in plan.described()
    assert json.loads(json.dumps([plan.argv, dict(plan.environment)]))  # plain data


def test_several_machines_meet_over_c10d_and_only_the_first_writes():
    plan = planned("ddp", Machines(4, 2, 1, "node0", 29500), has_rank_logs=True)
    assert plan.argv[3:-6] == (
        "--config_file", str(PROFILES / "ddp.yaml"), "--num_processes", "4", "--num_machines", "2",
        "--main_process_port", "29500", "--machine_rank", "1", "--main_process_ip", "node0",
        "--rdzv_backend", "c10d", "--rdzv_conf", "is_host=false",
        "--tee", "3", "--log_dir", "runs/a/launch/machine_1", "-m",
    )  # fmt: skip
    assert not plan.files
    first = planned("ddp", Machines(4, 2, 0, "node0", 29500))
    assert "is_host=true" in first.argv
    assert first.files


def test_planning_writes_nothing_and_gives_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert planned("zero3", Machines(2)) == planned("zero3", Machines(2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("machines", "named"),
    [
        (Machines(0), "num_processes=0"),
        (Machines(5, 2, 0, "node0", 29500), "multiple of launch.num_machines=2"),
        (Machines(4, 2, 0, None, 29500), "main_process_ip"),
        (Machines(4, 2, 0, "node0", 0), "main_process_port"),
        (Machines(4, 2, 2, "node0", 29500), "between 0 and 1"),
        (Machines(2, main_process_port=65536), "main_process_port=65536 is no port"),
        (Machines(2, main_process_port=-5), "main_process_port=-5 is no port"),
    ],
)
def test_machines_that_cannot_work_together_are_refused(machines: Machines, named: str):
    with pytest.raises(LaunchError, match=named):
        planned("ddp", machines)


@pytest.mark.parametrize("port", [0, 1, 65535])
def test_any_port_that_there_is_can_be_asked_for(port: int):
    assert f"--main_process_port {port}" in " ".join(planned("ddp", Machines(2, main_process_port=port)).argv)


def test_what_chooses_the_launch_is_taken_out_and_nothing_else():
    given = ["experiment=demo", "launch=zero2", "launch.num_processes=8", "+launch.env.A=b", "launcher=x", "seed=1"]
    assert without_launch(given) == ("experiment=demo", "launcher=x", "seed=1")


def test_a_profile_of_ones_own_is_a_path(tmp_path: Path):
    own = tmp_path / "own.yaml"
    own.write_text("distributed_type: MULTI_GPU\n")
    assert find_profile(str(own)).file == own
    assert find_profile(str(own)).zero_stage == 0
    with pytest.raises(LaunchError, match="zero2"):
        find_profile("zero4")
    own.write_text("distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: lost.json\n")
    with pytest.raises(LaunchError, match=r"lost\.json"):
        find_profile(str(own))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"", "holds nothing"),
        (b"garbage", "holds str"),
        (b"- a\n", "holds list"),
        (b"a: [", "cannot be read as yaml"),
        (b"\xff", "cannot be read as yaml"),
        (b"num_processes: 2\n", "names no distributed_type, but the trainer knows NO, MULTI_GPU, MULTI_CPU, DEEPSPEED"),
        (b"distributed_type: FSDP\n", "names distributed_type FSDP"),
        (b"distributed_type: [1]\n", r"names distributed_type \[1\]"),
        (b"distributed_type: DEEPSPEED\ndeepspeed_config: 2\n", "deepspeed_config is 2"),
    ],
)
def test_a_profile_that_accelerate_or_the_trainer_would_not_take_is_refused(tmp_path: Path, text: bytes, named: str):
    own = tmp_path / "own.yaml"
    own.write_bytes(text)
    with pytest.raises(LaunchError, match=rf"own\.yaml.*{named}"):
        find_profile(str(own))


@pytest.mark.parametrize("engine", ["NO", '"NO"'])
def test_a_profile_of_one_process_is_taken_however_its_no_is_written(tmp_path: Path, engine: str):
    (tmp_path / "own.yaml").write_text(f"distributed_type: {engine}\n")
    assert find_profile(str(tmp_path / "own.yaml")).zero_stage == 0


@pytest.mark.parametrize("text", ["", "{}", '{"zero_optimization": {"stage": "auto"}}', '{"zero_optimization": 2}'])
def test_a_deepspeed_file_without_a_stage_is_refused(tmp_path: Path, text: str):
    deepspeed = tmp_path / "own.json"
    deepspeed.write_text(text)
    own = tmp_path / "own.yaml"
    own.write_text(f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: {deepspeed}\n")
    with pytest.raises(LaunchError, match=r"own\.json is no DeepSpeed file"):
        _ = find_profile(str(own)).zero_stage
