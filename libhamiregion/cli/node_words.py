"""What the verbs about a node call things: pods, containers, roots that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from rich.text import Text

from libhamiregion.text import printable

from .wording import NOTHING

if TYPE_CHECKING:
    from rich.table import Table

    from libhamiregion.node import Container, Node

# Names of Kubernetes have 253 characters; a directory's name is anything.
LONGEST_NAME = 253
_SHORT_ID = 12

# From this width on there is room for namespaces, and for columns that not everybody needs.
ROOMY = 108

_INCOMPLETE = (
    "not all of the node's processes can be seen from here, so states may be unknown; run as root"
    " in the host's pid namespace"
)


@attrs.frozen
class Names:
    """What a container is called, raw text; None is not known."""

    namespace: str | None
    pod: str | None
    pod_uid: str | None
    container: str | None
    container_id: str | None

    @property
    def order(self) -> tuple[object, ...]:
        """A key that sorts by name, what has none last."""
        key = (self.namespace, self.pod or self.pod_uid, self.container or self.container_id)
        return tuple((part is None, part or "") for part in key)

    @property
    def pod_words(self) -> str:
        """``namespace/pod``, else the UID."""
        if self.pod is None:
            return _shown(self.pod_uid)
        return _shown(self.pod if self.namespace is None else f"{self.namespace}/{self.pod}")

    @property
    def short_words(self) -> str:
        """``pod/container`` in one, without the namespace."""
        pod = _shown(self.pod or self.pod_uid)
        if pod == NOTHING or self.container is None:
            return self.container_words if pod == NOTHING else pod
        return f"{pod}/{self.container_words}"

    @property
    def container_words(self) -> str:
        """The container's name, else the beginning of its id."""
        if self.container is None and self.container_id is not None:
            return self.container_id[:_SHORT_ID]
        return _shown(self.container)


def shortened(text: str, *, style: str = "") -> Text:
    """A cell that is cut where there is no room, in a column that may shrink.

    Only columns that may wrap give way to the others, and their cells would grow lines instead.
    """
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def name_columns(table: Table, *, roomy: bool) -> None:
    """Add the columns of `name_cells`."""
    for heading in ("pod", "container") if roomy else ("container",):
        table.add_column(heading, min_width=6 if roomy else 9)


def name_cells(names: Names, *, roomy: bool) -> list[Text]:
    """Name a container in two cells, or where there is little room in one."""
    if not roomy:
        return [shortened(names.short_words)]
    return [shortened(names.pod_words), shortened(names.container_words)]


def names_of(node: Node, container: Container) -> Names:
    """What the node's resolvers call a container."""
    name = node.pod_name(container)
    container_id = container.container_id
    return Names(
        None if name is None else name.namespace,
        None if name is None else name.pod,
        container.pod_uid,
        container.name or (None if name is None else name.container),
        None if container_id is None else container_id.id,
    )


def word(text: str) -> str:
    """Make raw text one word of a table: printable, bounded, without blanks."""
    return printable(text, LONGEST_NAME).replace(" ", r"\x20") or NOTHING


def _shown(text: str | None) -> str:
    return NOTHING if text is None else printable(text, LONGEST_NAME)


def root_warnings(node: Node) -> tuple[str, ...]:
    """Say which directories could not be listed, and why."""
    return tuple(
        f"{root}: {error.strerror or error}" for root, error in sorted(node.root_errors.items())
    )


def root_failure(node: Node, roots: tuple[str, ...]) -> str | None:
    """Say so if roots were given and none of them could be listed."""
    if not roots or node.scanned_roots:
        return None
    return "none of the directories given could be listed"


def node_notes(node: Node) -> tuple[str, ...]:
    """Say what this user, in this place, cannot see."""
    if node.processes.is_complete:
        return ()
    return (_INCOMPLETE,)
