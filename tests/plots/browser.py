"""A real headless Chromium over its DevTools pipe: two file descriptors, JSON ended by a zero byte, no further package."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """The browser of this machine; KVLAB_CHROMIUM names another."""
    return os.environ.get("KVLAB_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page. What the page says on its console, and errors it throws, gather in `errors`."""

    def __init__(self, path: str) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="kvlab-browser-", ignore_cleanup_errors=True)
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        # The browser reads descriptor 3 and writes descriptor 4.
        arrange = f'exec 3<&{from_us} 4>&{to_us}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", arrange, path, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(from_us, to_us), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(from_us)
        os.close(to_us)
        self._waiting = b""
        self._count = 0
        self._session: str | None = None
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Performance.enable", timeDomain="threadTicks")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def ask(self, method: str, timeout: float = 180, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the DevTools protocol and waits for its answer; events before it are noted."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while True:
            answer = self._message(end)
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def open(self, page: Path) -> int:
        """Opens a page from disk and waits until it says that it is ready: milliseconds since it was asked for."""
        self.errors.clear()
        self.requests.clear()
        self.ask("Page.navigate", url=page.resolve().as_uri())
        end = time.monotonic() + 180
        while time.monotonic() < end:
            if ready := self.run("location.protocol === 'file:' && document.documentElement?.dataset.ready"):
                return int(ready)
            time.sleep(0.02)
        raise AssertionError(f"the page was not ready within three minutes: {self.errors}")

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise it makes; an exception fails."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def cpu_seconds(self) -> float:
        """What the page's thread has worked since the browser began: no less on a machine that others load."""
        return next(m["value"] for m in self.ask("Performance.getMetrics")["metrics"] if m["name"] == "TaskDuration")

    def press(self, key: str) -> None:
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                     **({"text": text} if text and kind == "keyDown" else {}))

    def _message(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            left = end - time.monotonic()
            assert left > 0 and select.select([self._from], [], [], left)[0], "the browser does not answer"
            got = os.read(self._from, 1 << 20)
            assert got, "the browser ended"
            self._waiting += got
        message, self._waiting = self._waiting.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(parameters["exceptionDetails"].get("exception", {}).get("description", "exception"))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
