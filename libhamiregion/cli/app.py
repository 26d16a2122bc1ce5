"""The entry point. It imports without click and rich, so that it can say that they are missing."""

import sys
from typing import NoReturn

NEEDED = frozenset({"click", "rich"})


def main() -> NoReturn:
    """Run the command line and exit: 0 fine, 1 failed, 2 wrong usage."""
    try:
        from .verbs import hamiregion
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        sys.stderr.write(
            f"hamiregion needs {missing}, which is not installed:"
            " pip install 'libhamiregion[cli]'\n"
        )
        sys.exit(1)
    # A path that the terminal's encoding lacks is shown escaped; it is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    hamiregion.run()
