"""The page, asked as a browser asks."""

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.support.arena_folders import write_edits

from physedit.eval_hooks.arena.page import HOST, Session, make_server
from physedit.eval_hooks.arena.votes import ArenaError, Winner, read_votes


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {"secret-base": write_edits(tmp_path / "b", 100), "secret-tuned": write_edits(tmp_path / "t", 200)}


class Browser:
    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, method: str, path: str, form: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=20)
        try:
            body = None if form is None else urlencode(form)
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def get(self, path: str = "/") -> str:
        status, _, content = self.ask("GET", path)
        assert status == 200
        return content.decode()

    def vote(self, number: str, winner: str, **headers: str) -> int:
        return self.ask("POST", "/vote", {"number": number, "winner": winner}, **headers)[0]


@contextmanager
def served(session: Session) -> Iterator[Browser]:
    with make_server(session, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield Browser(server.server_port)
        finally:
            server.shutdown()
            thread.join()


def number_of(page: str) -> str:
    (number,) = re.findall(r'name="number" value="(\d+)"', page)
    return str(number)


def test_all_pairs_are_voted_on_and_the_file_tells_which_model_was_where(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    votes = tmp_path / "votes.csv"
    session = Session(folders, votes, seed=5)
    with served(session) as browser:
        for done in range(6):
            page = browser.get()
            assert f"{done} of 6" in page
            number = number_of(page)
            left = browser.ask("GET", f"/picture/{number}/left")[2]
            pair = session.pairs[int(number)]
            assert left == (folders[pair.left] / f"output_img/{pair.item:05d}.png").read_bytes()
            # Vote for the tuned model wherever it is.
            assert browser.vote(number, "a" if pair.left == "secret-tuned" else "b") == 303
            assert len(read_votes(votes)) == done + 1
        assert "All 6 pairs are voted on" in browser.get()
    assert {vote.law for vote in read_votes(votes)} == {"Reflection", "Global"}
    for vote in read_votes(votes, folders):
        preferred = vote.model_a if vote.winner is Winner.A else vote.model_b
        assert preferred == "secret-tuned"


def test_the_page_tells_no_names_and_asks_for_nothing_from_elsewhere(folders: dict[str, Path], tmp_path: Path) -> None:
    with served(Session(folders, tmp_path / "votes.csv")) as browser:
        status, headers, content = browser.ask("GET", "/")
        page = content.decode()
        assert status == 200
        assert "secret" not in page
        assert "Paint &lt;number&gt;" in page
        assert "http" not in re.sub(r"http-equiv", "", page)
        assert all(url.startswith("/") for url in re.findall(r'(?:src|href|action)="([^"]*)"', page))
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        for url in re.findall(r'src="([^"]*)"', page):
            status, headers, content = browser.ask("GET", url)
            assert (status, headers["Content-Type"], content[1:4]) == (200, "image/png", b"PNG")
            assert "secret" not in str(headers)


def test_voting_goes_on_after_the_votes_on_file(folders: dict[str, Path], tmp_path: Path) -> None:
    votes = tmp_path / "votes.csv"
    first = Session(folders, votes, seed=5)
    first.vote(0, Winner.TIE)
    first.vote(0, Winner.A)  # pressed twice
    first.vote(3, Winner.B)
    assert len(read_votes(votes)) == 2
    again = Session(dict(reversed(folders.items())), votes, seed=5)
    assert again.pairs == first.pairs
    assert (again.num_done, again.next_number()) == (2, 1)
    other_order = Session(folders, votes, seed=6)
    assert other_order.num_done == 2


def test_requests_of_other_sites_and_broken_ones_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    votes = tmp_path / "votes.csv"
    with served(Session(folders, votes)) as browser:
        assert browser.vote("0", "a", Origin="https://elsewhere.example") == 403
        assert browser.ask("GET", "/", Host="elsewhere.example")[0] == 403
        assert browser.vote("0", "left") == 400
        assert browser.vote("6", "a") == 400
        assert browser.vote("-1", "a") == 400
        assert browser.ask("POST", "/vote", {"x": "y" * 2000})[0] == 400
        assert browser.ask("POST", "/elsewhere", {})[0] == 403
        for path in ("/picture/99/left", "/picture/0/both", "/picture/0/../../votes.csv", "/votes.csv"):
            assert browser.ask("GET", path)[0] == 404
        assert not votes.exists()
        assert browser.vote("0", "a", Origin=f"http://127.0.0.1:{browser.port}") == 303


def test_a_picture_that_is_none_is_not_shown(folders: dict[str, Path], tmp_path: Path) -> None:
    for folder in folders.values():
        for picture in (folder / "output_img").iterdir():
            picture.write_text("<html>")
    with served(Session(folders, tmp_path / "votes.csv")) as browser:
        assert browser.ask("GET", "/picture/0/left")[0] == 404
        assert browser.ask("GET", "/picture/0/input")[0] == 200


def test_votes_on_other_models_and_unlike_folders_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    votes = tmp_path / "votes.csv"
    votes.write_text("item,model_a,model_b,winner,law\n1,secret-base,other,a,R\n")
    with pytest.raises(ArenaError, match=r"line 2: the model_b 'other' is no known model"):
        Session(folders, votes)
    text = (folders["secret-base"] / "meta_info.json").read_text()
    (folders["secret-base"] / "meta_info.json").write_text(text.replace("Paint <number> 3", "Burn it"))
    with pytest.raises(ArenaError, match="Item 3 is not the same"):
        Session(folders, tmp_path / "new.csv")


def test_a_port_that_is_taken_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    session = Session(folders, tmp_path / "votes.csv")
    with make_server(session, 0) as server, pytest.raises(ArenaError, match="--port"):
        make_server(session, server.server_port)
