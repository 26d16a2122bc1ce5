"""`hamiregion exporter` as a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from support.command_line import call
from support.process import Program, finished
from support.scrapers import ask
from support.wait import eventually

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


class ExporterProcess(Program):
    """A running exporter; `urls` are where it listens."""

    def __init__(
        self,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        ours = {**dict.fromkeys(_ENVIRONMENT), **(env or {})}
        super().__init__(*inside, *COMMAND, "--listen", "127.0.0.1:0", *arguments, env=ours)
        self.wait_for("listening on")

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
