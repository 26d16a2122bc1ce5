"""What the doctor keeps of a node from one diagnosis to the next."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Hashable

    from libhamiregion.node.node import Node


@attrs.frozen(eq=False)
class DoctorMemory:
    """What is kept of one node.

    Attributes:
        lock: Held while the node is diagnosed or repaired.
        standing: What has stood still, with its value and since when, on the clock that is never
            set.
    """

    lock: threading.RLock = attrs.Factory(threading.RLock)
    standing: dict[Hashable, tuple[Hashable, float]] = attrs.Factory(dict)


_adding = threading.Lock()
_memories: weakref.WeakKeyDictionary[Node, DoctorMemory] = weakref.WeakKeyDictionary()


def memory_of(node: Node) -> DoctorMemory:
    """What is kept of a node, for as long as that lives."""
    with _adding:
        return _memories.setdefault(node, DoctorMemory())


def _leave_in_child() -> None:
    # Another thread of the parent may have been inside, and does not exist in the child.
    global _adding, _memories
    _adding, _memories = threading.Lock(), weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_leave_in_child)
