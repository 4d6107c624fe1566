"""A page on this machine to vote on pairs of edits, without names: which model made which is told nowhere on it."""

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any  # what http.server hands to a handler
from urllib.parse import parse_qs, urlsplit

from jinja2 import Environment, StrictUndefined
from PIL import Image, UnidentifiedImageError

from physedit.eval_hooks.arena.contestants import common_items
from physedit.eval_hooks.arena.sampling import Pair, plan_pairs
from physedit.eval_hooks.arena.votes import ArenaError, Vote, Winner, append_vote, read_votes
from physedit.eval_hooks.picabench.folder import EditedItem

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
_TEMPLATE = "page.html.jinja"
_LONGEST_FORM = 1000
"""Bytes; a vote has about 30."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; form-action 'self'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Session:
    """The pairs to vote on and those that are; threads may share it."""

    def __init__(
        self, folders: Mapping[str, Path], votes_file: Path, *, seed: int = 0, per_law: int | None = None
    ) -> None:
        """Plans the pairs of the folders, and goes on after the votes that the file has.

        Args:
            folders: of edits, by model.
            votes_file: CSV file that votes are added to.
            seed: decides pairs, order and sides.
            per_law: pairs of each law; None for as many as the law with the fewest has.

        Raises:
            ArenaError: folders or votes that cannot be used together.
        """
        self._folders, self._file = folders, votes_file
        self._items = common_items(folders)
        by_law: dict[str, list[int]] = {}
        for index, edits in self._items.items():
            by_law.setdefault(next(iter(edits.values())).law, []).append(index)
        self.pairs = plan_pairs(by_law, list(folders), seed=seed, per_law=per_law)
        has_votes = votes_file.exists() and votes_file.read_bytes().count(b"\n") > 1
        self._voted = {(vote.item, vote.models) for vote in read_votes(votes_file, folders)} if has_votes else set()
        self._lock = threading.Lock()

    @property
    def num_done(self) -> int:
        """How many of the pairs have a vote."""
        return sum(pair.identity in self._voted for pair in self.pairs)

    def next_number(self) -> int | None:
        """Returns the place of the first pair without a vote, None if all have one."""
        return next((n for n, pair in enumerate(self.pairs) if pair.identity not in self._voted), None)

    def instruction(self, number: int) -> str:
        """Returns what the edits of a pair were asked for."""
        pair = self.pairs[number]
        return self._items[pair.item][pair.left].instruction

    def picture(self, number: int, side: str) -> Path:
        """Returns a picture of a pair: ``left``, ``right`` or ``input``."""
        pair = self.pairs[number]
        model = pair.right if side == "right" else pair.left
        item: EditedItem = self._items[pair.item][model]
        return self._folders[model] / (item.input_path if side == "input" else item.output_path)

    def vote(self, number: int, winner: Winner) -> None:
        """Adds a vote to the file; a pair that has one keeps it."""
        pair: Pair = self.pairs[number]
        with self._lock:
            if pair.identity in self._voted:
                return
            append_vote(self._file, Vote(str(pair.item), pair.left, pair.right, winner, pair.law))
            self._voted.add(pair.identity)


def make_server(session: Session, port: int) -> ThreadingHTTPServer:
    """Returns a server of the page, on this machine's own address alone; port 0 takes a free one.

    Raises:
        ArenaError: the port is taken.
    """
    template = resources.files("physedit.eval_hooks.arena").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(template)

    def render() -> str:
        number = session.next_number()
        return page.render(
            number=number,
            instruction="" if number is None else session.instruction(number),
            num_done=session.num_done,
            num_pairs=len(session.pairs),
        )

    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, session, render))
    except OSError as error:
        raise ArenaError(f"The page cannot be served on {HOST}:{port}: {error}. Choose another with --port.") from error


class _Handler(BaseHTTPRequestHandler):
    """Answers the browser of this machine."""

    def __init__(self, session: Session, page: Callable[[], str], *request: Any) -> None:
        self.session, self.page = session, page
        super().__init__(*request)  # which handles the request

    def do_GET(self) -> None:
        """Serves the page and the pictures of a pair."""
        if not self._is_ours():
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts == [""]:
            self._answer(self.page().encode(), "text/html; charset=utf-8")
        elif len(parts) == 3 and parts[0] == "picture" and parts[2] in ("left", "right", "input"):
            self._send_picture(parts[1], parts[2])
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Takes a vote and shows the next pair."""
        length = self.headers.get("Content-Length", "")
        if not self._is_ours() or urlsplit(self.path).path != "/vote":
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        if not length.isdecimal() or int(length) > _LONGEST_FORM:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        form = parse_qs(self.rfile.read(int(length)).decode("utf-8", "replace"))
        number = self._number((form.get("number") or [""])[0])
        winner = (form.get("winner") or [""])[0]
        if number is None or winner not in tuple(Winner):
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        self.session.vote(number, Winner(winner))
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", "/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the terminal free of a line for every picture."""
        logger.debug(format, *args)

    def _is_ours(self) -> bool:
        """True unless another site's page sent the browser here."""
        assert isinstance(self.server, ThreadingHTTPServer)
        port = self.server.server_port
        hosts = {f"{host}:{port}" for host in (HOST, "localhost")}
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in hosts and (origin is None or urlsplit(origin).netloc in hosts)

    def _number(self, text: str) -> int | None:
        is_known = text.isdecimal() and int(text) < len(self.session.pairs)
        return int(text) if is_known else None

    def _send_picture(self, text: str, side: str) -> None:
        number = self._number(text)
        if number is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        path = self.session.picture(number, side)
        try:
            with Image.open(path) as picture:
                kind = Image.MIME[picture.format or ""]
            self._answer(path.read_bytes(), kind)
        except (OSError, UnidentifiedImageError, KeyError):
            logger.warning("%s cannot be shown: it is no picture that can be read.", path)
            self._refuse(HTTPStatus.NOT_FOUND)

    def _answer(self, content: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
