"""What long-running work reports: events, bounded in length and in number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.text import error_text, printable

from .backoff import owner_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from libhamiregion.observation.containers import Container

Detail: TypeAlias = "int | float | str | bool | None"

# A line in a log has 500 characters at most; time, task and kind stand before the message.
_MESSAGE_LIMIT = 400
_LABEL_LIMIT = 120
_DETAIL_LIMIT = 100
# A count that has not grown for so long begins anew, and so many counts are kept.
_REPEAT_WINDOW_S = 3600.0
_COUNTS_LIMIT = 10_000


@attrs.frozen
class Event:
    """One thing that happened.

    Attributes:
        time_s: When, Unix seconds.
        task: Which work it comes from: ``feedback``, ``repair``, ``figures``, ``agent`` ...
        event: The kind, one word in snake_case.
        message: The event as one line of plain text, 400 characters at most; names from containers
            are escaped.
        container: The container that it is about by its pod's UID and its own name, escaped; None
            if it is about none.
        detail: Figures that belong to it, by name; of a container also its ``pod``, namespace and
            name, where they are known.
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
    """A container without its pod's name: pod UID and name, or its region's path; bounded.

    >>> from libhamiregion.node import Container
    >>> container_label(Container("0b5c", "train", "/vgpu/0b5c_train"))
    '0b5c/train'
    >>> container_label(Container(claim_uid="6f1c", directory="/vgpu/claims/6f1c"))
    'claim/6f1c'
    """
    if container.claim_uid is not None:
        return f"claim/{container.claim_uid}"
    if container.directory is not None:
        return printable(f"{container.pod_uid}/{container.name}", _LABEL_LIMIT)
    path = container.path_in_namespace or container.region_path
    return printable(path or "a region outside the roots", _LABEL_LIMIT)


def container_words(container: Container) -> str:
    """A container in a message: by the names of its pod where they are known, else by its label.

    >>> from libhamiregion.node import Container
    >>> container_words(Container("0b5c", "train", "/vgpu/0b5c_train"))
    '0b5c/train'
    """
    pod, claim = _pod_of(container), container.claim
    if claim is not None:
        return printable(f"claim/{claim.namespace}/{claim.claim}", _LABEL_LIMIT)
    if pod is None:
        return container_label(container)
    if container.directory is None:
        # It may have several.
        return printable(f"{pod} {container_label(container)}", _LABEL_LIMIT)
    return printable(f"{pod}/{container.name}", _LABEL_LIMIT)


def _pod_of(container: Container) -> str | None:
    """Namespace and name of a container's pod; of a claim, those of its only holder."""
    name = container.pod_name
    if name is None or name.namespace is None or name.pod is None:
        return None
    return f"{name.namespace}/{name.pod}"


class EventReporter:
    """Reports the events of one task, so that no container can fill a log with them.

    Events of one kind about one container are repetitions of each other, whatever their messages
    say: the 1st, 2nd, 4th, 8th ... is passed on, with the count. A container is recognised by
    an identity that it cannot change (`owner_of`). After an hour without a repetition the count
    begins anew.

    Threads: may be shared.

    Args:
        task: The task's name.
        emit: Gets the events.
    """

    def __init__(self, task: str, emit: Emit) -> None:
        self._task = task
        self._emit = emit
        # How often, and when last, on the clock that is never set; the oldest first.
        self._counts: dict[Hashable, tuple[int, float]] = {}
        self._counting = threading.Lock()
        self._failing: set[str] = set()

    def emit(
        self,
        event: str,
        message: str,
        container: Container | None = None,
        *,
        distinct: Hashable = None,
        **detail: Detail,
    ) -> None:
        """Report one event, unless it is a repetition that is only counted.

        Args:
            event: The kind.
            message: What has happened; the container's name is put before it.
            container: The container that it is about.
            distinct: Distinguishes events of this kind: only those with an equal value are
                repetitions of each other. Not a value that a container chooses.
            detail: Figures that belong to the event.
        """
        times = self._count((event, owner_of(container), distinct))
        if times & (times - 1):
            return
        label, text, pod = None, message, None
        if container is not None:
            label, text = container_label(container), f"{container_words(container)}: {message}"
            pod = _pod_of(container)
        again = f" ({times} times now)" if times > 1 else ""
        text = printable(text, _MESSAGE_LIMIT - len(again)) + again
        bounded = {
            name: printable(value, _DETAIL_LIMIT) if isinstance(value, str) else value
            for name, value in detail.items()
        }
        if pod is not None:
            bounded["pod"] = pod  # whole: others are joined by it, and names are short
        self._emit(Event(time.time(), self._task, event, text, label, bounded))

    def failed(self, what: str, error: Exception | str, container: Container | None = None) -> None:
        """Report a failure.

        Args:
            what: What could not be done.
            error: Why.
            container: The container that it is about.
        """
        self._failing.add(owner_of(container))
        text, detail = error, {}
        if not isinstance(error, str):
            text, detail = error_text(error), {"error": type(error).__name__}
        self.emit("failed", f"{what}: {text}", container, distinct=what, **detail)

    def recovered(self, container: Container | None = None) -> None:
        """Report that what has failed works again; nothing if nothing had failed."""
        owner = owner_of(container)
        if owner in self._failing:
            self._failing.discard(owner)
            self.emit("recovered", "it works again", container)

    def retain(self, containers: Collection[Container]) -> None:
        """Forget the failures of all other containers."""
        self._failing &= {"", *map(owner_of, containers)}

    def _count(self, key: Hashable) -> int:
        now_s = time.monotonic()
        with self._counting:
            times, last_s = self._counts.pop(key, (0, now_s))
            if now_s - last_s > _REPEAT_WINDOW_S:
                times = 0
            if len(self._counts) >= _COUNTS_LIMIT:
                del self._counts[next(iter(self._counts))]
            self._counts[key] = (times + 1, now_s)
        return times + 1
