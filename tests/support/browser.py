"""A headless Chromium driven over its pipe (DevTools protocol), with what it complained of and what it asked for."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
          "--disable-background-networking", "--window-size=1280,1600", "--remote-debugging-pipe")  # fmt: skip
_TIMEOUT_S = 120


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(
    find_browser() is None and "PHYSEDIT_MUST_BROWSE" not in os.environ,
    reason="no Chromium is installed (apt-get install chromium); with PHYSEDIT_MUST_BROWSE=1 its tests fail instead",
)


@dataclass
class Tab:
    """One page. ``errors`` are exceptions, console errors and log entries; ``requests`` every address asked for."""

    to_browser: int
    from_browser: int
    session: str = ""
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _unread: bytes = b""
    _last_id: int = 0

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Returns the browser's answer; what it says meanwhile is kept."""
        self._last_id += 1
        message: dict[str, object] = {"id": self._last_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a script expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Returns once the expression is true."""
        looped = f"new Promise(ok => {{ const look = () => ({expression}) ? ok(1) : setTimeout(look, 30); look(); }})"
        self.evaluate(looped)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self.from_browser], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"the browser said nothing for {_TIMEOUT_S} s"
            said = os.read(self.from_browser, 2**16)
            assert said, "the browser has ended"
            self._unread += said
        message, _, self._unread = self._unread.partition(b"\0")
        content: dict[str, Any] = json.loads(message)
        return content

    def _note(self, event: dict[str, Any]) -> None:
        method, said = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(said["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(str(said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(said["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])


@contextmanager
def opened(page: Path, profile: Path) -> Iterator[Tab]:
    """Yields a tab in which the file is loaded; ``profile`` is a folder for the browser's own files."""
    browser = find_browser()
    assert browser is not None
    for_browser, to_browser = os.pipe()
    from_browser, of_browser = os.pipe()
    # The browser reads descriptor 3 and writes 4.
    command = ["bash", "-c", f'exec "$@" 3<&{for_browser} 4>&{of_browser}', "bash", browser, *_FLAGS]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(for_browser, of_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(for_browser)
    os.close(of_browser)
    try:
        tab = Tab(to_browser, from_browser)
        target = tab.call("Target.createTarget", url="about:blank")["targetId"]
        tab.session = tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            tab.call(f"{domain}.enable")
        tab.call("Page.navigate", url=page.resolve().as_uri())
        yield tab
    finally:
        os.close(to_browser)
        os.close(from_browser)
        process.terminate()
        process.wait(timeout=30)
