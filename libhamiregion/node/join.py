"""Names of `rows` for their callers until they are converted."""

from .rows import NO_ROW, DeviceSums, Join, KnownJoin

__all__ = ["NO_ROW", "DeviceSums", "Join", "KnownJoin"]
