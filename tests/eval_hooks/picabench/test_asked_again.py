"""Questions that were errors are asked last by the next run, so that they keep no other one from its turn."""

from pathlib import Path

import pytest
from tests.support.judge_server import Reply, failing, judge_server
from tests.support.judged_folder import by_question, judge_of, mend, write_folder
from tests.support.stand_ins import read_items

from physedit.eval_hooks.judges import question_queue
from physedit.eval_hooks.judges.judge import JudgeRefusesAll
from physedit.eval_hooks.picabench.judging import JudgeSettings, JudgingOutcome, count_verdicts, judge_folder


@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_first_question_that_is_always_refused_is_asked_last_by_the_next_run(
    tmp_path: Path, concurrency: int
) -> None:
    folder = write_folder(tmp_path, 6, questions_each=5)
    with judge_server(always=by_question({"0.0": failing(400, "no such picture")})) as server:
        with pytest.raises(JudgeRefusesAll, match=r"no such picture.*run it again: the others"):
            judge_folder(folder, judge_of(server, concurrency=1))
        assert len(server.asked) == 1
        for num_asked in (30, 1):  # the second has only that one left to ask
            server.asked.clear()
            assert judge_folder(folder, judge_of(server, concurrency=concurrency)) == JudgingOutcome(30, 30, None)
            assert len(server.asked) == num_asked
            assert count_verdicts(folder) == {"yes": 29, "no": 0, "unparsed": 0, "refused": 0, "error": 1}
    lines = read_items(folder)
    assert [line["number"] for line in lines] == [*range(5)] * 6
    assert (lines[0]["verdict"], lines[0]["correct"]) == ("error", None)


def test_a_key_that_is_refused_is_no_question_s_error(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 3)
    with judge_server(always=failing(401, "wrong key")) as server, pytest.raises(JudgeRefusesAll, match="wrong key"):
        judge_folder(folder, judge_of(server))
    assert (count_verdicts(folder)["error"], count_verdicts(folder)["unscored"]) == (0, 3)


@pytest.mark.parametrize(("num_bad", "num_runs"), [(4, 2), (9, 3)])
def test_more_questions_than_end_a_run_that_always_fail_are_passed_by_later_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bad: int, num_runs: int
) -> None:
    monkeypatch.setattr(question_queue, "_MOST_FAILED_IN_A_ROW", 3)
    folder, whole = write_folder(tmp_path / "bad", 3, questions_each=5), write_folder(tmp_path / "good", 3, 5)
    bad = {f"{number // 5}.{number % 5}": failing(500) for number in range(2, 2 + num_bad)}
    settings = JudgeSettings(max_unanswered_share=0.9)
    with judge_server(always=by_question(bad)) as server:
        judge = {"concurrency": 1, "max_failures": 1}
        outcomes = [judge_folder(folder, judge_of(server, **judge), settings=settings) for _ in range(num_runs)]
        assert [outcome.num_scored < 15 for outcome in outcomes] == [True] * (num_runs - 1) + [False]
        assert count_verdicts(folder)["error"] == num_bad
        mend(server, Reply())
        judge_folder(folder, judge_of(server, **judge))
        assert len(server.asked) == num_bad
        judge_folder(whole, judge_of(server, **judge))
    assert (folder / "items.jsonl").read_bytes() == (whole / "items.jsonl").read_bytes()
