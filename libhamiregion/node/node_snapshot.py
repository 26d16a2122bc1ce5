"""Names of `node` for their callers until they are converted."""

from .node import NodeSnapshot

__all__ = ["NodeSnapshot"]
