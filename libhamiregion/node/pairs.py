"""Names of `rows` for its callers until they are converted."""

from .rows import Pairs as Pairs  # noqa: PLC0414
