"""Names of `rows` for their callers until they are converted."""

from .rows import Join

__all__ = ["Join"]
