"""The command line called inside this process: all of it but the start of an interpreter."""

import contextlib
import io
import logging
import subprocess
import sys
from collections.abc import Iterator

from unit.cli_process import checked

from libhamiregion.cli.verbs import hamiregion


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


def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What `hamiregion ARGUMENTS` does with its output in a pipe."""
    return checked(with_notes(*arguments))


def with_notes(*arguments: str) -> "subprocess.CompletedProcess[str]":
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
