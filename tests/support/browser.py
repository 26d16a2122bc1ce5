"""A real Chromium without a screen: what a page says, loads and looks like.

It is spoken to over a pair of pipes in Chrome's DevTools protocol, JSON that ends with a NUL.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--disable-default-apps",
    "--hide-scrollbars",
    # Nobody but this machine, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


# The protocol's descriptors are 3 and 4, by number; either may be in use for the other one.
LAUNCH = (
    "import fcntl, os, sys;"
    " ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]];"
    " os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class BrowserError(AssertionError):
    """The browser refused a command, or does not answer."""


class Page:
    """One page, opened in a tab of its own, and all that happened while it was loaded.

    Attributes:
        requests: Addresses that were asked for, in order; the page's own is the first.
        failures: Requests that failed, with the reason: those that the page's policy forbids too.
        messages: What was said on the console, and exceptions that nobody caught.
        status: The status of the page itself; None for a file.
    """

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.requests: list[str] = []
        self.failures: list[str] = []
        self.messages: list[str] = []
        self.status: int | None = None
        self.idle = False

    def send(self, method: str, **parameters: Any) -> Any:
        return self._browser.send(method, parameters, self._session)

    def see(self, method: str, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Network.responseReceived" and event["type"] == "Document":
            self.status = event["response"]["status"] or None
        elif method == "Network.loadingFailed":
            self.failures.append(event.get("blockedReason") or event["errorText"])
        elif method == "Runtime.consoleAPICalled":
            said = [str(each.get("value", each.get("description"))) for each in event["args"]]
            self.messages.append(f"{event['type']}: {' '.join(said)}")
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.messages.append(f"exception: {details['text']}")
        elif method == "Log.entryAdded":
            entry = event["entry"]
            self.messages.append(f"{entry['level']}: {entry['text']}")
        elif method == "Page.lifecycleEvent" and event["name"] == "networkIdle":
            self.idle = True

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def appear(
        self, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = ""
    ) -> None:
        """Set the window's size, the colour scheme, and the medium ("print")."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def assert_fits(self, width: int) -> None:
        """See that a window of a width shows the page, in the light and in the dark."""
        colours = set()
        for dark in (False, True):
            self.appear(width=width, dark=dark)
            assert not is_blank(self.screenshot(whole=False))
            colours.add(self.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(colours) == 2
        assert self.evaluate("document.documentElement.scrollWidth") <= width

    def screenshot(self, *, whole: bool = True) -> bytes:
        """A picture of the page, as PNG."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        """The page on paper."""
        printed = self.send("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        return base64.b64decode(printed["data"])

    def close(self) -> None:
        self._browser.send("Target.closeTarget", {"targetId": self._target})


class Browser:
    """One Chromium with a fresh profile."""

    def __init__(self, directory: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        flags = (*FLAGS, f"--user-data-dir={directory / 'profile'}", "--remote-debugging-pipe")
        self._log = directory / "chromium.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out)),
                    *(CHROMIUM, *flags, "about:blank"),
                ],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(directory), "XDG_CONFIG_HOME": str(directory)},
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._pages: dict[str, Page] = {}

    def send(self, method: str, parameters: dict[str, Any], session: str | None = None) -> Any:
        """Have something done; returns the answer."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        """The next message; what a page tells of itself is noted."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            if not chunk:
                why = "ended" if ready else "does not answer"
                raise BrowserError(f"Chromium {why}: {self._log.read_text(errors='replace')}")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        page = self._pages.get(message.get("sessionId", ""))
        if page is not None and "method" in message:
            page.see(message["method"], message["params"])
        return message

    @contextlib.contextmanager
    def open(self, address: str) -> Iterator[Page]:
        """Load a page, and wait until it asks for nothing more."""
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        session = attached["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.send("Page.setLifecycleEventsEnabled", enabled=True)
        page.idle = False
        page.requests.clear()
        page.appear()
        answer = page.send("Page.navigate", url=address)
        assert "errorText" not in answer, answer["errorText"]
        deadline = time.monotonic() + PATIENCE_S
        while not page.idle:
            self._receive(deadline)
        try:
            yield page
        finally:
            del self._pages[session]
            page.close()

    def close(self) -> None:
        with contextlib.suppress(BrowserError, OSError):
            self.send("Browser.close", {})
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        os.close(self._to)
        os.close(self._from)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; starting one takes a second or two, so share it among tests."""
    with tempfile.TemporaryDirectory(
        prefix="hamiregion-chromium-", ignore_cleanup_errors=True
    ) as name:
        browser = Browser(Path(name))
        try:
            yield browser
        finally:
            browser.close()


def is_blank(png: bytes) -> bool:
    """Whether a picture has hardly more than one colour."""
    at = 8
    data = b""
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    # Lines hold differences between neighbours: of one colour they are all zeros.
    return len(set(zlib.decompress(data))) < 16
