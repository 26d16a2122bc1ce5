"""`hamiregion exporter` as a process of its own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import pytest

from support.command_line import call
from support.process import finished
from support.scrapers import ask
from support.wait import PATIENCE_S, eventually

COMMAND = (sys.executable, "-m", "libhamiregion", "exporter")
# What the machine that runs the tests may have set.
_ENVIRONMENT = ("HOOK_PATH", "NODE_NAME", "HAMI_RESYNC_INTERVAL")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _ENVIRONMENT}
    return {**kept, **(extra or {})}


def once(
    *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Have the metrics printed, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _ENVIRONMENT:
            patch.delenv(name, raising=False)
        for name, text in (env or {}).items():
            patch.setenv(name, text)
        return call("exporter", "--once", *map(str, arguments))


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What should not start, as a process."""
    return finished([*COMMAND, *map(str, arguments)], env=environment())


class ExporterProcess:
    """A running exporter.

    Attributes:
        urls: Where it listens.
        process: The process.
    """

    def __init__(
        self,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        self._log: IO[str] = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 (closed by `close`)
        # Opened anew: who reads must not move the place where the process writes.
        with Path(self._log.name).open("ab") as log:
            self.process = subprocess.Popen(
                [*inside, *COMMAND, *map(str, arguments)],
                env=environment(env),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        eventually(lambda: self.process.poll() is not None or self.urls)
        assert self.process.poll() is None, self.log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """What it has said so far; threads may ask at once."""
        return Path(self._log.name).read_text(encoding="utf-8")

    @property
    def urls(self) -> list[str]:
        return re.findall(r"listening on ([^\s\"]+)", self.log)

    @property
    def url(self) -> str:
        return self.urls[0]

    def wait_until_ready(self) -> None:
        eventually(self._is_ready)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log
        return ask(self.url, "/readyz").status == 200

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


@contextlib.contextmanager
def exporter_process(
    *arguments: object, env: Mapping[str, str] | None = None, inside: Sequence[str] = ()
) -> Iterator[ExporterProcess]:
    """Start an exporter on a port of the system's choice; it is ended in any case.

    Args:
        arguments: Its options.
        env: More of its environment.
        inside: What stands before the command.
    """
    process = ExporterProcess("--listen", "127.0.0.1:0", *arguments, env=env, inside=inside)
    try:
        yield process
    finally:
        process.close()
