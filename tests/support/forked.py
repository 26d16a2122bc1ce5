"""Work in a forked child, and work as a user without privileges."""

import contextlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

from support.wait import PATIENCE_S

T = TypeVar("T")
NOBODY = 65534


def in_child(work: Callable[[], T]) -> T:
    """Run `work` in a forked child; return what it returned, raise what it raised."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        # Nothing of the parent's, pytest above all, may go on here; and nothing for ever.
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE_S)
            try:
                outcome: tuple[bool, object] = (True, work())
            except BaseException as error:  # noqa: BLE001
                outcome = (False, error)
            os.write(write_end, pickle.dumps(outcome))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(pid, 0)
    assert status != signal.SIGALRM, "the child did not end"
    assert status == 0, f"the child ended with wait status {status}"
    assert answer, "the child's answer cannot be pickled"
    succeeded, value = pickle.loads(answer)
    if not succeeded:
        raise value
    return value


@contextlib.contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[int]:
    """Have a forked child work, again and again, until it is killed; the pid of the child."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def unprivileged(work: Callable[[], T]) -> T:
    """Run `work` where permission bits count: in a child without privileges, if we are root."""
    if os.geteuid() != 0:
        return work()

    def dropped() -> T:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return work()

    return in_child(dropped)
