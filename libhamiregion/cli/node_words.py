"""Old place of what `format` has."""

from .format import root_failure

__all__ = ["root_failure"]
