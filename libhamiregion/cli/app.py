"""The entry point. It imports no optional dependency, so that it can say which one is missing."""

import contextlib
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


def _open_standard_streams() -> None:
    """Open /dev/null in place of streams that are closed, as by ``>&-``.

    Else the next file to be opened would take their number, and answers would go into a region.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _drop_unwritten() -> None:
    """Leave nothing to be written at the interpreter's end, which would change the exit code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> NoReturn:
    """Run the command line and exit with its code."""
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
            f" pip install '.[{EXTRAS[missing]}]' in a clone of libhamiregion\n"
        )
        sys.exit(1)
    finally:
        _drop_unwritten()
