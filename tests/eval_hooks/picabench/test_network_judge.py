"""A folder judged over the network: what fails, what is asked again, what is kept when judge or process die."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.judge_server import NO, YES, Reply, busy, failing, judge_server
from tests.support.judged_folder import by_question, judge_of, mend, write_folder
from tests.support.stand_ins import PaintingEditor, context_for, read_items

from physedit.eval_hooks.judges import question_queue
from physedit.eval_hooks.judges.judge import JudgeRefusesAll
from physedit.eval_hooks.metrics.accuracy import Accuracy
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.judging import (
    JudgeSettings,
    JudgingOutcome,
    TooManyUnanswered,
    count_verdicts,
    judge_folder,
)
from physedit.eval_hooks.picabench.measure import MeasuringRules, measure_folder, read_records

LENIENT = JudgeSettings(max_unanswered_share=0.9)


def accuracy(folder: Path, rules: MeasuringRules = MeasuringRules.PLAIN) -> tuple[float | None, int]:
    """The share of right answers, and of how many items."""
    measure_folder(folder, rules=rules)
    found = Accuracy().score(read_records(folder))
    return found.value, found.n


ODD = {
    "1.0": Reply(text="It is hard to say from this angle."),
    "3.0": Reply(text="The lighting seems plausible to me."),
    "5.0": Reply(text='{"answer": "Y'),
    "6.0": Reply(text='{"explanation": "yes"}'),
    "8.0": Reply(text='{"answer": 1, "explanation": "a number for a word"}'),
    "9.0": Reply(text=NO),
}


def test_e01_replies_that_cannot_be_parsed_are_left_out_and_listed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 10)
    with judge_server(always=by_question(ODD)) as server:
        judge_folder(folder, judge_of(server), settings=LENIENT)
    assert accuracy(folder) == (4 / 5, 5)
    unparsed = {line["index"]: line["raw"] for line in read_items(folder) if line["verdict"] == "unparsed"}
    assert unparsed == {int(name[0]): reply.text for name, reply in ODD.items() if name != "9.0"}


def test_e01_too_many_unparsed_replies_fail_the_evaluation_and_are_asked_again(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 10)
    with judge_server(always=by_question(ODD)) as server:
        with pytest.raises(TooManyUnanswered, match="5 of 10 questions"):
            judge_folder(folder, judge_of(server))
        mend(server, by_question({"9.0": Reply(text=NO)}))
        judge_folder(folder, judge_of(server))
    assert len(server.asked) == 5
    assert accuracy(folder) == (9 / 10, 10)


def test_officially_the_same_replies_are_wrong_and_kept(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 10)
    with judge_server(always=by_question(ODD)) as server:
        judge_folder(folder, judge_of(server, protocol="official"))
        judge_folder(folder, judge_of(server, protocol="official"))
    assert len(server.asked) == 10
    # "6.0" has no answer, but a yes somewhere in it
    assert accuracy(folder, MeasuringRules.OFFICIAL) == (5 / 10, 10)
    assert count_verdicts(folder) == {"yes": 5, "no": 1, "unparsed": 4, "refused": 0, "error": 0}


def test_e03_rate_limits_are_waited_for_and_every_question_is_scored(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 6)
    with judge_server([busy(0.4)] * 3) as server:
        outcome = judge_folder(folder, judge_of(server, concurrency=1))
    assert outcome == JudgingOutcome(6, 6, None)
    times = [asked.at_s for asked in server.asked]
    assert len(times) == 3 + 6
    assert all(later - sooner >= 0.4 for sooner, later in pairwise(times[:4]))


KILLED = """
import sys
from pathlib import Path
from physedit.eval_hooks.judges.openai_compatible import OpenAICompatibleJudge
from physedit.eval_hooks.picabench.judging import judge_folder
judge = OpenAICompatibleJudge(model="seer", base_url=sys.argv[2], protocol="strict", concurrency=2)
judge_folder(Path(sys.argv[1]), judge)
"""


def test_e03_a_process_killed_half_way_asks_no_scored_question_again(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 4, questions_each=5)
    with judge_server(always=Reply(delay_s=0.1)) as server:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder), server.base_url], env=environment)
        journal = folder / "items.0.jsonl"
        while process.poll() is None and not (journal.exists() and journal.read_text().count("\n") >= 6):
            time.sleep(0.01)
        assert process.poll() is None, "it was done before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        whole = [line for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
        scored = {json.loads(line)["question"] for line in whole}
        server.asked.clear()
        outcome = judge_folder(folder, judge_of(server, concurrency=2))
    again = {asked.texts[0].split("\n")[0] for asked in server.asked}
    assert outcome.num_scored == 20
    assert len(scored) >= 6
    assert not scored & again
    assert len(server.asked) == 20 - len(scored)


def test_e04_a_judge_that_always_refuses_is_asked_once_and_the_evaluation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path, 10, questions_each=2)
    monkeypatch.setattr(question_queue, "_FIRST_ALONE_S", 30.0)  # whatever else the machine does
    with judge_server(always=failing(400, "At most 0 image(s) may be provided in one request.")) as server:
        with pytest.raises(JudgeRefusesAll, match=r"HTTP 400: At most 0 image\(s\)"):
            judge_folder(folder, judge_of(server, concurrency=10))
        assert len(server.asked) == 1
        assert (count_verdicts(folder)["error"], count_verdicts(folder)["unscored"]) == (1, 19)
        with pytest.raises(JudgeRefusesAll, match="HTTP 400"):
            judge_folder(folder, judge_of(server, concurrency=10))
        assert len(server.asked) == 2
        mend(server, Reply())
        assert judge_folder(folder, judge_of(server)).num_scored == 20
    assert count_verdicts(folder) == {"yes": 20, "no": 0, "unparsed": 0, "refused": 0, "error": 0}
    assert len(server.asked) == 20


@pytest.mark.parametrize("protocol", ["strict", "official"])
def test_p04_a_corrupt_picture_and_a_failing_call_are_errors(tmp_path: Path, protocol: str) -> None:
    folder = write_folder(tmp_path, 10)
    (folder / "output_img/00003.png").write_bytes(b"no picture")
    with judge_server(always=by_question({"7.0": failing(500)})) as server:
        judge_folder(folder, judge_of(server, protocol=protocol, max_failures=2), settings=LENIENT)
    lines = {line["index"]: line for line in read_items(folder)}
    asked_about_corrupt = sum("Is 3.0 " in asked.texts[0] for asked in server.asked)
    assert lines[7]["verdict"] == "error"
    assert "HTTP 500" in str(lines[7]["explanation"])
    if protocol == "strict":
        assert asked_about_corrupt == 0
        assert lines[3]["verdict"] == "error"
        assert (lines[3]["correct"], lines[7]["correct"]) == (None, None)
        assert count_verdicts(folder) == {"yes": 8, "no": 0, "unparsed": 0, "refused": 0, "error": 2}
    else:
        # the published script asks about a white picture, and counts a failed call as wrong
        assert asked_about_corrupt == 1
        assert (lines[3]["verdict"], lines[7]["answer"], lines[7]["correct"]) == ("yes", "Error: all", False)


def test_an_outage_leaves_questions_unscored_and_a_later_call_asks_only_those(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 10)
    with judge_server([Reply()] * 4, failing(503, "restarting")) as server:
        outcome = judge_folder(folder, judge_of(server, protocol="official", patience_s=0.5, concurrency=1))
        assert (outcome.num_questions, outcome.num_scored) == (10, 4)
        assert outcome.stopped is not None
        assert "restarting" in outcome.stopped
        assert accuracy(folder, MeasuringRules.OFFICIAL) == (1.0, 4)
        mend(server, Reply())
        assert judge_folder(folder, judge_of(server, protocol="official")) == JudgingOutcome(10, 10, None)
    assert len(server.asked) == 6


def test_a_wish_to_stop_ends_the_wait_for_a_judge_that_is_away(tmp_path: Path) -> None:
    def stop(done: int, total: int, label: str) -> None:
        raise KeyboardInterrupt

    folder = write_folder(tmp_path, 3)
    started = time.monotonic()
    with judge_server(always=failing(503)) as server, pytest.raises(KeyboardInterrupt):
        judge_folder(folder, judge_of(server, patience_s=300.0), progress=stop)
    assert time.monotonic() - started < 60


def test_questions_of_one_picture_are_asked_at_once_and_the_time_left_is_told(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 2, questions_each=10)
    told: list[tuple[int, int, str]] = []

    def tell(done: int, total: int, label: str) -> None:
        told.append((done, total, label))

    with judge_server(always=Reply(delay_s=0.6)) as server:
        judge_folder(folder, judge_of(server, concurrency=4), progress=tell)
    assert server.most_at_once == 4
    assert [done for done, _, _ in told] == list(range(1, 21))
    assert told[4][2].startswith("judging, ")
    assert told[4][2].endswith(" s left")
    assert told[-1] == (20, 20, "judging")


def test_what_asking_took_is_on_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 3)
    with judge_server([busy(0.0)]) as server:
        judge_folder(folder, judge_of(server, usd_per_million_input=1.0, usd_per_million_output=10.0))
    (usage,) = json.loads((folder / "judging.json").read_text())["ranks"]
    assert usage["models"] == {"seer-2026": 3}
    assert (usage["num_requests"], usage["num_retries"], usage["num_input_tokens"]) == (4, 1, 3000)
    assert usage["cost_usd"] == pytest.approx(3 * 0.002)


def test_the_key_is_in_no_file_of_a_run(
    make_hook: Callable[..., PicaBenchHook],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", "sk-SECRET")
    script = [busy(0.0), failing(429, "sk-SECRET must wait"), Reply(text="Yes, and your key is sk-SECRET")]
    with judge_server(script, Reply(text=YES.replace("it is there", "sk-SECRET"))) as server:
        judge = judge_of(server, protocol="official", api_key_env="MY_KEY", cache_folder=str(tmp_path / "run/answers"))
        make_hook(judge).run(context_for(PaintingEditor(), tmp_path / "run", step=400))
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer sk-SECRET"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"items.jsonl", "report.json", "judging.json", "answers.sqlite"} <= {path.name for path in files}
    assert not [path for path in files if b"sk-SECRET" in path.read_bytes()]
    assert "sk-SECRET" not in caplog.text
