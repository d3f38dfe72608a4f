"""A headless Chromium, driven through chromedriver's HTTP interface."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip


def missing() -> str | None:
    """What is not installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        return "no Chromium is installed (Debian: apt install chromium chromium-driver)"
    if shutil.which("chromedriver") is None:
        return "no chromedriver is installed (Debian: apt install chromium-driver)"
    return None


@dataclass
class Browser:
    """A session of chromedriver."""

    address: str

    def call(self, path: str, values: dict[str, Any] | None = None) -> Any:
        data = None if values is None else json.dumps(values).encode()
        request = urllib.request.Request(f"{self.address}/{path}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command: str, **parameters: Any) -> Any:
        values = {"cmd": command, "params": parameters}
        return self.call("goog/cdp/execute", values)

    def open(self, page: Path, width: int, *, dark: bool) -> None:
        """Open a file in a window of this width, in a light or dark scheme."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        self.call("url", {"url": page.resolve().as_uri()})

    def evaluate(self, script: str) -> Any:
        return self.call("execute/sync", {"script": f"return {script}", "args": []})

    def console(self) -> list[str]:
        """The messages since the last call, errors and warnings."""
        return [entry["message"] for entry in self.call("se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last call."""
        events = (
            json.loads(entry["message"])["message"]
            for entry in self.call("se/log", {"type": "performance"})
        )
        sent = (e["params"] for e in events if e["method"] == "Network.requestWillBeSent")
        return [each["request"]["url"] for each in sent]

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        found = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def started(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile; it ends with the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(f"{address}/status")
        options = {
            "binary": shutil.which("chromium") or shutil.which("chromium-browser"),
            "args": [*ARGUMENTS, f"--user-data-dir={profile}"],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        session = Browser(address).call("session", {"capabilities": {"alwaysMatch": wanted}})
        browser = Browser(f"{address}/session/{session['sessionId']}")
        try:
            yield browser
        finally:
            urllib.request.urlopen(
                urllib.request.Request(browser.address, method="DELETE"), timeout=30
            ).close()
    finally:
        driver.terminate()
        driver.wait(30)


def _wait(address: str) -> None:
    for _ in range(100):
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("chromedriver does not answer")
