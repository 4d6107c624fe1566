"""Replies of judges, kept in a file that runs share: a question that was answered once is not paid for again."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # the columns of a row are what the table says

logger = logging.getLogger(__name__)

CACHE_FILE = "answers.sqlite"
_BUSY_S = 30.0
"""How long to wait for another process that writes."""
_TABLE = """\
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, judge_id TEXT NOT NULL, prompt TEXT NOT NULL, picture_sha256 TEXT NOT NULL,
    text TEXT NOT NULL, refusal TEXT, model TEXT NOT NULL,
    num_input_tokens INTEGER NOT NULL, num_output_tokens INTEGER NOT NULL,
    stored_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)"""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reply belongs to: who was asked (model, endpoint, protocol, parameters), in which words, about what."""

    judge_id: str
    prompt: Sequence[str]
    picture: bytes

    @property
    def key(self) -> str:
        """A hash of all of it."""
        return _digest(json.dumps([self.judge_id, list(self.prompt), self.picture_sha256]).encode())

    @property
    def picture_sha256(self) -> str:
        """The hash of the bytes that were sent."""
        return _digest(self.picture)


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply as it came, not what it was taken to mean: that is read anew."""

    text: str
    refusal: str | None
    model: str
    num_input_tokens: int
    num_output_tokens: int


class AnswerCache:
    """Replies in ``FOLDER/answers.sqlite``. Threads and processes may share it.

    It only saves requests. Where its file cannot be used, that is said once, and this process goes on without it: an
    answer that was paid for must not be lost because it could not be stored.
    """

    def __init__(self, folder: Path) -> None:
        """Names the folder; nothing is opened yet."""
        self._folder = folder
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._is_broken = False

    def find(self, asked: Asked) -> StoredReply | None:
        """Returns the stored reply, or None; writes nothing, not even a file that is not there yet."""
        if self._connection is None and not (self._folder / CACHE_FILE).exists():
            return None
        query = "SELECT text, refusal, model, num_input_tokens, num_output_tokens FROM answers WHERE key = ?"
        rows = self._run(query, (asked.key,))
        return StoredReply(*map(_as_text, rows[0])) if rows else None

    def store(self, asked: Asked, reply: StoredReply) -> None:
        """Keeps a reply; the first one of two stays."""
        self._run(
            "INSERT OR IGNORE INTO answers (key, judge_id, prompt, picture_sha256, text, refusal, model, "
            "num_input_tokens, num_output_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                asked.key,
                asked.judge_id,
                _column(json.dumps(list(asked.prompt), ensure_ascii=False)),
                asked.picture_sha256,
                _column(reply.text),
                None if reply.refusal is None else _column(reply.refusal),
                _column(reply.model),
                reply.num_input_tokens,
                reply.num_output_tokens,
            ),
        )

    def _run(self, statement: str, values: tuple[str | bytes | int | None, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._is_broken:
                return []
            try:
                if self._connection is None:
                    self._connection = self._open()
                with self._connection as transaction:
                    return transaction.execute(statement, values).fetchall()
            except (sqlite3.Error, OSError) as error:
                self._is_broken = True
                logger.warning(
                    "The judge's answers cannot be kept in %s (%s), so they are asked for anew in other runs. Name a "
                    "folder on a local disk, judge.cache_folder=FOLDER.",
                    self._folder / CACHE_FILE,
                    error,
                )
                return []

    def _open(self) -> sqlite3.Connection:
        self._folder.mkdir(parents=True, exist_ok=True)
        # One connection for all threads, one at a time; each statement is its own transaction.
        connection = sqlite3.connect(self._folder / CACHE_FILE, timeout=_BUSY_S, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(_TABLE)
        return connection


def _column(text: str) -> str | bytes:
    """Returns a text as sqlite takes it: one with a lone surrogate, which no UTF-8 has, as bytes."""
    content = text.encode(errors="surrogatepass")
    return text if content == text.encode(errors="replace") else content


def _as_text(column: Any) -> Any:
    return column.decode(errors="surrogatepass") if isinstance(column, bytes) else column


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
