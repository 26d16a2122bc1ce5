"""Where containers come from: one interpreter that has read everything, forked for each of them.

That is `container_forker`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from support.wait import PATIENCE_S, eventually

SCRIPT = Path(__file__).with_name("container_forker.py")


class ForkedProcess:
    """As much of a `subprocess.Popen` as tests ask of a container, which is no child of theirs."""

    def __init__(self, pidfd: int, stdin: TextIO, stdout: TextIO) -> None:
        self._pidfd = pidfd
        self.stdin = stdin
        self.stdout = stdout
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
        eventually(self._is_gone)
        os.close(self._pidfd)
        self._pidfd = -1

    def _is_gone(self) -> bool:
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except ProcessLookupError:
            return True
        return False


class ContainerFactory:
    """Forks containers; it goes with the process that has made it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PATIENCE_S)
        with theirs:
            self._process = subprocess.Popen([sys.executable, str(SCRIPT)], stdin=theirs)

    def fork(self, depth: int) -> ForkedProcess:
        """A process that serves as a container, so many pid namespaces below.

        It finds the directory and the environment that this process has now, but /proc shows that
        of the factory.
        """
        (its_input, commands), (answers, its_output) = os.pipe(), os.pipe()
        request = json.dumps([depth, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(self._socket, [request], [its_input, its_output])
        os.close(its_input)
        os.close(its_output)
        _, fds, _, _ = socket.recv_fds(self._socket, 1, 1)
        return ForkedProcess(fds[0], os.fdopen(commands, "w"), os.fdopen(answers))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(PATIENCE_S)


@functools.cache
def factory() -> ContainerFactory:
    """The one of this process."""
    return ContainerFactory()


def close_factory() -> None:
    if factory.cache_info().currsize:
        factory().close()
        factory.cache_clear()
