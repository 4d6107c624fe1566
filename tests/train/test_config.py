"""What a command line composes to, and what it is refused for."""

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from physedit.train.compose import compose_config
from physedit.train.config import CONF_FOLDER, ConfigError, options
from physedit.train.rules import batches_per_step

NEEDED = ("run_name=x", "num_steps=4", "global_batch=4", "micro_batch=2")


def test_every_experiment_composes():
    experiments = options("experiment")
    assert {"demo", "smoke", "pica100k_kontext"} <= set(experiments)
    for name in experiments:
        assert compose_config([f"experiment={name}"]).num_steps > 0


@pytest.mark.parametrize("group", ["backbone", "data", "objective", "optimizer", "schedule", "tracker", "eval"])
def test_every_option_of_a_group_composes(group):
    names = options(group)
    assert names
    for name in names:
        overrides = [*NEEDED, f"{group}={name}"]
        if name == "pairs":
            overrides += ["data.path=x", "data.source=a", "data.target=b", "data.instruction=c"]
        if name == "command":
            overrides += ["eval.command.command=[score]"]
        if name == "heldout_loss":
            overrides += ["data.split=train", "data.heldout_share=0.1"]
        config = compose_config(overrides)
        assert config.run_name == "x"


def test_every_yaml_names_its_command_or_is_a_component():
    files = sorted((CONF_FOLDER / "experiment").glob("*.yaml"))
    assert len(files) >= 3
    for path in files:
        assert f"experiment={path.stem}" in path.read_text(), f"{path.name} does not state its command"


REFUSED = [
    (["experiment=demo", "optimiser.lr=1"], ["optimiser.lr", "optimizer"]),
    (["experiment=demo", "+optimizer.lrr=1"], ["optimizer.lrr", "Did you mean lr?"]),
    (["experiment=demo", "optimizer.lrr=1"], ["optimizer.lrr", "Did you mean lr?"]),
    (["experiment=demo", "+adapter.rnk=1"], ["adapter.rnk", "Did you mean rank?"]),
    (["experiment=demo", "+extra=1"], ["extra"]),
    (["experiment=demo", "data=scenez"], ["data=scenez", "Did you mean scenes?"]),
    (["experiment=dmo"], ["experiment=dmo", "Did you mean demo?"]),
    (["num_steps=4", "run_name=x"], ["global_batch", "micro_batch"]),
    (["experiment=demo", "global_batch=7"], ["global_batch=7", "multiple of 8"]),
    (["experiment=demo", "micro_batch=0"], ["micro_batch=0"]),
    (["experiment=demo", "optimizer.lr=abc"], ["optimizer.lr", "abc"]),
    (["experiment=demo", "seed=None"], ["seed", "None"]),
    (["experiment=demo", "resume=maybe"], ["resume=maybe", "auto"]),
    (["experiment=demo", "adapter.targets=[x]"], ["adapter.preset", "adapter.targets"]),
    (["experiment=demo", "levels.superficial=-1"], ["levels"]),
    (["experiment=demo", "run_name=a/b"], ["run_name"]),
    (["experiment=demo", "eval.scenes.cadence.steps=[5000]"], ["eval.scenes.cadence.steps", "5000"]),
    (["experiment=demo", "ema_decay=1.5"], ["ema_decay"]),
    (["experiment=demo", "eval_steps=[5000]"], ["eval_steps", "5000"]),
    (["experiment=demo", "eval_steps=300"], ["eval_steps", "300"]),
    (["experiment=demo", "eval.scenes.cadence.steps=300"], ["cadence.steps", "300"]),
    (["experiment=demo", "eval.scenes.cadence.steps=[abc]"], ["cadence.steps[0]", "abc"]),
    (["experiment=demo", "eval.scenes.cadence.every=-3"], ["cadence.every"]),
    (["experiment=demo", "+eval.scenez.limit=5"], ["eval.scenez", "Did you mean scenes?"]),
    (["experiment=demo", "eval.limt=5"], ["eval.limt", "not a setting"]),
    (["experiment=demo", "eval=none", "best_metric=null", "eval.limit=5"], ["eval.limit", "not a setting"]),
    (
        ["experiment=demo", "eval=[scenes,picabench_quick]", "eval.level=explicit"],
        ["which of the evaluations", "eval.scenes.level=explicit or eval.picabench_quick.level=explicit"],
    ),
    (["experiment=demo", "eval=[scenes,picabench_quick]", "eval.per_law=5"], ["Write eval.picabench_quick.per_law=5."]),
    (["experiment=demo", "eval.limit=abc"], ["eval.scenes.limit", "abc"]),
    (["experiment=demo", "adapter.preset=atention"], ["adapter.preset=atention", "Did you mean attention?"]),
    (["experiment=demo", "adapter.dropout=1.0"], ["adapter.dropout=1.0", "below 1"]),
    (["experiment=demo", "adapter.dropout=abc"], ["adapter.dropout", "abc"]),
    (["experiment=demo", "backbone.dtype=float16"], ["backbone.dtype=float16", "bfloat16"]),
    (["experiment=demo", "backbone.compile_blocks=fast"], ["backbone.compile_blocks=fast", "null, inductor"]),
    (["experiment=demo", "backbone.compile_blocks=true"], ["backbone.compile_blocks=True", "aot_eager"]),
    (["experiment=demo", "max_grad_norm=0"], ["max_grad_norm=0"]),
    (["experiment=demo", "schedule.warmup_steps=-5"], ["schedule.warmup_steps=-5"]),
    (["experiment=demo", "checkpoint.keep=0"], ["checkpoint.keep=0"]),
    (["experiment=demo", "num_workers=-1"], ["num_workers=-1"]),
    (["experiment=demo", "scenes.num_train=0"], ["scenes.num_train=0"]),
    (["experiment=demo", "best_metric=scene/acc"], ["best_metric=scene/acc", "scenes"]),
    (["experiment=demo", "optimizer=null"], ["optimizer"]),
    (["experiment=demo", "~seed"], ["seed"]),
    (["experiment=demo", "optimizer.betas=0.9"], ["optimizer.betas"]),
    (["experiment=demo", "optimizer.betas=[0.9]"], ["optimizer.betas=[0.9] has 1 items, but 2 are expected"]),
    (["experiment=demo", "optimizer.betas=[0.9,0.99,0.9]"], ["optimizer.betas", "3 items, but 2"]),
    (["experiment=demo", "tracker._target_=physedit.train.tracker"], ["no class tracker"]),
    (["experiment=demo", "tracker._target_=physedit.train.checkpoint.save_file"], ["no class save_file"]),
    ([], ["No value for", "run_name"]),
    (["experiment=demo", "run_name=${nope}"], ["nope"]),
    (["experiment=demo", "run_name=' '"], ["run_name"]),
    (["experiment=demo", "optimizer.lr=nan"], ["optimizer.lr=nan"]),
    (["experiment=demo", "num_steps=99999999999999999999"], ["num_steps"]),
    (["experiment=demo", "num_workers=100000"], ["num_workers=100000"]),
    (["experiment=demo", "schedule.warmup_steps=[1]"], ["schedule.warmup_steps"]),
    (["experiment=demo", "eval.scenes.name=../x"], ["'../x'"]),
    (["experiment=smoke", "experiment=nope"], ["experiment=nope"]),
    (["experiment=demo", "optimizer._target_=os.system"], ["os.system", "allowed"]),
    (["experiment=demo", "optimizer._target_=torch.optim.Adamw"], ["Adamw"]),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED, ids=[" ".join(o) for o, _ in REFUSED])
def test_a_wrong_setting_is_refused_in_one_paragraph(overrides, words):
    with pytest.raises(ConfigError) as refused:
        compose_config(overrides)
    message = str(refused.value)
    assert "\n" not in message
    assert not overrides or "+" + overrides[-1] not in message, (
        "advice to add the misspelled key with + would make it worse"
    )
    for word in words:
        assert word in message


def test_an_experiment_runs_without_its_evaluation():
    assert compose_config(["experiment=demo", "eval=none", "best_metric=null"]).eval == {}


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["eval=picabench", "eval.per_law=20"], "picabench.per_law", 20),
        (["eval=picabench", "eval.level=explicit"], "picabench.level", "explicit"),
        (["eval.limit=3"], "scenes.limit", 3),
        (["eval.limit=3", "eval.scenes.limit=4"], "scenes.limit", 4),
        (["eval.scenes.limit=4", "eval.limit=3"], "scenes.limit", 3),
        (["eval.cadence.every=2"], "scenes.cadence.every", 2),
        (["eval=command", "eval.command.command=[score]", "eval.timeout_s=5.0"], "command.timeout_s", 5.0),
    ],
)
def test_a_setting_of_the_one_evaluation_needs_no_name(overrides: list[str], key: str, value: object) -> None:
    config = compose_config(["experiment=smoke", "eval=scenes", *overrides])
    assert OmegaConf.select(config.eval, key) == value


def test_a_hook_of_a_config_dir_may_be_named_or_not(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "mine.yaml").write_text(
        (CONF_FOLDER / "eval" / "heldout_loss.yaml").read_text().replace("heldout_loss", "mine")
        .replace("physedit.eval_hooks.mine", "physedit.eval_hooks.heldout_loss")
    )  # fmt: skip
    asked = ["experiment=smoke", "eval=mine", "data.split=train", "data.heldout_share=0.1"]
    for override in ("eval.num_items=7", "eval.mine.num_items=7"):
        assert compose_config([*asked, override], config_dir=tmp_path).eval.mine.num_items == 7


def test_the_quick_evaluation_is_the_full_one_but_for_what_makes_it_quick() -> None:
    chosen = compose_config(["experiment=smoke", "eval=[picabench,picabench_quick]", "checkpoint.every=3"]).eval
    full, quick = (OmegaConf.to_container(chosen[name], resolve=False) for name in ("picabench", "picabench_quick"))
    assert isinstance(full, dict)
    assert isinstance(quick, dict)
    assert {key for key in full | quick if full[key] != quick[key]} == {"name", "cadence", "per_law"}
    assert {**full["cadence"], "every": 3} == quick["cadence"]
    own = OmegaConf.load(CONF_FOLDER / "eval" / "picabench_quick.yaml")
    assert isinstance(own, DictConfig)
    assert set(own.picabench_quick) == {"name", "cadence", "per_law"}, "all else is the full one's"


def test_config_dir_adds_an_option(tmp_path: Path):
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "mine.yaml").write_text("_target_: torch.optim.SGD\nlr: 0.5\n")
    config = compose_config(["experiment=smoke", "optimizer=mine"], config_dir=tmp_path)
    assert OmegaConf.to_container(config.optimizer)["_target_"] == "torch.optim.SGD"


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 4), (2, 2), (4, 1)])
def test_accumulation_fills_the_global_batch(processes, accumulation):
    config = compose_config(["experiment=smoke", "global_batch=8", "micro_batch=2"])
    assert batches_per_step(config, processes) == accumulation


def test_a_batch_that_does_not_divide_over_processes_is_refused():
    config = compose_config(["experiment=smoke", "global_batch=8", "micro_batch=2"])
    with pytest.raises(ConfigError, match="multiple of 6"):
        batches_per_step(config, 3)
