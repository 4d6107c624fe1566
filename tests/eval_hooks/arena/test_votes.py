from pathlib import Path

import pytest

from physedit.eval_hooks.arena.votes import ArenaError, Vote, Winner, append_vote, read_votes

HEADER = "item,model_a,model_b,winner,law\n"


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "votes.csv"
    votes = (Vote("1", "x", 'y, "tuned"', Winner.A, "Reflection"), Vote("2", "x", "z", Winner.TIE))
    for vote in votes:
        append_vote(path, vote)
    assert read_votes(path) == votes
    assert path.read_text().splitlines()[0] == "item,model_a,model_b,winner,law"


def test_what_a_kill_left_of_a_line_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "votes.csv"
    append_vote(path, Vote("1", "x", "y", Winner.A))
    path.write_text(path.read_text() + "2,x,y")
    append_vote(path, Vote("3", "x", "y", Winner.B))
    assert [vote.item for vote in read_votes(path)] == ["1", "3"]
    path.write_text("item,mod")
    append_vote(path, Vote("4", "x", "y", Winner.B))
    assert [vote.item for vote in read_votes(path)] == ["4"]


def test_other_programs_may_order_columns_and_add_some(tmp_path: Path) -> None:
    path = tmp_path / "votes.csv"
    path.write_text("\ufeffwinner, model_b ,model_a,item,rater\r\ntie,y,x,7,me\r\n\r\n")
    assert read_votes(path) == (Vote("7", "x", "y", Winner.TIE, None),)
    with pytest.raises(ArenaError, match="Give another file"):
        append_vote(path, Vote("1", "x", "y", Winner.A))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["line 1", "item, model_a, model_b, winner are missing", "found nothing"]),
        ("item,model_a,winner\n", ["line 1", "model_b are missing"]),
        (HEADER, ["no votes yet"]),
        (HEADER + "1,x,y,a,R\n2,x,yy,a,R\n", ["line 3", "model_b 'yy'", "Did you mean y"]),
        (HEADER + "1,,y,a,R\n", ["line 2", "model_a ''"]),
        (HEADER + "1,x,x,a,R\n", ["line 2", "with itself"]),
        (HEADER + "\n1,x,y,left,R\n", ["line 3", "'left'", "a, b, tie"]),
        (HEADER + "1,x,y\n", ["line 2", "3 cells under 5 columns"]),
        (HEADER + '1,x,y,"a' + "\n1,x,y,a,R" * 20000, ["quote"]),
    ],
)
def test_votes_that_cannot_be_used_are_named_by_their_line(tmp_path: Path, content: str, words: list[str]) -> None:
    path = tmp_path / "votes.csv"
    path.write_text(content)
    with pytest.raises(ArenaError) as error:
        read_votes(path, known=["x", "y"])
    for word in words:
        assert word in str(error.value)


def test_no_file_and_no_text_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(ArenaError, match="no file of votes"):
            read_votes(path)
    (tmp_path / "votes.csv").write_bytes(b"item\xff")
    with pytest.raises(ArenaError, match="UTF-8"):
        read_votes(tmp_path / "votes.csv")
