"""A stand-in for an OpenAI-compatible server: answers as scripted, then always the same; notes what it is asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GOOD = json.dumps(
    {
        "superficial": "Roll the ball to the right.",
        "intermediate": "Roll the ball to the right along the wall, with its shadow below it.",
        "explicit": "Roll the red ball to the right along the wall; where it was, the tiles show again.",
        "law": "Causality",
        "operation": "move",
    }
)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: ``text`` as the model's reply, ``error`` with its status, or ``raw`` as it is."""

    text: str = GOOD
    status: int = 200
    error: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    finish: str = "stop"
    refusal: str | None = None
    raw: str | None = None
    delay_s: float = 0.0


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    body: dict[str, Any]
    headers: dict[str, str]
    at_s: float

    @property
    def num_pictures(self) -> int:
        """Pictures in all its messages."""
        parts = [m["content"] for m in self.body["messages"] if isinstance(m["content"], list)]
        return sum(part["type"] == "image_url" for content in parts for part in content)


@dataclass
class VisionServer:
    """Where it listens, what it will say, what it was asked, and how many questions it held at once at most."""

    base_url: str
    script: list[Answer]
    always: Answer
    asked: list[Asked] = field(default_factory=list)
    most_at_once: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_answer(self, asked: Asked) -> Answer:
        with self.lock:
            self.asked.append(asked)
            self.now += 1
            self.most_at_once = max(self.most_at_once, self.now)
            return self.script.pop(0) if self.script else self.always


@contextmanager
def vision_server(script: Sequence[Answer] = (), always: Answer = Answer()) -> Iterator[VisionServer]:
    """Serves on a free local port until the block ends."""
    server: VisionServer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = server.next_answer(Asked(body, headers, time.monotonic()))
            time.sleep(answer.delay_s)
            content = json.dumps({"error": answer.error} if answer.error else _completion(answer, body["model"]))
            content = content if answer.raw is None else answer.raw
            with server.lock:
                server.now -= 1
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_arguments: object) -> None:
            return

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = VisionServer(f"http://127.0.0.1:{http.server_port}/v1", list(script), always)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def _completion(answer: Answer, model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": None if answer.refusal else answer.text, "refusal": answer.refusal}
    return {
        "id": "stand-in",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": answer.finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
