"""Training with a judge over the network that misbehaves."""

import json
import logging
from dataclasses import replace

from tests.support.judge_server import Reply, failing, judge_server
from tests.support.runs import adapter_bytes, metrics_of

from physedit.eval_hooks.judges import question_queue

HOOK = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=6", "eval_steps=[4]")


def judged_by(server, *settings: str) -> tuple[str, ...]:
    judge = "eval.scenes.judge"
    given = (f"base_url={server.base_url}", "model=seer", "patience_s=0.3", "api_key_env=MY_KEY", *settings)
    return (*HOOK, f"judge@{judge}=openai_compatible", *(f"{judge}.{setting}" for setting in given))


def test_e04_training_goes_on_past_a_judge_that_always_refuses(run_smoke, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-SECRET")
    plain = run_smoke(name="plain")
    monkeypatch.setattr(question_queue, "_FIRST_ALONE_S", 30.0)  # whatever else the machine does
    refusal = replace(failing(400, "At most 0 image(s)"), delay_s=2.0)  # until all questions have come
    with judge_server(always=refusal) as server:
        folder = run_smoke(*judged_by(server), name="refused")
    assert adapter_bytes(folder, 8) == adapter_bytes(plain, 8)
    failed = json.loads((folder / "summary.json").read_text())["failed_evaluations"]
    assert [each["step"] for each in failed] == [0, 4, 8]
    assert all("HTTP 400: At most 0 image(s)" in each["error"] for each in failed)
    assert len(server.asked) == 3  # one for each evaluation


def test_training_goes_on_past_an_outage_and_the_report_says_how_many_are_scored(
    run_smoke, tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", "sk-SECRET")
    with judge_server([Reply()] * 5, failing(503, "sk-SECRET: restarting")) as server:
        folder = run_smoke(*judged_by(server, "concurrency=1", "protocol=strict"), name="outage")
    assert not [line for line in metrics_of(folder) if "scenes/physics_acc" in line], "logged once, when all is scored"
    unjudged = json.loads((folder / "summary.json").read_text())["unjudged_evaluations"]
    assert [each["step"] for each in unjudged] == [0, 4, 8]
    assert "Questions scored: 5 of " in (folder / "eval/scenes/step_00000008/report.json").read_text()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if b"sk-SECRET" in path.read_bytes()]
    assert "sk-SECRET" not in caplog.text
