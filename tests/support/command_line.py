"""The command line as people run it: a process with a pipe, or one with a terminal."""

import contextlib
import errno
import fcntl
import io
import json
import logging
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping

from libhamiregion.cli.verbs import hamiregion
from libhamiregion.testing import FakeNode
from support.answers import check_answer
from support.wait import PATIENCE_S

COMMAND = (sys.executable, "-m", "libhamiregion")

# The terminal has to control the process, so that what is typed there reaches it as a signal. A
# shell that runs tests in the background has them ignore Ctrl-C, and their children too.
TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    " fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)

COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38;[0-9;]+)m")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# What a verb for the node may say of other processes of this machine, or of this user's rights.
NOTES = re.compile(
    r"regions? elsewhere|not all of the node.s processes can be seen|--outside"
    r"|^Note: the mappings of [0-9,]+ process(es)? are not known"  # of no container
)


def without_notes(stderr: str) -> str:
    """What a command said, but for notes about processes that are none of the test's."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not (line.startswith("Note: ") and NOTES.search(line)))


def checked(answer: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """The same without those notes; what --json has answered is as its schema says."""
    if "--json" in answer.args:
        for line in answer.stdout.splitlines():
            check_answer(json.loads(line))
    answer.stderr = without_notes(answer.stderr)
    return answer


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment that says nothing about terminals but what a test says."""
    silent = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "COLORTERM"}
    kept = {name: value for name, value in os.environ.items() if name not in silent}
    # What pytest's workers have of a terminal's size comes also with what was made of os.environ.
    said = {name: value for name, value in (extra or {}).items() if os.environ.get(name) != value}
    return {**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **said}


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `hamiregion ARGUMENTS` in a pipe."""
    answer = subprocess.run(
        [*COMMAND, *arguments],
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=PATIENCE_S,
        check=False,
    )
    return checked(answer)


@contextlib.contextmanager
def logging_kept() -> Iterator[None]:
    """Give the log back: services take all of it, and this process goes on after them."""
    root, library = logging.getLogger(), logging.getLogger("libhamiregion")
    kept = root.handlers[:], root.level, library.level, logging.raiseExceptions
    try:
        yield
    finally:
        root.handlers[:] = kept[0]
        root.setLevel(kept[1])
        library.setLevel(kept[2])
        logging.raiseExceptions = kept[3]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What `hamiregion ARGUMENTS` does with its output in a pipe."""
    return checked(with_notes(*arguments))


def asked(node: FakeNode, *arguments: str) -> tuple[int, str, str]:
    """Exit status, answer and messages of a command about a fake node."""
    answer = call(*arguments, "--root", str(node.root), "--pod-logs", str(node.pod_logs))
    return answer.returncode, answer.stdout, answer.stderr


def refused(*arguments: str, code: int = 2) -> str:
    """What `hamiregion ARGUMENTS` says as it ends with this code and without an answer."""
    answer = call(*arguments)
    assert (answer.returncode, answer.stdout) == (code, ""), answer.stderr
    return answer.stderr


def with_notes(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What it does, with its notes about processes elsewhere."""
    before = sys.argv
    sys.argv = ["hamiregion", *arguments]
    out, err = io.StringIO(), io.StringIO()
    try:
        with (
            logging_kept(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            hamiregion.run()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def start(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `hamiregion ARGUMENTS` in a pipe, for tests that read while it runs."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Terminal(contextlib.AbstractContextManager):
    """`hamiregion ARGUMENTS` on a terminal of its own; `screen` is all that it wrote to it."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        columns: int = 100,
        rows: int = 40,
    ) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        # At Ctrl-C the kernel would drop what has not been read here, a moment after the signal:
        # also what the command has written since.
        modes = termios.tcgetattr(slave)
        modes[3] |= termios.NOFLSH
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", TAKE_TERMINAL, *COMMAND, *arguments],
            env=environment(env),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.written = b""

    @property
    def screen(self) -> str:
        return self.written.decode("utf-8", "surrogateescape")

    @property
    def text(self) -> str:
        """What was written, without escapes."""
        return ESCAPES.sub("", self.screen)

    def wait_for(self, condition: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.screen):
            assert self._read(deadline), f"the command ended: {self.screen}"

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait(self) -> int:
        """Read to the end; return the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more was written: {self.screen}"
        try:
            chunk = os.read(self.master, 65_536)
        except OSError as error:
            # How Linux says that nobody has the other end open.
            if error.errno != errno.EIO:
                raise
            return False
        self.written += chunk
        return bool(chunk)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


def on_terminal(
    *arguments: str, env: Mapping[str, str] | None = None, columns: int = 100
) -> Terminal:
    """Run a command to its end on a terminal; it must succeed."""
    with Terminal(*arguments, env=env, columns=columns) as terminal:
        assert terminal.wait() == 0, terminal.screen
        return terminal


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
