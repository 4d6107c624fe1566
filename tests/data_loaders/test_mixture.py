import pickle

import pytest
from tests.support.plain_pairs import PlainPairs

from physedit.data_loaders.mixture import Mixture, members_of
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import EditDataset, PromptLevel

EXPLICIT = frozenset({PromptLevel.EXPLICIT})


def members() -> dict[str, EditDataset]:
    return {
        "pica": PlainPairs(6, title="a", laws=["Reflection"], problems={2: RowProblem.NO_TARGET}),
        "own": PlainPairs(3, title="b", sizes=[(4, 6)], levels=EXPLICIT, max_references=2),
    }


def mixture(**levels: str) -> Mixture:
    return Mixture(members=members(), weights={"pica": 0.7, "own": 0.3}, levels=levels)


def test_rows_of_the_members_follow_each_other_under_prefixed_names() -> None:
    data = mixture()
    assert len(data) == 9
    assert [data.name(row).sample_id for row in (0, 5, 6, 8)] == ["pica/a:0", "pica/a:5", "own/b:0", "own/b:2"]
    for row in (0, 1, 6, 8):
        sample = data.sample(row, PromptLevel.EXPLICIT)
        assert sample.sample_id == data.name(row).sample_id
        assert sample.origin == data.name(row).origin
    assert data.sample(7, PromptLevel.EXPLICIT).instruction == "explicit 1"


def test_headers_and_levels_come_from_the_members() -> None:
    data = mixture()
    assert data.header(2).problem == RowProblem.NO_TARGET
    assert data.header(6).source == (4, 6)
    assert data.header(1).law == "Reflection"
    assert data.levels == EXPLICIT
    assert data.max_references == 2


def test_a_member_with_a_level_of_its_own_leaves_the_others_theirs() -> None:
    data = mixture(own="explicit")
    assert data.levels == frozenset(PromptLevel)
    assert data.sample(6, PromptLevel.SUPERFICIAL).level == PromptLevel.EXPLICIT
    assert data.sample(0, PromptLevel.SUPERFICIAL).level == PromptLevel.SUPERFICIAL


def test_fingerprint_follows_rows_and_not_weights() -> None:
    other = Mixture(members=members(), weights={"pica": 1, "own": 1})
    fewer = Mixture(members=members() | {"own": PlainPairs(2, title="b")}, weights={"pica": 1, "own": 1})
    assert other.fingerprint == mixture().fingerprint != fewer.fingerprint


def test_a_copy_for_a_worker_is_the_same() -> None:
    copy = pickle.loads(pickle.dumps(mixture()))
    assert copy.sample(7, PromptLevel.EXPLICIT).sample_id == "own/b:1"
    assert copy.members == mixture().members


@pytest.mark.parametrize("index", [-1, 9])
def test_row_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match="has 9 rows"):
        mixture().sample(index, PromptLevel.EXPLICIT)


def test_another_data_set_is_its_own_only_member() -> None:
    (member,) = members_of(PlainPairs(4))
    assert (member.name, member.first, member.num_rows, member.level) == ("", 0, 4, None)


REFUSED = [
    ({"weights": {"pica": 1.0}}, "No weight for own"),
    ({"weights": {"pica": 1.0, "own": "much"}}, r"weights\.own=much is no number"),
    ({"weights": {"pica": None, "own": 1.0}}, r"weights\.pica=None is no number"),
    ({"weights": {"pica": 1.0, "own": True}}, r"weights\.own=True is no number"),
    ({"weights": {"pica": 1.0, "own": 1.0, "pico": 1.0}}, "weights.pico is of no member. Did you mean pica?"),
    ({"levels": {"owm": "explicit"}}, "levels.owm is of no member. Did you mean own?"),
    ({"levels": {"own": "superficial"}}, "levels.own=superficial is not a level that own has: explicit"),
    ({"members": {"own": PlainPairs(2)}, "weights": {"own": 0}}, r"weights\.own=0 shows no row"),
    ({"weights": {"pica": 1.0, "own": -0.5}}, r"weights\.own=-0\.5 shows no row"),
    ({"weights": {"pica": float("nan"), "own": 1.0}}, r"weights\.pica=nan shows no row"),
    ({"members": {}, "weights": {}}, "A mixture has no members"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_names_that_do_not_fit_are_refused(wrong: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"members": members(), "weights": {"pica": 0.7, "own": 0.3}} | wrong
    with pytest.raises(ValueError, match=message):
        Mixture(**given)  # type: ignore[arg-type]
