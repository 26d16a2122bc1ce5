"""The entry point. It imports no optional dependency, so that it can say which one is missing."""

import contextlib
import errno
import io
import os
import sys
from typing import NoReturn

# Module to the extra that installs it.
EXTRAS = {
    "bcrypt": "exporter",
    "click": "cli",
    "ijson": "kubernetes",
    "jinja2": "cli",
    "markupsafe": "cli",
    "prometheus_client": "exporter",
    "rich": "cli",
    "yaml": "exporter,kubernetes,plan",
}


class _ClosedOutput(io.TextIOBase):
    """Standard output that was closed at the start: an answer is an error, as it is for others."""

    def write(self, text: str) -> int:
        """Refuse what is not nothing."""
        if text:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")
        return 0


def _open_standard_streams() -> None:
    """Have what was closed at the start, as by ``>&-``, be no file of the command's.

    Else the next file to be opened would take its number, and what is meant for a person would go
    into a region.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number: this one. What is started from here has it too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has None for a stream that was closed.
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _drop_unwritten() -> None:
    """Have the interpreter find nothing to write at its end where stdout cannot be written to.

    Python would make the exit code 120 of it; what failed has been said by then.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> NoReturn:
    """Run the command line and exit: 0 fine, 1 failed, 2 wrong usage, 3 as the verb says."""
    _open_standard_streams()
    # A path that the terminal's encoding lacks is shown escaped; it is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        from .verbs import hamiregion

        hamiregion.run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        sys.stderr.write(
            f"hamiregion needs {missing}, which is not installed:"
            f" pip install 'libhamiregion[{EXTRAS[missing]}]'\n"
        )
        sys.exit(1)
    finally:
        _drop_unwritten()
