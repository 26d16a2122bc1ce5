"""Why a program is not started under a region."""

from __future__ import annotations


class LaunchError(Exception):
    """The program was not started: no driver, no such GPU, or something that would defeat a limit.

    The message is one sentence that says what to do.
    """
