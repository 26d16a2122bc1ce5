"""Names of `procfs` for their callers until they are converted."""

from .procfs import INITIAL_PID_NAMESPACE

__all__ = ["INITIAL_PID_NAMESPACE"]
