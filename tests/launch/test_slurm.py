"""Batch scripts: golden texts that bash takes, and what they do when time runs out."""

import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from physedit.launch.plan import LaunchError, Run
from physedit.launch.slurm import SlurmJob, Trial, plan_slurm, seconds_of

GOLDEN = Path(__file__).parent.parent / "golden" / "sbatch"
RUN = Run(
    folder=Path("runs/a b"),
    overrides=("experiment=pica100k_kontext", "run_name=a b"),
    options=(),
    command="physedit train experiment=pica100k_kontext 'run_name=a b' launch=slurm",
    config="run_name: a b\n",
    python="/venv/bin/python",
)
JOB = SlurmJob(
    profile="zero2", nodes=1, gpus_per_node=8, processes_per_node=8, time="24:00:00", partition="gpu", account="lab",
    qos=None, cpus_per_task=64, mem=None, requeue=True, signal_s=600, setup=("module load cuda",),
    extra=("--constraint=a100",), max_parallel=2,
)  # fmt: skip
TRIALS = (Trial(("optimizer.lr=1e-4", "run_name=low")), Trial(("optimizer.lr=1e-3", "run_name=it's high")))
CASES: dict[str, tuple[SlurmJob, tuple[Trial, ...]]] = {
    "one_node": (JOB, ()),
    "many_nodes": (replace(JOB, nodes=4, requeue=False), ()),
    "sweep_array": (JOB, TRIALS),
}


def script(job: SlurmJob, trials: tuple[Trial, ...] = (), run: Run = RUN, folder: Path = Path("/work dir")) -> str:
    plan = plan_slurm(job, run, {"NCCL_DEBUG": "INFO"}, trials=trials, working_folder=folder)
    path = run.folder / "launch" / "job.sbatch"
    assert plan.argv == ("sbatch", str(path))
    assert plan.files[run.folder / "launch" / "config.yaml"] == run.config
    return plan.files[path]


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_golden_one_and_bash_takes_it(name: str):
    text = script(*CASES[name])
    golden = GOLDEN / f"{name}.sbatch"
    if os.environ.get("PHYSEDIT_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    subprocess.run(["bash", "-n", str(golden)], check=True)
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert text.splitlines()[1 : 1 + len(directives)] == directives  # sbatch stops reading at the first command
    assert all(re.match(r"#SBATCH --[\w-]+(=(\"[^\"]+\"|\S+))?$", line) for line in directives)


def test_values_that_break_a_directive_are_refused():
    with pytest.raises(LaunchError, match="partition"):
        script(replace(JOB, partition="gpu\nrm"))
    with pytest.raises(LaunchError, match="constraint"):
        script(replace(JOB, extra=("constraint=a100",)))
    with pytest.raises(LaunchError, match="nodes=2"):
        script(replace(JOB, nodes=2), TRIALS)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400), ("90:30", 5430), ("24:00:00", 86400), ("1-0", 86400), ("1-02:30", 95400), ("1-02:30:05", 95405),
        ("0", 0), ("UNLIMITED", 0), ("infinite", 0), ("banana", None), ("", None), ("1-", None), ("1:2:3:4", None),
        ("-5", None), ("1.5", None), ("24:00:00\n", None),
    ],
)  # fmt: skip
def test_time_limits_are_read_as_sbatch_does(time: str, seconds: int | None):
    assert seconds_of(time) == seconds


def test_a_time_that_is_none_or_over_before_the_run_may_train_is_refused():
    with pytest.raises(LaunchError, match=r"time=banana is no time limit"):
        script(replace(JOB, time="banana"))
    with pytest.raises(LaunchError, match=r"time=00:05:00 is 300 s, .*signal_s=300"):
        script(replace(JOB, time="00:05:00", signal_s=300))
    for job in (replace(JOB, time="00:05:00", signal_s=299), replace(JOB, time="0"), replace(JOB, time=None)):
        assert "#SBATCH --signal=B:USR2@" in script(job)


STUB = """#!/bin/bash
# Stands in for the run: saves on SIGUSR2 and ends with 143, as `physedit train launch=NAME` does.
printf '%s\\n' "$@" > "$STUB_FOLDER/arguments"
trap 'echo saved > "$STUB_FOLDER/saved"; exit 143' USR2
touch "$STUB_FOLDER/ready"
while [ ! -e "$STUB_FOLDER/finish" ]; do sleep 0.05; done
exit 7
"""


def submitted(tmp_path: Path, name: str, **environment: str) -> "subprocess.Popen[bytes]":
    """Runs a script as SLURM would, with stand-ins for the run, for scontrol and for srun."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool, text in {
        "python": STUB,
        "scontrol": '#!/bin/bash\n[ "$1" = show ] && echo node0 || echo "$@" > "$STUB_FOLDER/requeued"\n',
        "srun": '#!/bin/bash\necho "$1 $2 $3" > "$STUB_FOLDER/srun"; shift 3; exec "$@"\n',
    }.items():
        (tools / tool).write_text(text)
        (tools / tool).chmod(0o755)
    job, trials = CASES[name]
    run = replace(RUN, python=str(tools / "python"))
    path = tmp_path / "job.sbatch"
    path.write_text(script(replace(job, setup=()), trials, run, tmp_path))
    process = subprocess.Popen(
        ["bash", str(path)],
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "STUB_FOLDER": str(tmp_path)} | environment,
    )
    deadline = time.monotonic() + 20
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def test_a_job_whose_time_is_nearly_over_saves_and_is_requeued(tmp_path: Path):
    process = submitted(tmp_path, "one_node", SLURM_JOB_ID="42")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(20) == 0
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"


def test_a_job_that_is_cancelled_saves_and_is_not_requeued(tmp_path: Path):
    process = submitted(tmp_path, "one_node", SLURM_JOB_ID="42")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "requeued").exists()


def test_a_job_that_fails_is_not_requeued_and_keeps_its_exit_code(tmp_path: Path):
    process = submitted(tmp_path, "one_node", SLURM_JOB_ID="42")
    (tmp_path / "finish").touch()
    assert process.wait(20) == 7
    assert not (tmp_path / "requeued").exists()


def test_a_trial_gets_its_overrides_after_those_of_all_and_requeues_itself_alone(tmp_path: Path):
    process = submitted(tmp_path, "sweep_array", SLURM_ARRAY_JOB_ID="42", SLURM_ARRAY_TASK_ID="1")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(20) == 0
    assert (tmp_path / "arguments").read_text().splitlines() == [
        "-m", "physedit.train", "experiment=pica100k_kontext", "run_name=a b",
        "optimizer.lr=1e-3", "run_name=it's high", "launch=zero2", "launch.num_processes=8",
    ]  # fmt: skip
    assert (tmp_path / "requeued").read_text() == "requeue 42_1\n"


def test_each_node_of_a_job_is_told_where_to_meet(tmp_path: Path):
    process = submitted(tmp_path, "many_nodes", SLURM_JOB_ID="31234", SLURM_JOB_NODELIST="node[0-3]", MASTER_ADDR="")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(20) == 143  # requeue=false
    assert (tmp_path / "srun").read_text() == "--kill-on-bad-exit=1 --ntasks-per-node=1 --cpus-per-task=64\n"
    assert (tmp_path / "arguments").read_text().splitlines()[4:] == [
        "launch=zero2", "launch.num_processes=32", "launch.num_machines=4",
        "launch.machine_rank=${oc.env:SLURM_NODEID}", "launch.main_process_ip=node0",
        "launch.main_process_port=21234",
    ]  # fmt: skip
