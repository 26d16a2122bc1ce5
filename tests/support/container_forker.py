"""Forks itself into containers, as `container_factory` asks it to on its standard input.

It does what `unshare --pid --fork --kill-child --mount-proc` does, as often as a container is deep,
without an interpreter of its own for each. It maps no region itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket

import container_process

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_REC_PRIVATE = 0x4000 | 1 << 18
MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
PR_SET_PDEATHSIG = 1


def checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def enter_namespace(libc: ctypes.CDLL) -> None:
    """Go on as the first process of a new pid namespace; the one that was here waits for it."""
    checked(libc.unshare(CLONE_NEWPID | CLONE_NEWNS))
    child = os.fork()
    if child:
        # A pipe ends once nobody has its other end open.
        os.closerange(0, 3)
        os.waitpid(child, 0)
        os._exit(0)
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    checked(libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None))
    checked(libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID_NODEV_NOEXEC, None))


def become(libc: ctypes.CDLL, depth: int, directory: str, environment: dict[str, str]) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for _ in range(depth):
        enter_namespace(libc)
    container_process.main()


def main(requests: socket.socket) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not request:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pidfd = os.pidfd_open(os.getpid())
            socket.send_fds(requests, [b"+"], [pidfd])
            os.close(pidfd)
            requests.close()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            become(libc, *json.loads(request))
            return
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    main(socket.socket(fileno=0))
