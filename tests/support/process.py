"""Programs of a test: one that has run to its end, or one alongside, which is always ended."""

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support.wait import PATIENCE_S, eventually

Finished = subprocess.CompletedProcess[str]


def finished(
    words: Iterable[object], *, check: bool = False, timeout: float = PATIENCE_S, **settings: Any
) -> Finished:
    """A program that has run to its end, in time, and what it has written as text."""
    command = [str(word) for word in words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=check, **settings
    )


def piped(words: Iterable[object], **settings: Any) -> "subprocess.Popen[str]":
    """A program that is spoken to as text."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([str(word) for word in words], text=True, **pipes, **settings)


def descriptors() -> set[str]:
    """The open descriptors of this process."""
    return {each.name for each in Path("/proc/self/fd").iterdir()}


class Stranger:
    """A process that is no child of ours, by its pidfd."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        info = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii")
        self.pid = int(info.partition("\nPid:")[2].split()[0])

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        """Return once it has ended and its number is free."""
        if self._pidfd < 0:
            return
        ended, _, _ = select.select([self._pidfd], [], [], PATIENCE_S)
        assert ended, f"process {self.pid} does not end"
        # A moment later its number is free as well: its parent ignores SIGCHLD.
        eventually(self._is_gone)
        os.close(self._pidfd)
        self._pidfd = -1

    def _is_gone(self) -> bool:
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except ProcessLookupError:
            return True
        return False


class Program(contextlib.AbstractContextManager):
    """A running program; a context manager that kills it if it is still running.

    Args:
        words: The command.
        env: Added to this process's environment; None removes a variable.
        cwd: Its working directory.

    Attributes:
        pid: The process ID.
        process: The process.
    """

    def __init__(
        self,
        *words: object,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> None:
        changed = {**os.environ, **(env or {})}
        self._directory = tempfile.TemporaryDirectory(prefix="program-")
        self._log = Path(self._directory.name, "log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in words],
                env={name: value for name, value in changed.items() if value is not None},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pid = self.process.pid

    @property
    def log(self) -> str:
        """What it has written so far, both streams."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until its log contains a regular expression; fail if the program ends before."""
        expression = re.compile(pattern, re.MULTILINE)
        eventually(lambda: expression.search(self.log) or self.process.poll() is not None)
        found = expression.search(self.log)
        assert found, f"exit status {self.process.poll()} before {pattern!r}:\n{self.log}"
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; return the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; return the exit status."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program does not end:\n{self.log}") from None

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._directory.cleanup()
