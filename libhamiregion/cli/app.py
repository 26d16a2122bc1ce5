"""The entry point. It imports no optional dependency, so that it can say which one is missing."""

import sys
from typing import NoReturn

# Module to the extra that installs it.
EXTRAS = {
    "bcrypt": "exporter",
    "click": "cli",
    "h11": "exporter",
    "jsonschema": "plan",
    "kubernetes": "kubernetes",
    "prometheus_client": "exporter",
    "rich": "cli",
    "uvicorn": "exporter",
    "yaml": "exporter,plan",
}


def main() -> NoReturn:
    """Run the command line and exit: 0 fine, 1 failed, 2 wrong usage."""
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
