"""As much of wandb's server as its client needs for an online run: the run, its history, its files; and its loss.

Source: what wandb 0.31.0's client asks: ``UpsertBucket``, ``RunResumeStatus``, ``CreateRunFiles``, ``CreateArtifact``,
``ArtifactType``, and file_stream. Of an artifact it takes what it is and what it is called, but no file.
What is read of runs, ``wandb_api`` answers.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support import wandb_api

KEY = "0" * 40
"""Of the form that the client takes for a key."""


@dataclass
class TrackedRun:
    """What has arrived of a run; ``about`` is what the client said of it, by the names of the mutation's variables."""

    name: str
    about: dict[str, Any] = field(default_factory=dict)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    num_rows_sent: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = None
    is_complete: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """The run's settings as the client told them last."""
        told = json.loads(self.about.get("config") or "{}")
        return {key: entry["value"] for key, entry in told.items() if key != "_wandb"}

    def points(self, key: str) -> list[tuple[int, Any]]:
        """Returns the run's own step and value of each row that has ``key``, in the order in which they were logged."""
        rows = [self.history[number] for number in sorted(self.history)]
        return [(row["trainer/step"], row[key]) for row in rows if key in row]


@dataclass
class WandbServer:
    """The runs it knows, by id. ``cut`` makes it unreachable, ``hang`` keeps every answer back."""

    base_url: str = ""
    runs: dict[str, TrackedRun] = field(default_factory=dict)
    aliases: dict[str, dict[str, str]] = field(default_factory=dict)
    """By the name of an artifact: the digest of the version that an alias is on."""
    is_cut: threading.Event = field(default_factory=threading.Event)
    hangs: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    connections: set[socket.socket] = field(default_factory=set)

    def cut(self) -> None:
        """Drops all connections and every later one."""
        self.is_cut.set()
        for connection in list(self.connections):
            _close(connection)

    def come_back(self) -> None:
        """Serves again; what was kept back is lost."""
        self.is_cut.clear()
        self.hangs.clear()

    def hang(self) -> None:
        """Takes requests from now on, but answers none."""
        self.hangs.set()

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Answers a query; one that it does not know gets no data."""
        if "upsertBucket" in query:
            return {"upsertBucket": {"bucket": self._upsert(variables), "inserted": True}}
        if "createRunFiles" in query:
            folder = f"{self.base_url}/stored/{variables['run']}"
            files = [{"name": name, "uploadUrl": f"{folder}/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "run", "uploadHeaders": [], "files": files}}
        if "RunResumeStatus" in query:
            run = self.runs.get(variables["name"])
            bucket = None if run is None else self._resumed(run)
            return {"model": {"id": "project", "name": variables["project"], "entity": _ENTITY, "bucket": bucket}}
        if "mutation CreateArtifact " in query:
            return {"createArtifact": {"artifact": self._name_artifact(variables["input"])}}
        if "query ArtifactType" in query:
            return {"project": {"artifact": None}}  # any type will do
        return wandb_api.read(query, variables, self.runs) or {}

    def stream(self, run: TrackedRun, sent: dict[str, Any]) -> None:
        """Takes rows of the run's files, each of which says where its first row goes."""
        files = sent.get("files") or {}
        history = files.get("wandb-history.jsonl", {"offset": 0, "content": []})
        for number, row in enumerate(history["content"], start=history["offset"]):
            run.history[number] = json.loads(row)
            run.num_rows_sent += 1
        for row in files.get("wandb-summary.json", {"content": []})["content"]:
            run.summary = json.loads(row)
        if sent.get("complete"):
            run.is_complete, run.exit_code = True, sent.get("exitcode")

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.setdefault(variables["name"], TrackedRun(variables["name"]))
        run.about |= {key: value for key, value in variables.items() if value is not None}
        project = {"id": "project", "name": run.about["project"], "entity": _ENTITY}
        return {
            "id": "run",
            "name": run.name,
            "displayName": run.about.get("displayName"),
            "project": project,
            "historyLineCount": len(run.history),
        }

    def _name_artifact(self, told: dict[str, Any]) -> dict[str, Any]:
        names = self.aliases.setdefault(told["artifactCollectionName"], {})
        names |= {each["alias"]: told["digest"] for each in told["aliases"]}
        return {"id": told["digest"], "state": "COMMITTED", "artifactSequence": {"id": "s", "latestArtifact": None}}

    def _resumed(self, run: TrackedRun) -> dict[str, Any]:
        last = run.history[max(run.history)] if run.history else {}
        return {
            "id": "run",
            "name": run.name,
            "displayName": run.about.get("displayName"),
            "summaryMetrics": json.dumps(run.summary),
            "historyLineCount": len(run.history),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(last)] if last else []),
            "eventsTail": "[]",
            "config": run.about.get("config") or "{}",
            "tags": run.about.get("tags") or [],
            "wandbConfig": '{"t": 1}',
        }


_ENTITY = {"id": "entity", "name": wandb_api.OWNER}


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """Serves on a free local port until the block ends."""
    state = WandbServer()

    class Handler(_Handler):
        server_state = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.base_url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.ended.set()
        state.cut()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: WandbServer

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""

    def handle(self) -> None:
        """Serves a connection until it is closed or cut."""
        state = self.server_state
        if state.is_cut.is_set():
            _close(self.connection)
            return
        state.connections.add(self.connection)
        try:
            super().handle()
        except (OSError, ValueError):
            pass  # the client went away, or the connection was cut
        finally:
            state.connections.discard(self.connection)

    def finish(self) -> None:
        """Closes a connection, which may be cut already."""
        try:
            super().finish()
        except (OSError, ValueError):
            return

    def do_POST(self) -> None:
        """Takes a query, or rows of a run."""
        body = self._body()
        if self.path == "/graphql":
            asked = json.loads(body)
            self._answer({"data": self.server_state.graphql(asked["query"], asked.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            run = self.server_state.runs[self.path.split("/")[-2]]
            if not self._is_kept_back():
                self.server_state.stream(run, json.loads(body))
            self._answer({"exitcode": None, "limits": {}})
        else:
            self._answer({})  # the client's own telemetry

    def do_PUT(self) -> None:
        """Takes a file of a run."""
        body = self._body()
        if not self._is_kept_back():
            _, _, run, name = self.path.split("/", 3)
            self.server_state.runs[run].files[name] = body
        self._answer({})

    def _is_kept_back(self) -> bool:
        return self.server_state.hangs.is_set() or self.server_state.is_cut.is_set()

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, content: dict[str, Any]) -> None:
        if self.server_state.hangs.is_set():
            self.server_state.ended.wait()
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _close(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
