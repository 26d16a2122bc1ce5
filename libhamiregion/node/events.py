"""What long-running work says: one event per thing that happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.text import printable

if TYPE_CHECKING:
    from libhamiregion.node.containers import Container

Detail: TypeAlias = "int | float | str | bool | None"


@attrs.frozen
class Event:
    """One thing that happened.

    Attributes:
        time_s: When, Unix seconds.
        task: Which work it comes from: ``feedback``, ``repair``, ``figures``, ``agent`` ...
        event: The kind, one word in snake_case.
        message: The same as one line of plain text; names from containers are escaped.
        container: The container that it is about, escaped; None if it is about none.
        detail: Figures that belong to it, by name.
    """

    time_s: float
    task: str
    event: str
    message: str
    container: str | None = None
    detail: Mapping[str, Detail] = attrs.field(factory=dict)


Emit: TypeAlias = Callable[[Event], None]


def silent(_: Event) -> None:
    """Drop the event."""


def container_label(container: Container) -> str:
    """A container in a message: pod UID and name, or the region's path; escaped.

    >>> from libhamiregion.node import Container
    >>> container_label(Container("0b5c", "train", "/vgpu/0b5c_train"))
    '0b5c/train'
    """
    if container.directory is not None:
        return printable(f"{container.pod_uid}/{container.name}")
    return printable(container.region_path or "a region outside the roots")


def container_place(container: Container | None) -> str:
    """What a container goes by from pass to pass: its region's path, or its directory."""
    return "" if container is None else container.region_path or container.directory or "?"


class Voice:
    """Says what one task has to say, and a failure that lasts only once."""

    def __init__(self, task: str, emit: Emit) -> None:
        self._task = task
        self._emit = emit
        self._failing: dict[str, str] = {}

    def say(
        self,
        event: str,
        message: str,
        container: Container | None = None,
        **detail: Detail,
    ) -> None:
        """Emit one event."""
        label = None if container is None else container_label(container)
        text = message if label is None else f"{label}: {message}"
        self._emit(Event(time.time(), self._task, event, printable(text), label, detail))

    def failed(self, what: str, error: Exception, container: Container | None = None) -> None:
        """Emit a failure, unless the same one was the last of that container."""
        name = type(error).__name__
        self._fail(f"{what}: {name}", f"{what}: {error}", container, name)

    def failed_because(self, why: str, container: Container | None = None) -> None:
        """The same, where there is no exception."""
        self._fail(why, why, container, None)

    def _fail(self, key: str, text: str, container: Container | None, name: str | None) -> None:
        place = container_place(container)
        if self._failing.get(place) != key:
            self._failing[place] = key
            self.say("failed", text, container, error=name)

    def well(self, container: Container | None = None) -> None:
        """Note a success: the next failure is news again."""
        self._failing.pop(container_place(container), None)

    def keep(self, places: frozenset[str]) -> None:
        """Forget the failures of all other containers; see `container_place`."""
        for key in self._failing.keys() - places - {""}:
            del self._failing[key]
