"""A program that runs alongside a test: started, awaited by what it prints, and always ended."""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from typing_extensions import Self

from support.wait import PATIENCE_S, eventually


class Program:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._directory.cleanup()
