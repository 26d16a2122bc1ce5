"""What is different in a node's containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .containers import Container


@attrs.frozen
class NodeChanges:
    """What a refresh found different.

    `Node.containers` is what it was, without those in `removed`, with those in `added` and
    `replaced`.

    Attributes:
        added: Containers that are new.
        removed: Containers that have gone, or stand in `replaced` in another form. A region that
            they do not have any more is closed.
        replaced: Containers of which something is different, as they are now: their region came,
            went or is another file, the reason why there is none is another, or further files.
    """

    added: tuple[Container, ...] = ()
    removed: tuple[Container, ...] = ()
    replaced: tuple[Container, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is different."""
        return bool(self.added or self.removed)


def changes_between(before: Sequence[Container], after: Sequence[Container]) -> NodeChanges:
    """Compare the containers of two refreshes."""
    if before is after:
        return NodeChanges()
    gone, new = set(before).difference(after), set(after).difference(before)
    replaced = {_identity(each) for each in gone} & {_identity(each) for each in new}
    return NodeChanges(
        added=tuple(each for each in after if each in new and _identity(each) not in replaced),
        removed=tuple(each for each in before if each in gone),
        replaced=tuple(each for each in after if each in new and _identity(each) in replaced),
    )


def _identity(container: Container) -> object:
    """What stays the same where a container is replaced."""
    return container.directory or (container.path_in_namespace, container.container_id)
