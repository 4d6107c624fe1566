"""Whole runs with ``encode=cached``: the losses of ``encode=live``, evaluations that still edit, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.runs import adapter_bytes, metrics_of, physedit, smoke_overrides

from physedit.data_loaders import encoded, images
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError

LEVELS = ("levels.superficial=1.0", "levels.intermediate=1.0", "levels.explicit=1.0")
QWEN = (
    "backbone=qwen_image_edit", "backbone.weights=random_tiny", "backbone.dtype=float32", "backbone.area_px=4096",
    "backbone.gradient_checkpointing=false",
)  # fmt: skip
PLUS = ("backbone=qwen_image_edit_plus", *QWEN[1:], "backbone.vision_area_px=3136")
BACKBONES = {"flux_kontext": (), "qwen_image_edit": QWEN, "qwen_image_edit_plus": PLUS}
CACHED, TEXT_LIVE = ("encode=cached",), ("encode=cached", "encode.text=live")


@pytest.mark.parametrize("backbone", BACKBONES)
def test_cached_run_has_the_losses_and_the_adapter_of_the_live_one(
    backbone: str, run_smoke: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = (*BACKBONES[backbone], *LEVELS)
    live = run_smoke(*more, name="live")
    expected = metrics_of(live), adapter_bytes(live, 8)
    assert len({line["train/loss"] for line in expected[0]}) == 4
    filled = run_smoke(*more, *CACHED, name="filled")
    assert (metrics_of(filled), adapter_bytes(filled, 8)) == expected
    helped = run_smoke(*more, *TEXT_LIVE, "num_workers=1", name="helped")
    assert (metrics_of(helped), adapter_bytes(helped, 8)) == expected

    def decode(*_: object) -> None:
        raise AssertionError("a picture was decoded")

    monkeypatch.setattr(encoded, "decode_rgb", decode)
    monkeypatch.setattr(images, "decode_rgb", decode)
    monkeypatch.setattr("physedit.data_loaders.encoded_lookup.decode_pair", decode)
    reused = run_smoke(*more, *CACHED, "encode.write_missing=false", "backbone.encoders=absent", name="reused")
    assert (metrics_of(reused), adapter_bytes(reused, 8)) == expected


def test_run_with_evaluations_edits_as_the_live_one(run_smoke: Callable[..., Path]) -> None:
    more = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=3", "num_steps=2", "log_every=1")
    runs = [run_smoke(*more, *encode, name=name) for name, encode in (("live", ()), ("cached", CACHED))]
    live, cached = (json.loads((run / "summary.json").read_text()) for run in runs)
    assert live["newest"]["metrics"] == cached["newest"]["metrics"]
    assert metrics_of(runs[0]) == metrics_of(runs[1])


def test_run_may_go_on_with_the_cache_it_did_not_begin_with(run_smoke: Callable[..., Path]) -> None:
    more = ("checkpoint.every=4", "schedule=constant")
    whole = run_smoke(*more, name="whole")
    run_smoke(*more, "num_steps=4", name="parts")
    parts = run_smoke(*more, *CACHED, name="parts")
    assert adapter_bytes(parts, 8) == adapter_bytes(whole, 8)


def test_verb_fills_the_cache_and_counts(world: Path, tmp_path: Path) -> None:
    given = smoke_overrides(world, tmp_path, "any", LEVELS)
    first, second = (physedit("encode", *given, "--json") for _ in range(2))
    counts = [json.loads(done.stdout) for done in (first, second)]
    assert [(each["rows"], each["encoded"], each["reused"], each["dropped"]) for each in counts] == [
        (48, 48, 0, {}),
        (48, 0, 48, {}),
    ]
    assert counts[0]["bytes_written"] == counts[0]["bytes_in_use"] == counts[1]["bytes_in_use"] > 0
    assert counts[1]["bytes_written"] == 0
    assert "are needed and" in first.stderr
    assert not (tmp_path / "any").exists()


def test_verb_refuses_bad_input_with_exit_code_2(world: Path, tmp_path: Path) -> None:
    given = smoke_overrides(world, tmp_path, "any", ())
    live = physedit("encode", *given, "encode=live")
    assert (live.returncode, "encode=live was asked" in live.stderr) == (2, True)
    nowhere = physedit("encode", *given, "data.path=/nowhere")
    assert (nowhere.returncode, "/nowhere" in nowhere.stderr, "Traceback" in nowhere.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("encode.folder=x",), r"encode\.folder=x has no effect with encode=live"),
        (("encode.mode=cached",), r"No value for encode\.folder, encode\.text, encode\.write_missing"),
        (("encode=cached", "encode.text=warm"), r"encode\.text=warm is not known"),
        (("encode.mode=hot",), r"encode\.mode=hot is not known"),
        (("encode=cold",), r"encode=cold is not an option of encode.* Options: cached, live"),
        (("backbone.encoders=absent",), r"edits, evaluations and training encode their instructions as they go"),
        ((*TEXT_LIVE, "backbone.encoders=absent"), r"only training with encode=cached, filled before, does not"),
        ((*CACHED, "backbone.encoders=absent", "eval=scenes"), r"edits in its evaluations \(scenes\)"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose_config(["experiment=smoke", *overrides])
