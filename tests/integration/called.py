"""The command line called inside this process: all of it but the start of an interpreter."""

import contextlib
import io
import subprocess
import sys

from unit.cli_process import checked

from libhamiregion.cli.verbs import hamiregion


def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What `hamiregion ARGUMENTS` does with its output in a pipe."""
    before = sys.argv
    sys.argv = ["hamiregion", *arguments]
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            hamiregion.run()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    return checked(subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue()))
