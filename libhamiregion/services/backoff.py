"""Leaving alone for a while what has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from libhamiregion.observation.containers import Container

# A container that holds its lock for ever costs one timeout in that many passes.
_MOST_PASSES = 64


def owner_of(container: Container | None) -> str:
    """Whose failures count together: something that the container itself cannot change.

    Its directory under a root; outside the roots its id, whatever files it maps, and one name for
    all processes that are in no container.

    >>> from libhamiregion.node import Container
    >>> owner_of(Container("0b5c", "train", "/vgpu/0b5c_train", "/vgpu/0b5c_train/a.cache"))
    '/vgpu/0b5c_train'
    """
    if container is None:
        return ""
    if container.directory is not None:
        return container.directory
    return "" if container.container_id is None else container.container_id.id


class Backoff:
    """Counts passes to skip: after the first failure 1, then 2, 4 and so on up to 64.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._failures: dict[Hashable, int] = {}
        self._skip: dict[Hashable, int] = {}

    def should_skip(self, key: Hashable) -> bool:
        """Whether this pass is to be skipped; counts it."""
        left = self._skip.get(key, 0)
        if left:
            self._skip[key] = left - 1
        return left > 0

    def failures(self, key: Hashable) -> int:
        """How often in a row it has failed."""
        return self._failures.get(key, 0)

    def failed(self, key: Hashable) -> None:
        """Skip more passes than the last time."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._skip[key] = min(1 << min(failures, 10), _MOST_PASSES)

    def recovered(self, key: Hashable) -> None:
        """Forget its failures."""
        self._failures.pop(key, None)
        self._skip.pop(key, None)

    def retain(self, keys: Collection[Hashable]) -> None:
        """Forget the failures of all other keys."""
        for key in self._failures.keys() - set(keys):
            self.recovered(key)
