"""F10: what is built from a composed config is plain data, which every writer takes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from physedit.launch.plan import FOLDER
from physedit.train import sft
from physedit.train.engine import Arithmetic
from physedit.train.tracker import Wandb
from physedit.train.zero import config_of

LISTS = ("adapter.preset=null", "adapter.targets=['.*attn.to_q','.*attn.to_out.0']", "optimizer.betas=[0.8,0.9]")


class ReachedFirstStep(Exception):
    """Raised in place of the first step."""


def test_everything_that_is_handed_on_is_plain_before_the_first_step(run_smoke, monkeypatch, tmp_path: Path):
    shown: dict[str, Any] = {}

    def fit(trainer, events, start):
        (adapter,) = trainer.backbone.denoiser.peft_config.values()
        adapter.save_pretrained(str(tmp_path / "adapter"))
        shown["engine"] = asdict(trainer.engine.facts())
        raise ReachedFirstStep

    monkeypatch.setattr(sft, "fit", fit)
    monkeypatch.setattr(Wandb, "start", lambda self, folder, name, config: shown.update(tracker=config))
    monkeypatch.setattr(Wandb, "finish", lambda self, summary, exit_code: None)
    with pytest.raises(ReachedFirstStep):
        run_smoke("tracker=wandb", "checkpoint.every=4", *LISTS)
    tracked = json.loads(json.dumps(shown["tracker"]))
    assert tracked["adapter"]["targets"] == [".*attn.to_q", ".*attn.to_out.0"]
    assert tracked["optimizer"]["betas"] == [0.8, 0.9]
    assert json.loads(json.dumps(shown["engine"]))["optimizer"] == "AdamW"
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["r"] == 4
    for record in ("environment.json", "engine.json"):
        assert json.loads((tmp_path / "run" / record).read_text())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeeds_config_is_plain(stage: int):
    given = json.loads((FOLDER / "deepspeed" / f"zero{stage}.json").read_text())
    config = config_of(given, Arithmetic(micro_batch=2, accumulation=3, global_batch=24, max_grad_norm=0.5), 4)
    assert json.loads(json.dumps(config))["zero_optimization"]["stage"] == stage
