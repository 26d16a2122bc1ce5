"""Where containers come from: one interpreter that has read everything, forked for each of them.

That is `container_forker`.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from support.process import Stranger
from support.wait import PATIENCE_S

SCRIPT = Path(__file__).with_name("container_forker.py")


class ForkedProcess(Stranger):
    """As much of a `subprocess.Popen` as tests ask of a container, which is no child of theirs."""

    def __init__(self, pidfd: int, stdin: TextIO, stdout: TextIO) -> None:
        super().__init__(pidfd)
        self.stdin = stdin
        self.stdout = stdout


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
