"""The processes of the demo: started, listened to, killed, and never left behind."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any, cast

import attrs

from .failures import Failure

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

GIB = 2**30
MIB = 2**20


@attrs.frozen
class Role:
    """How one worker behaves: it swings between base and ceiling, a step per pause."""

    name: str
    device: int
    base_bytes: int
    ceiling_bytes: int
    step_bytes: int
    sm_percent: int
    pause_s: float


@attrs.define(eq=False)
class Worker:
    """One worker, and what it last said."""

    role: Role
    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    held_bytes: int = 0
    granted: int = 0
    refused: int = 0
    alive: bool = True
    unread: bytes = b""

    @property
    def pid(self) -> int:
        """The process, by its pid."""
        return self.process.pid


class Crew:
    """All workers; leaving the `with` block ends them, however it is left."""

    def __init__(self, path: str, roles: tuple[Role, ...], log: Path) -> None:
        self.path = path
        self.roles = roles
        self.log = log
        self.workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        try:
            for role in self.roles:
                self.workers.append(self._start(role))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, role: Role) -> Worker:
        command = [sys.executable, "-m", "libhamiregion.cli.demo_worker", self.path]
        command += [str(role.device), str(role.base_bytes), str(role.ceiling_bytes)]
        command += [str(role.step_bytes), str(role.sm_percent), str(role.pause_s)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for the demo alone, which then ends its workers in order.
                start_new_session=True,
            )
        worker = Worker(
            role, process, cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        )
        os.set_blocking(worker.stdout.fileno(), False)
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)
        return worker

    def listen(self, seconds: float) -> None:
        """Take in what the workers say for so long; raise if one ended that should not have."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self._selector.get_map():
                time.sleep(left)
                return
            for key, _ in self._selector.select(left):
                self._hear(key.data)

    def _hear(self, worker: Worker) -> None:
        chunk = os.read(worker.stdout.fileno(), 65_536)
        if not chunk:
            self._selector.unregister(worker.stdout)
            if worker.alive:
                code = worker.process.wait()
                words = self.log.read_text(errors="replace").strip().splitlines()
                raise Failure(
                    f"{worker.role.name} ended with code {code}: {words[-1] if words else 'silent'}"
                )
            return
        *lines, worker.unread = (worker.unread + chunk).split(b"\n")
        if lines:
            said: dict[str, Any] = json.loads(lines[-1])
            worker.held_bytes = said["held_bytes"]
            worker.granted = said["granted"]
            worker.refused = said["refused"]

    def kill(self, worker: Worker) -> None:
        """`kill -9`: the worker cannot clean up, and that is the point."""
        worker.alive = False
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()

    def close(self) -> None:
        """End the workers: by the end of their input, or else by force."""
        for worker in self.workers:
            worker.stdin.close()
        deadline = time.monotonic() + 2
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.stdout.close()
        self._selector.close()
