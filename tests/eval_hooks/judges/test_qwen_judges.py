"""Qwen2.5-VL as a judge: served by transformers in a process of its own, and in this one."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.judges.judge import JudgeQuestion, JudgeRefusesAll, VerdictKind
from physedit.eval_hooks.judges.openai_compatible import OpenAICompatibleJudge
from physedit.eval_hooks.judges.qwen_local import QwenLocalJudge

SERVE = Path(__file__).parents[2] / "support" / "serve_vision_chat.py"
STARTS_WITHIN_S = 120
"""Importing and loading takes some ten seconds on an idle machine."""
PICTURE = torch.arange(3 * 96 * 128, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(3, 96, 128)
QUESTION = JudgeQuestion("Is the shadow there?", Box(0.0, 0.0, 512.0, 400.0))
NUM_TOKENS = 12


@dataclass(frozen=True)
class Served:
    """A running server: its address, and the model's name and folder."""

    base_url: str
    folder: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Starts ``transformers serve`` and ends it."""
    pytest.importorskip("fastapi")
    folder = tmp_path_factory.mktemp("served")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "log.txt").open("w") as log:
        command = [sys.executable, str(SERVE), str(folder / "tiny"), str(port)]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, folder / "log.txt")
        yield Served(f"http://127.0.0.1:{port}/v1", str(folder / "tiny"))
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Returns when a server answers."""
    end = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    raise TimeoutError(log.read_text())


@pytest.mark.slow
def test_a_served_model_answers_over_both_apis_as_it_does_in_process(served: Served) -> None:
    local = QwenLocalJudge(weights=served.folder, max_tokens=NUM_TOKENS, dtype="float32", device="cpu")
    expected = local.answer(PICTURE, QUESTION)
    over_chat = OpenAICompatibleJudge(
        model=served.folder, base_url=served.base_url, temperature=0.0, max_tokens=NUM_TOKENS, patience_s=30.0
    )
    assert expected.raw
    assert over_chat.answer(PICTURE, QUESTION) == expected
    assert over_chat.usage["models"] == {served.folder: 1}
    assert over_chat.usage["num_output_tokens"] == NUM_TOKENS
    over_responses = OpenAICompatibleJudge(
        model=served.folder, base_url=served.base_url, api="responses", max_tokens=NUM_TOKENS, patience_s=30.0
    )
    verdict = over_responses.answer(PICTURE, QUESTION)
    assert verdict.raw
    assert verdict.kind in (VerdictKind.YES, VerdictKind.NO, VerdictKind.UNPARSED)


@pytest.mark.parametrize("protocol", ["official", "strict"])
def test_a_model_in_process_answers_by_the_same_protocols(protocol: str) -> None:
    judge = QwenLocalJudge(weights="random_tiny", protocol=protocol, max_tokens=NUM_TOKENS, device="cpu")
    first, again = judge.answer(PICTURE, QUESTION), judge.answer(PICTURE, QUESTION)
    assert first == again
    assert first.raw
    assert judge.answer(PICTURE, JudgeQuestion("Is it a ball?", QUESTION.box)).raw != first.raw
    assert protocol in judge.judge_id
    assert (judge.num_askers, judge.usage) == (1, {})


def test_a_model_in_process_that_is_not_there_is_named() -> None:
    judge = QwenLocalJudge(weights="/no/such/model")
    with pytest.raises(JudgeRefusesAll, match="/no/such/model cannot be loaded"):
        judge.answer(PICTURE, QUESTION)
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        QwenLocalJudge(weights="random_tiny", dtype="int8")
