"""Names of `rows` for its callers until they are converted."""

from .rows import driver_gap as driver_gap  # noqa: PLC0414
