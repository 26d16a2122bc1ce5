"""Names of `workers` for their callers until they are converted."""

from .workers import BoundedCall

__all__ = ["BoundedCall"]
