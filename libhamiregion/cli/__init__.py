"""The command line `hamiregion`; needs the extra `cli`."""

from .app import main

__all__ = ["main"]
