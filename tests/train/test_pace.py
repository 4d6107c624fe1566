"""Ranks agree on what is asked of a run at the same steps, about once a second."""

import pytest

from physedit.train import asking
from physedit.train.asking import Pace


class Ranks:
    """Stands for the agreement of several ranks, of which this one is as slow as the slowest."""

    def __init__(self, num_processes: int, slower: int = 1) -> None:
        self.num_processes, self.slower = num_processes, slower

    def largest(self, value: int) -> int:
        return self.slower * value


def agreed_at(ranks: Ranks, step_s: float, num_steps: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = 0.0
    monkeypatch.setattr(asking.time, "monotonic", lambda: now)
    pace = Pace(ranks)
    found = []
    for step in range(1, num_steps + 1):
        now += step_s
        if pace.is_due():
            pace.agree()
            found.append(step)
    return found


def test_one_process_looks_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agreed_at(Ranks(1), 0.001, 5, monkeypatch) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("step_s", "slower", "steps"),
    [(0.3, 1, [1, 4, 7]), (0.01, 1, [1, 11]), (2.0, 1, [1, 2, 3, 4]), (0.15, 2, [1, 4, 7])],
    ids=["a second", "ten steps at most", "slow steps", "the slowest rank"],
)
def test_ranks_agree_about_once_a_second(
    monkeypatch: pytest.MonkeyPatch, step_s: float, slower: int, steps: list[int]
) -> None:
    assert agreed_at(Ranks(8, slower), step_s, max(steps), monkeypatch) == steps
