"""The parent's door: what it refuses, what a dry run shows, what it submits."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from physedit.launch.plan import LaunchError
from physedit.train import launching
from physedit.train.cli import app
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError

SMOKE = ("experiment=smoke", "tracker=none")


def planned(*overrides: str) -> launching.LaunchPlan:
    given = [*SMOKE, *overrides]
    config = compose_config(given)
    launching.check_launch(config)
    return launching.plan(config, given, "physedit train ...", None)


REFUSED = [
    (["launch.num_processes=2"], ["launch.num_processes=2", "no effect"]),
    (["launch=ddp", "launch.slurm.nodes=2"], ["launch.slurm.nodes=2", "no effect"]),
    (["launch=ddp", "launch.num_processes=2", "launch.machine_rank=1"], ["launch.machine_rank=1", "no effect"]),
    (["launch=slurm", "launch.num_processes=8"], ["launch.num_processes=8", "launch.slurm"]),
    (["launch=slurm", "launch.kind=other"], ["launch.kind=other"]),
    (["launch=slurm", "resume=never"], ["resume=never", "requeue"]),
    (["launch=slurm", "launch.slurm.signal_s=0"], ["requeue=true", "signal_s=0"]),
    (["launch=slurm", "launch.slurm.gpus_per_node=0"], ["processes_per_node=0"]),
    (["launch=slurm", "launch.slurm.max_parallel=2"], ["max_parallel", "trials"]),
    (["launch=slurm", "launch.slurm.gpus_per_node=8"], ["global_batch=4", "8 process"]),
    (["launch=slurm", "launch.slurm.profile=zero4"], ["zero4", "zero2"]),
    (["launch=zero2", "launch.num_processes=8"], ["global_batch=4", "8 process"]),
    (["launch=zero2", "launch.num_processes=8", "micro_batch=3"], ["global_batch=4", "8 process", "multiple of 24"]),
    (["launch=slurm", "launch.slurm.nodes=2", "micro_batch=3"], ["global_batch=4", "16 process", "multiple of 48"]),
    (["launch=zero2", "micro_batch=3"], ["global_batch=4", "micro_batch=3", "the processes of launch=zero2"]),
    (["launch=none", "micro_batch=3"], ["global_batch=4", "1 process", "multiple of 3"]),
    (["launch=cpu_ddp2", "launch.num_processes=0"], ["launch.num_processes=0 must be at least 1"]),
    (["launch=cpu_ddp2", "launch.num_processes=-1"], ["launch.num_processes=-1 must be at least 1"]),
    (["launch=ddp", "launch.num_machines=0"], ["launch.num_machines=0 must be at least 1"]),
    (["launch=cpu_ddp2", "device=cuda"], ["device=cuda", "cpu"]),
    (["launch=ddp", "launch.num_processes=2", "device=cpu"], ["device=cpu", "cuda"]),
    (["launch=multinode_zero2", "launch.num_processes=2"], ["main_process_ip"]),
    (["hydra.run.dir=x"], ["hydra.run.dir=x", "no effect", "one launcher per trial"]),
    (["hydra/launcher=joblib"], ["hydra/launcher=joblib", "no effect"]),
    (["optimizer.lr=1e-4,3e-4"], ["optimizer.lr=1e-4,3e-4", "one launcher per trial"]),
    (["launch.env={A:b}"], ["+launch.env."]),
    (
        [
            "launch=cpu_zero2",
            "optimizer._target_=torch.optim.Adafactor",
            "~optimizer.betas",
            "optimizer.eps=[null,1e-3]",
        ],
        ["optimizer._target_=torch.optim.Adafactor", "under ZeRO", "launch=ddp"],
    ),
]


@pytest.mark.parametrize(("overrides", "named"), REFUSED)
def test_launches_that_cannot_be_are_refused_with_key_and_remedy(overrides: list[str], named: list[str]):
    with pytest.raises((ConfigError, LaunchError)) as refused:
        planned(*overrides)
    for word in named:
        assert word in str(refused.value)


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK"])
def test_a_launcher_inside_a_launcher_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(variable, "0")
    with pytest.raises(ConfigError, match="Leave launch out"):
        planned("launch=cpu_ddp2")


def test_a_launch_is_refused_by_a_verb_that_starts_no_processes():
    done = CliRunner().invoke(app, ["encode", *SMOKE, "launch=cpu_ddp2"])
    assert isinstance(done.exception, ConfigError)
    assert "launch=cpu_ddp2 has no effect on `physedit encode`" in str(done.exception)


def test_multirun_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch):
    for flag in ("-m", "--multirun"):
        done = CliRunner().invoke(app, ["train", flag, *SMOKE])
        assert isinstance(done.exception, ConfigError)
        assert "one launcher per trial" in str(done.exception)


def test_without_a_number_there_is_a_process_for_each_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert "--num_processes 2 --num_machines 1" in " ".join(planned("launch=zero2").argv)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ConfigError, match="sees no GPU"):
        planned("launch=zero2")


def test_variables_are_added_to_those_of_the_launch():
    environment = planned("launch=cpu_zero2", "+launch.env.NCCL_DEBUG=INFO").environment
    wanted = {
        "NCCL_DEBUG": "INFO", "DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "ACCELERATE_USE_CPU": "false",
        "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1",
    }  # fmt: skip
    assert environment.items() >= wanted.items()


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path):
    given = [*SMOKE, f"output_root={tmp_path / 'runs'}", f"scenes.folder={tmp_path / 'scenes'}"]
    done = CliRunner().invoke(app, ["train", "--dry-run", *given, "launch=zero2", "launch.num_processes=2"])
    assert done.exit_code == 0, done.output
    last = "-m physedit.train " + " ".join(given) + " launch=none\n"
    assert last in done.output
    assert "export PYTHONSAFEPATH=1" in done.output
    assert f"writes {tmp_path}/runs/smoke/launch/command.sh" in done.output
    assert not list(tmp_path.iterdir())


def test_a_job_is_written_and_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.chdir(tmp_path)
    tools = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    given = [*SMOKE, "launch=slurm", "launch.slurm.gpus_per_node=2", "output_root=runs"]
    config = compose_config(given)
    plan = launching.plan(config, given, "physedit train ...", None)
    assert launching.start(config, plan) == launching.EXIT_NOT_SUBMITTED
    script = tmp_path / "runs/smoke/launch/job.sbatch"
    command = f"{sys.executable} -m physedit.train experiment=smoke tracker=none output_root=runs launch=zero2"
    assert command in script.read_text()

    tools.mkdir()
    (tools / "sbatch").write_text('#!/bin/bash\necho "Submitted $1"\nexit 3\n')
    (tools / "sbatch").chmod(0o755)
    assert launching.start(config, plan) == 3
    assert "Submitted runs/smoke/launch/job.sbatch" in capfd.readouterr().out
    assert compose_config([*SMOKE]).run_name == "smoke"


def test_what_a_launch_wrote_first_is_no_run_yet(tmp_path: Path):
    from physedit.train.run_folder import check_run_folder

    config = compose_config([*SMOKE, f"output_root={tmp_path}", "resume=never"])
    (tmp_path / "smoke" / "launch").mkdir(parents=True)
    check_run_folder(config)
    (tmp_path / "smoke" / "config.yaml").touch()
    with pytest.raises(ConfigError, match="resume=never"):
        check_run_folder(config)


def test_a_sweep_validates_every_trial_before_it_is_submitted(tmp_path: Path):
    file = tmp_path / "sweep.txt"
    overrides = ("launch=slurm", "launch.slurm.gpus_per_node=2", f"launch.slurm.trials={file}")
    file.write_text("# lr\noptimizer.lr=1e-4 run_name=low\n\noptimizer.lr=1e-3 'run_name=quite high'\n")
    (script,) = (text for path, text in planned(*overrides).files.items() if path.suffix == ".sbatch")
    assert "#SBATCH --array=0-1\n" in script
    assert "    1) trial=(optimizer.lr=1e-3 'run_name=quite high') ;;\n" in script
    for text, named in (
        ("optimizer.lr=1e-4\noptimizer.lr=1e-3\n", "line 2: run_name=smoke is taken"),
        ("run_name=a optimizer.lrr=1\n", "line 1: optimizer.lrr"),
        ("run_name=a launch=ddp\n", "line 1 sets launch"),
        ("\n", "no trial"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=named):
            planned(*overrides)


def test_a_file_of_trials_that_is_no_text_is_refused(tmp_path: Path):
    file = tmp_path / "sweep.txt"
    file.write_bytes("run_name=größe\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"trials=.*sweep\.txt cannot be read as UTF-8 text"):
        planned("launch=slurm", "launch.slurm.gpus_per_node=2", f"launch.slurm.trials={file}")


def test_an_active_run_is_not_started_again(tmp_path: Path):
    import fcntl

    given = [*SMOKE, "launch=cpu_ddp2", f"output_root={tmp_path}"]
    config = compose_config(given)
    (tmp_path / "smoke").mkdir()
    with (tmp_path / "smoke" / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="Another process"):
            launching.start(config, launching.plan(config, given, "physedit train ...", None))
    assert [path.name for path in (tmp_path / "smoke").iterdir()] == [".lock"]
