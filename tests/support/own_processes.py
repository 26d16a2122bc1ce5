"""A pid namespace and a /proc of the suite's own, and the end of all that it has started.

The library searches /proc.  In the suite's own, what it finds and what it costs do not depend on
the rest of the machine, and no signal can reach the rest.  A core that the Makefile has compiled
takes this namespace for the first one, which sees every process.
"""

import ctypes
import os
import signal
from pathlib import Path
from typing import NoReturn

from libhamiregion._core import ffi, lib
from support.namespaces import why_no_new_namespace

_INITIAL = "HAMIREGION_INITIAL_PID_NAMESPACE"
_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x20000000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SI_KERNEL = 128
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT}

_libc = ctypes.CDLL(None, use_errno=True)


def move_into_own_processes(*, is_on_host: bool) -> None:
    """Go on in a grandchild; this process waits for it and ends as it does.

    The child in between adopts what the suite leaves running, and kills it in the end.

    Args:
        is_on_host: Make no namespace: what is tested has the host's pids.
    """
    is_believed = _is_believed("a link")
    is_apart = is_believed and not is_on_host and not why_no_new_namespace()
    if is_apart:
        _checked(_libc.unshare(_CLONE_NEWPID))
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    if keeper := os.fork():
        _end_as(_status_of(keeper))
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    if is_apart:
        _checked(_libc.unshare(_CLONE_NEWNS))
        _checked(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
        _checked(_libc.mount(b"proc", b"/proc", b"proc", 0, None))
    else:
        _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1))
    if suite := os.fork():
        status = _status_of(suite)
        _kill_children()
        _end_as(status)
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_SETMASK, usual)
    if is_believed and not is_on_host:
        # In a container that may make no namespace, this one has every process of the suite.
        os.environ[_INITIAL] = str(Path("/proc/self/ns/pid").readlink())


def _is_believed(link: str) -> bool:
    """Whether this core takes the first namespace from its environment."""
    os.environ[_INITIAL] = link
    found = ffi.string(lib.hr_initial_pid_namespace())
    del os.environ[_INITIAL]
    return bool(found == link.encode())


def _status_of(child: int) -> int:
    """Wait for a child's end; meanwhile reap others, and pass on signals.

    The terminal sends its own to every process of the group.
    """
    while True:
        received = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if received.si_signo != signal.SIGCHLD and received.si_code != _SI_KERNEL:
            os.kill(child, received.si_signo)
        while ended := _ended_child():
            if ended[0] == child:
                return ended[1]


def _ended_child() -> tuple[int, int] | None:
    pid, status = os.waitpid(-1, os.WNOHANG)
    return (pid, status) if pid else None


def _kill_children() -> None:
    """Kill the children, and theirs, which come here when their parents end, until none is left."""
    own = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        for pid in map(int, own.read_text().split()):
            os.kill(pid, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _end_as(status: int) -> NoReturn:
    """End without what Python does at its end: the grandchild does it."""
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
