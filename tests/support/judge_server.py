"""A judge on a real local HTTP server that speaks Chat Completions and Responses, and misbehaves as real ones do.

python tests/support/judge_server.py --latency 1       # a process of its own; prints its address
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

YES = '{"answer": "Yes", "explanation": "it is there"}'
NO = '{"answer": "No", "explanation": "it is not there"}'

FORMS: dict[str, str] = {
    "json yes": YES,
    "json no": NO,
    "fenced": f"```json\n{NO}\n```",
    "two objects": f"{NO} or rather {YES}",
    "thinking": f"<think>yes, it looks like it</think>{NO}",
    "plain": "Yes.",
    "lower case": "no",
    "with a reason": "No, although yes would be tempting.",
    "a sentence": "It is not yes",
    "hedged": "Not sure, it is too dark.",
    "nothing there": "Nothing is visible here.",
    "boolean": '{"answer": true, "explanation": "seen"}',
    "wordy json": '{"answer": "Yes, it is", "explanation": "seen"}',
    "cut json": '{"answer": "No", "explanation": "a yes would need',
    "chinese": "是的",
    "empty": "",
}
"""Forms that real judges answer in."""


@dataclass(frozen=True)
class Reply:
    """One HTTP answer: ``text`` as the model's, ``error`` with its status, ``raw`` as it is; ``cut`` spoils it."""

    text: str = YES
    status: int = 200
    error: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    refusal: str | None = None
    is_cut: bool = False
    finish: str = "stop"
    raw: str | None = None
    delay_s: float = 0.0
    cut: Literal["connection", "json"] | None = None


def busy(wait_s: float) -> Reply:
    """Returns a 429 with a wait hint."""
    return Reply(status=429, error={"message": "slow down", "code": "rate_limit_exceeded"}, headers=_after(wait_s))


def failing(status: int, message: str = "something broke", code: str | None = None) -> Reply:
    """Returns an error."""
    return Reply(status=status, error={"message": message, "code": code})


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    at_s: float

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts of the user's turn."""
        turn = (self.body.get("input") or self.body["messages"])[-1]
        content: list[dict[str, Any]] = turn["content"]
        return content

    @property
    def texts(self) -> list[str]:
        """The text parts."""
        return [part["text"] for part in self.parts if "text" in part]

    @property
    def num_pictures(self) -> int:
        """Pictures in all turns."""
        turns = [turn["content"] for turn in self.body.get("input") or self.body["messages"]]
        return sum("image_url" in part for content in turns if isinstance(content, list) for part in content)

    @property
    def picture(self) -> bytes:
        """The encoded picture."""
        (url,) = (part["image_url"] for part in self.parts if "image_url" in part)
        return base64.b64decode((url if isinstance(url, str) else url["url"]).split(",", 1)[1])


@dataclass
class JudgeServer:
    """Where it listens, what it was asked, how many questions it held at once at most, and what it will say."""

    base_url: str
    script: list[Reply]
    always: Reply | Callable[[Asked], Reply]
    asked: list[Asked] = field(default_factory=list)
    most_at_once: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reply_to(self, asked: Asked) -> Reply:
        with self.lock:
            self.asked.append(asked)
            self.now += 1
            self.most_at_once = max(self.most_at_once, self.now)
            scripted = self.script.pop(0) if self.script else None
        if scripted is not None:
            return scripted
        return self.always(asked) if callable(self.always) else self.always

    def done(self) -> None:
        with self.lock:
            self.now -= 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def judge_server(
    script: Sequence[Reply] = (), always: Reply | Callable[[Asked], Reply] = Reply()
) -> Iterator[JudgeServer]:
    """Serves on a free local port until the block ends: the script first, then always the same."""
    server: JudgeServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.path, body, headers, time.monotonic())
            reply = server.reply_to(asked)
            time.sleep(reply.delay_s)
            server.done()  # before whoever asked knows, and asks the next question
            self._say(reply, asked)

        def _say(self, reply: Reply, asked: Asked) -> None:
            content = _content(reply, asked).encode()
            head = {"Content-Type": "application/json", "Content-Length": str(len(content)), **reply.headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            whole = f"HTTP/1.1 {reply.status} So\r\n{lines}\r\n".encode() + content
            if reply.cut == "connection":
                self.connection.sendall(whole[: len(whole) - len(content) // 2 - 1])
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.connection.sendall(whole)

        def log_message(self, *_arguments: object) -> None:
            return

    http = _Server(("127.0.0.1", 0), Handler)
    server = JudgeServer(f"http://127.0.0.1:{http.server_port}/v1", list(script), always)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def _content(reply: Reply, asked: Asked) -> str:
    if reply.raw is not None:
        return reply.raw
    if reply.error is not None:
        return json.dumps({"error": reply.error})
    answer = _response(reply, asked) if asked.path.endswith("/responses") else _completion(reply, asked)
    content = json.dumps(answer)
    return content[: len(content) // 2] if reply.cut == "json" else content


def _completion(reply: Reply, asked: Asked) -> dict[str, Any]:
    message = {"role": "assistant", "content": None if reply.refusal else reply.text, "refusal": reply.refusal}
    return {
        "id": "stand-in",
        "object": "chat.completion",
        "created": 0,
        "model": f"{asked.body['model']}-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": "length" if reply.is_cut else reply.finish}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
    }


def _response(reply: Reply, asked: Asked) -> dict[str, Any]:
    said = (
        {"type": "refusal", "refusal": reply.refusal}
        if reply.refusal
        else {"type": "output_text", "text": reply.text, "annotations": []}
    )
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [said]}
    return {
        "id": "stand-in",
        "object": "response",
        "created_at": 0,
        "model": f"{asked.body['model']}-2026",
        "status": "incomplete" if reply.is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if reply.is_cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [{"id": "r", "type": "reasoning", "summary": []}, message],
        "usage": {
            "input_tokens": 1000,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 100,
            "output_tokens_details": {"reasoning_tokens": 64},
            "total_tokens": 1100,
        },
    }


def _after(wait_s: float) -> dict[str, str]:
    return {"Retry-After": f"{wait_s:g}"}


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds to every answer")
    with judge_server(always=Reply(delay_s=parser.parse_args().latency)) as server:
        print(server.base_url, flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
