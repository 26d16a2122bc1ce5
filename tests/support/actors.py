"""Other processes, which do with a region what they are told, and can be killed at any time.

An actor is forked by a factory that has no region open itself, so it maps what it opens and
nothing else. A factory may live in a pid namespace of its own. Run as a program, this file is one.
"""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.process import Stranger
from support.wait import PATIENCE_S


class Actor:
    """One process. `pid` is what it calls itself, `pid_here` what this process would call it."""

    def __init__(self, process_factory: socket.socket) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(process_factory, [b"+"], [theirs.fileno()])
        ours.settimeout(PATIENCE_S)
        message, fds, _, _ = socket.recv_fds(ours, 32, 1)
        self._process = Stranger(fds[0])
        self._channel = ours
        self._stream = ours.makefile("rwb")
        self.pid, self.pid_here = int(message), self._process.pid

    def __call__(self, what: str, /, *args: Any, **kwargs: Any) -> Any:
        """Have something done, and return or raise what came of it."""
        self.start(what, *args, **kwargs)
        return self.outcome()

    def start(self, what: str, /, *args: Any, **kwargs: Any) -> None:
        """Have something done meanwhile; `outcome` waits for it."""
        pickle.dump((what, args, kwargs), self._stream)
        self._stream.flush()

    def outcome(self) -> Any:
        succeeded, value = pickle.load(self._stream)
        if not succeeded:
            raise value
        return value

    def is_done(self, within_s: float = 0.0) -> bool:
        """Whether what was started has come to an end."""
        return bool(select.select([self._channel], [], [], within_s)[0])

    def kill(self) -> None:
        """SIGKILL it; on return the kernel has taken everything away from it."""
        self._process.kill()
        self._close()

    def leave(self) -> None:
        """Let it end as an interpreter does, with its exit handlers."""
        self.start("leave")
        self._close()

    def _close(self) -> None:
        self._process.wait()
        # What could not be sent to a dead process is lost.
        try:
            self._stream.close()
        except BrokenPipeError:
            pass
        finally:
            self._channel.close()


class ProcessFactory:
    """Where actors come from; `inside` is the command that it is started by, e.g. unshare."""

    def __init__(self, *inside: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE_S)
        self.actors: list[Actor] = []
        with theirs:
            self._process = subprocess.Popen(
                [*inside, sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )

    def actor(
        self, path: str | os.PathLike[str] | None = None, *, attach: bool = False, **options: Any
    ) -> Actor:
        """A new process; with a path it opens that region, writable unless told otherwise."""
        actor = Actor(self._socket)
        self.actors.append(actor)
        if path is not None:
            actor("open", os.fspath(path), **{"writable": True, **options})
        if attach:
            actor("attach")
        return actor

    def kill_all(self) -> None:
        while self.actors:
            self.actors.pop().kill()

    def close(self) -> None:
        self.kill_all()
        self._socket.close()
        self._process.wait(PATIENCE_S)


MakeActor = Callable[..., Actor]
"""The fixture `actor`; given a path, each process opens that region."""


def map_libvgpu(actor: Actor, directory: Path) -> None:
    """Let an actor look like a process that HAMi has given a GPU: a file of that name is mapped."""
    library = directory / "libvgpu.so"
    library.write_bytes(bytes(4096))
    actor("evaluate", _MAP, library=str(library))


_MAP = """
import mmap
with open(library, "rb") as stream:
    scene.library = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
"""


# ---- the other side ----


class Scene:
    """What an actor can do: these methods, and those of its `region` and `slot` by dotted names."""

    def __init__(self) -> None:
        self.region: Any = None
        self.slot: Any = None
        self._held: Any = None

    def do(self, what: str, *args: Any, **kwargs: Any) -> Any:
        target: Any = self
        for name in what.split("."):
            target = getattr(target, name)
        return target(*args, **kwargs) if callable(target) else target

    def open(self, path: str, **options: Any) -> None:
        import libhamiregion

        self.region = libhamiregion.open_region(path, **options)

    def attach(self, **options: Any) -> None:
        self.slot = self.region.attach(**options)

    def lock(self, timeout_s: float = 10.0) -> None:
        held = self.region.lock(timeout_s)
        held.__enter__()
        self._held = held

    def unlock(self) -> None:
        self._held.__exit__(None, None, None)

    def evaluate(self, source: str, **names: Any) -> Any:
        """The way out for what is needed once."""
        names.update(scene=self, region=self.region, slot=self.slot)
        exec(source, names)
        return names.get("answer")

    def leave(self) -> None:
        sys.exit()


def act(channel: socket.socket) -> None:
    pidfd = os.pidfd_open(os.getpid())
    socket.send_fds(channel, [b"%d" % os.getpid()], [pidfd])
    os.close(pidfd)
    stream = channel.makefile("rwb")
    scene = Scene()
    while True:
        try:
            what, args, kwargs = pickle.load(stream)
        except (EOFError, ConnectionError):
            return
        try:
            answer: tuple[bool, object] = (True, scene.do(what, *args, **kwargs))
        except Exception as error:  # noqa: BLE001
            answer = (False, error)
        pickle.dump(answer, stream)
        stream.flush()


def serve(requests: socket.socket) -> None:
    import libhamiregion  # noqa: F401 (once, for all of them)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, 1, 1)
        if not message:
            return
        channel = socket.socket(fileno=fds[0])
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            act(channel)
            return
        channel.close()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
