"""Training with PICABench's hooks, on a benchmark of this machine and with a judge that needs no server."""

import json

import pytest

from physedit.train import preflight
from physedit.train.compose import compose_config

SMOKE = ("experiment=smoke", "tracker=none")
HOOKS = "eval=[scenes,picabench,picabench_quick]"


def test_full_quick_and_the_embedded_world_are_evaluated_in_one_run_at_their_own_steps(run_smoke, world):
    folder = run_smoke(
        HOOKS,
        f"picabench.benchmark={world / 'benchmark'}",
        "judge=pixel_rules",
        "checkpoint.every=4",
        "eval.scenes.num_steps=2",
        "eval.scenes.limit=2",
        "eval.picabench.num_steps=2",
        "eval.picabench.limit=3",
        "eval.picabench_quick.num_steps=2",
        "eval.picabench_quick.per_law=1",
    )
    steps = {name: sorted(path.name for path in (folder / "eval" / name).iterdir()) for name in ("picabench", "scenes")}
    assert steps["picabench"] == ["base", "input_copy", "step_00000008"]
    assert steps["scenes"] == ["base", "step_00000008"]
    quick = folder / "eval/picabench_quick"
    assert {path.name for path in quick.iterdir()} == {"base", "input_copy", "step_00000004", "step_00000008"}
    newest = json.loads((folder / "summary.json").read_text())["newest"]["metrics"]
    assert {"picabench/acc", "picabench/acc_item", "picabench/psnr", "picabench/psnr_512", "picabench_quick/acc"} <= (
        newest.keys()
    )
    report = json.loads((quick / "step_00000008/report.json").read_text())
    assert report["items"]["in_use"] == report["input_copy"]["picabench_quick/acc"]["n"] == 6  # laws of that world
    assert list(folder.parent.rglob("encoded/*/text/*/*.safetensors")), "what was encoded is kept for other runs"


@pytest.mark.parametrize(
    ("overrides", "hooks", "per_law"),
    [
        (["eval=picabench"], ["picabench"], [None]),
        (["eval=picabench", "eval.picabench.per_law=20"], ["picabench"], [20]),
        (["eval=[picabench_quick,picabench]", "judge=gpt5"], ["picabench", "picabench_quick"], [None, 20]),
        (
            ["eval=[scenes,picabench]", "judge=openai_compatible", "judge.model=m"],
            ["picabench", "scenes"],
            [None, None],
        ),
    ],
)
def test_evaluations_and_judges_compose(overrides, hooks, per_law):
    config = compose_config([*SMOKE, *overrides])
    assert sorted(config.eval) == hooks
    assert [config.eval[name].get("per_law") for name in hooks] == per_law
    found = config.eval.picabench
    assert (found.benchmark, found.revision, found.level) == ("Andrew613/PICABench", "main", "superficial")
    assert found.judge == config.judge
    assert (found.num_steps, found.guidance) == (None, None)


@pytest.mark.parametrize(
    ("backbone", "published"),
    [("flux_kontext", (28, 3.5)), ("qwen_image_edit", (50, 4.0)), ("qwen_image_edit_plus", (50, 4.0))],
)
def test_the_published_settings_are_the_backbones_own(backbone, published):
    config = compose_config([*SMOKE, f"backbone={backbone}"])
    assert (config.backbone.edit_steps, config.backbone.edit_guidance) == published


def test_a_benchmark_that_is_not_there_is_named_before_training(tmp_path):
    config = compose_config([
        *SMOKE, "eval=picabench", "judge=pixel_rules", f"output_root={tmp_path}", f"scenes.folder={tmp_path / 'world'}",
        f"picabench.benchmark={tmp_path / 'nowhere'}",
    ])  # fmt: skip
    with pytest.raises(ValueError, match=r"PICABench: .*nowhere does not exist\. Point it at"):
        preflight.check(config)


@pytest.mark.parametrize("backbone", ["random_tiny", "toy_qwen_image_edit"])
def test_edit_steps_out_of_range_are_refused_before_weights_are_read(backbone, tmp_path):
    config = compose_config([
        *SMOKE, f"backbone={backbone}", "backbone.edit_steps=0", f"output_root={tmp_path}",
        f"scenes.folder={tmp_path / 'world'}",
    ])  # fmt: skip
    with pytest.raises(ValueError, match=r"backbone\.edit_steps is 0"):
        preflight.check(config)
