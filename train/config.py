"""The typed schema of a run.

Yaml below ``conf/`` holds choices; this file says which keys exist, their types and what they mean.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

CONF_FOLDER = Path(__file__).resolve().parent.parent / "conf"


class ConfigError(ValueError):
    """The configuration of a run cannot be used; the message is one paragraph for the user."""


@dataclass
class AdapterConfig:
    """LoRA adapter on the denoiser."""

    rank: int = 16
    """Inner size of the two matrices."""
    alpha: float | None = None
    """Strength; the update is scaled by alpha / rank. None means alpha = rank."""
    dropout: float = 0.0
    """Share of each adapted layer's inputs that the adapter does not see in training; off in evaluations."""
    use_dora: bool = False
    """DoRA: learn the length of every row of the adapted weights too. Slower, and takes more memory."""
    use_rslora: bool = False
    """rsLoRA: scale the update by alpha / sqrt(rank) instead."""
    compute_dtype: str = "float32"
    """What the adapter multiplies in: float32, or bfloat16 as under autocast, which is faster and keeps less for the
    backward pass. Its weights and their updates are float32 all the same."""
    preset: str | None = "attention_mlp"
    """Which linear layers: attention, attention_mlp, image_stream or all_linear. None when targets are given."""
    targets: list[str] | None = None
    """Regular expressions over module names, instead of a preset."""


@dataclass
class CheckpointConfig:
    """When checkpoints are written and how many are kept. The last step and every evaluated step are saved."""

    every: int = 0
    """Save every so many optimizer steps; 0 means only at evaluations, at the end and on SIGTERM."""
    keep: int = 3
    """How many of the newest checkpoints stay; the best ones stay beside them."""
    keep_best: int = 1
    """How many of the best checkpoints by best_metric always stay, at least 1."""
    upload_to: str | None = None
    """Copy each checkpoint there in the background: hf://USER/REPO, or a URL that fsspec knows; null means nowhere."""


@dataclass
class LevelConfig:
    """Share of each prompt level among training samples; any non-negative numbers with a positive sum."""

    superficial: float = 1.0
    intermediate: float = 0.0
    explicit: float = 0.0
    mode: str = "draw"
    """draw: each sample gets one level, drawn in proportion. each: an epoch has every row once at each level."""


@dataclass
class OrderConfig:
    """Which samples follow each other."""

    balance: str = "none"
    """none: an epoch has every row once. law: laws take turns and are shown equally often; each has its own epochs."""


@dataclass
class EncodeConfig:
    """Where a training step gets encoded pictures and instructions from: an option of conf/encode."""

    mode: str = "live"
    """live: the encoders, in each step. cached: files that hold every row encoded."""
    folder: str | None = None
    """Of the encoded cache, which runs may share; all processes of a run must see the same one."""
    text: str | None = None
    """cached: instructions are in the cache too. live: they are encoded in each step."""
    write_missing: bool | None = None
    """Encode rows that the cache lacks before training; false refuses to train then."""


@dataclass
class ScenesConfig:
    """The embedded world that the ``scenes`` options of data and eval read."""

    folder: str = "data/scenes"
    """Where it lies."""
    write: bool = False
    """Write it before the run if the folder does not exist; a folder with another world is refused."""
    num_train: int = 2500
    """Training pairs."""
    num_benchmark: int = 150
    """Benchmark scenes; their seeds never meet those of the training pairs."""
    seed: int = 0
    """Seed of the world."""


@dataclass
class PicaBenchConfig:
    """PICABench, as the ``picabench`` options of eval read it."""

    benchmark: str = "Andrew613/PICABench"
    """A data set on the hub, or a folder, a parquet file or an official meta_info.json of this machine."""
    revision: str | None = "main"
    """Of a data set on the hub: a commit hash, or a tag or branch that may move; the manifest tells the commit."""
    level: str = "superficial"
    """Which instructions: superficial, intermediate or explicit."""


@dataclass
class SlurmConfig:
    """What launch=slurm asks of SLURM; null leaves the cluster's default."""

    profile: str = "zero2"
    """How the job starts its processes: a file of launch/accelerate, by its name."""
    nodes: int = 1
    """Nodes of the job."""
    gpus_per_node: int = 8
    """GPUs of each; 0 asks for none."""
    processes_per_node: int | None = None
    """Ranks on each node; null means one per GPU."""
    time: str | None = None
    """Limit, as 24:00:00."""
    partition: str | None = None
    """Where to run."""
    account: str | None = None
    """Whom to charge."""
    qos: str | None = None
    """Quality of service."""
    cpus_per_task: int | None = None
    """CPU cores of each node."""
    mem: str | None = None
    """Memory of each node, as 400G."""
    requeue: bool = True
    """Submit the job again when it saved and stopped because its time was nearly over."""
    signal_s: int = 600
    """Seconds before the time is over at which the run is told to save and stop; 0 means never."""
    setup: list[str] = field(default_factory=list)
    """Shell lines before the run, such as: module load cuda."""
    extra: list[str] = field(default_factory=list)
    """Further options of sbatch, such as ["--constraint=a100"]."""
    trials: str | None = None
    """A text file with the overrides of one trial a line: a sweep, as an array of jobs with one launcher each."""
    max_parallel: int | None = None
    """How many trials run at once."""


@dataclass
class LaunchConfig:
    """How the processes of a run are started: an option of conf/launch. The run itself does not depend on it."""

    kind: str = "none"
    """none: in this process. local: with accelerate on this machine. slurm: as a job."""
    profile: str | None = None
    """A file of launch/accelerate by its name, or the path of one of your own."""
    device: str = "any"
    """What the profile's processes compute on: cuda, cpu or any."""
    num_processes: int | None = None
    """Over all machines; null means one per GPU."""
    num_machines: int = 1
    """Machines, each of which is given this command with its own machine_rank."""
    machine_rank: int = 0
    """Which of them this is."""
    main_process_ip: str | None = None
    """Where the machines meet: a name or address of machine 0."""
    main_process_port: int = 0
    """And the port; 0 takes a free one, on one machine."""
    rank_logs: bool = False
    """Also write what each rank says to files of its own in RUN/launch."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the processes: +launch.env.NCCL_DEBUG=INFO adds one."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """For launch=slurm."""


@dataclass
class TrainConfig:
    """One training run. Component nodes (with ``_target_``) are checked against their class's signature."""

    run_name: str = MISSING
    """Names the run folder below ``output_root``."""
    output_root: str = "runs"
    """Folder of all run folders, and of the base evaluations they share."""
    resume: str = "auto"
    """auto: go on from the newest complete checkpoint if there is one. never: refuse an existing run folder."""
    seed: int = 0
    """Decides the adapter's start, the order of the samples, their prompt levels and their noise."""
    num_steps: int = MISSING
    """Optimizer steps."""
    global_batch: int = MISSING
    """Samples an optimizer step sees over all processes and accumulation steps."""
    micro_batch: int = MISSING
    """Samples a process sends through the denoiser at once."""
    num_workers: int = 0
    """Loader processes per training process."""
    device: str = "auto"
    """auto (CUDA if there is one), cpu or cuda."""
    num_threads: int | None = None
    """CPU threads of torch per process; null leaves torch's own choice."""
    float32_matmul_precision: str = "highest"
    """What products of float32 matrices, such as the adapter's, may be rounded to on a GPU's tensor cores: highest
    (nothing), high (TF32) or medium (bfloat16); ``torch.set_float32_matmul_precision``."""
    max_grad_norm: float | None = 1.0
    """Clip the global gradient norm to this; null switches clipping off."""
    ema_decay: float | None = None
    """Keep an exponential moving average of the adapter, evaluate and export it; null means none."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl; the loss is the mean since the last line."""
    best_metric: str | None = None
    """The metric whose tuned value names the best checkpoint, such as scenes/physics_acc; null: the newest."""
    best_psnr_floor_db: float | None = None
    """Steps whose PSNR (HOOK/psnr of best_metric's hook) is lower cannot be the best; null means no floor."""
    eval_failures: str = "continue"
    """continue: a hook that fails marks its result failed and training goes on. stop: it ends the run."""
    collective_timeout_s: int = 7200
    """How long ranks wait in one collective of a step; evaluations may take longer, for they wait in none."""
    levels: LevelConfig = field(default_factory=LevelConfig)
    """How often each prompt level is shown."""
    order: OrderConfig = field(default_factory=OrderConfig)
    """Which samples follow each other."""
    max_dropped_share: float = 0.01
    """Stop if more than this share of the rows cannot be used (dropped.jsonl names them); 0 stops at the first."""
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    """What trains."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """When it is saved."""
    scenes: ScenesConfig = field(default_factory=ScenesConfig)
    """The embedded world, for runs that use it."""
    picabench: PicaBenchConfig = field(default_factory=PicaBenchConfig)
    """PICABench, for evaluations that use it."""
    judge: Any = None
    """Who answers PICABench's questions: an option of conf/judge. The embedded world has its own."""
    backbone: Any = MISSING
    """The editor: an option of conf/backbone."""
    data: Any = MISSING
    """The edit pairs: an option of conf/data."""
    encode: EncodeConfig = field(default_factory=EncodeConfig)
    """Encoded in each step, or once: an option of conf/encode."""
    objective: Any = MISSING
    """The loss: an option of conf/objective."""
    optimizer: Any = MISSING
    """An option of conf/optimizer, or any class of torch.optim."""
    schedule: Any = MISSING
    """The learning rate's course: an option of conf/schedule."""
    tracker: Any = MISSING
    """A view of the run beside its files: an option of conf/tracker."""
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    """How the processes are started: an option of conf/launch."""
    eval_steps: list[int] = field(default_factory=list)
    """Steps at which the hooks evaluate beside the start and the end; a hook's own cadence may say otherwise."""
    eval: dict[str, Any] = field(default_factory=dict)
    """Evaluation hooks by name: options of conf/eval, several as eval=[a,b]."""


def options(group: str) -> list[str]:
    """Returns the names of the shipped options of a config group."""
    return sorted(path.stem for path in (CONF_FOLDER / group).glob("*.yaml"))


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns `` Did you mean X?`` for a near match, else an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""


def one_line(text: str) -> str:
    """Returns ``text`` with its line breaks folded into blanks."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
